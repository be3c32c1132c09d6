"""Everything that was measured, as one JSON object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]


def result(rows: Sequence[Row]) -> dict[str, Any]:
    """The fields of the benchmark. A part that did not run gives None, or counts of 0."""
    sizes = sorted(_of(rows, "agents"), key=lambda row: row["agents"])
    largest = sizes[-1] if sizes else {}
    return {
        "benchmark": "cluster",
        "failover": _failover(rows),
        "slurm": _slurm(rows),
        "failing": _failing(rows),
        "agents": largest.get("agents", 0),
        "agent_cpu_us": largest.get("cpu_us"),
        "startup_messages_per_node": largest.get("messages_per_node"),
        "launch_bytes_per_node": largest.get("launch_bytes_per_node"),
        "hub_mib_per_1000_nodes": _per_1000(sizes, "hub_mib"),
        "hub_cpu_ratio_per_1000_nodes": _per_1000(sizes, "hub_cpu_ratio"),
        "named_s": largest.get("named_s"),
        "sizes": [{k: v for k, v in row.items() if k not in ("what", "unit")} for row in sizes],
        "simulated": _simulated(rows),
        "left_out": {row["part"]: row["reason"] for row in _of(rows, "left out")},
        "broken": [{"unit": row["unit"], "reason": row["reason"]} for row in _of(rows, "broken")],
    }


def _of(rows: Sequence[Row], what: str) -> list[Row]:
    return [row for row in rows if row["what"] == what]


def _failover(rows: Sequence[Row]) -> dict[str, Any]:
    points, jobs = _of(rows, "point"), _of(rows, "job")
    times = sorted(row["seconds"] for row in points)
    by_state: dict[str, list[float]] = {}
    for row in points:
        by_state.setdefault(row["state"], []).append(row["seconds"])
    return {
        "points": len(points),
        "healed": sum(row["healed"] for row in points),
        "p95_s": times[min(len(times) - 1, round(0.95 * len(times)))] if times else None,
        "double_evictions": sum(row["spent"] > 1 or row["gone"] > 1 for row in points),
        "not_evicted": sum(not row["victim_gone"] for row in points),
        "budget_kept": all(row["spent"] == row["gone"] for row in points),
        "identical": all(row["identical"] for row in jobs) if jobs else None,
        "by_state": {state: sorted(seconds) for state, seconds in sorted(by_state.items())},
    }


def _failing(rows: Sequence[Row]) -> dict[str, Any]:
    """Jobs that failed in every attempt: `right` ended as stated, `most_attempts` is the largest number."""
    jobs = _of(rows, "failing")
    return {
        "jobs": len(jobs),
        "right": sum(not row["wrong"] for row in jobs),
        "healed": sum(row["state"] == "finished" for row in jobs),
        "most_attempts": max((row["attempts"] for row in jobs), default=0),
        "wrong": [{k: row[k] for k in ("number", "way", "by", "wrong")} for row in jobs if row["wrong"]],
    }


def _simulated(rows: Sequence[Row]) -> dict[str, Any]:
    """The largest simulated fleet, and what the controller needs for each 1,000 nodes of each fleet."""
    sizes = sorted(_of(rows, "simulated"), key=lambda row: row["agents"])
    largest = sizes[-1] if sizes else {}
    return {
        "agents": largest.get("agents", 0),
        "named_s": largest.get("named_s"),
        "startup_messages_per_node": largest.get("messages_per_node"),
        "sizes": [
            {
                **{k: v for k, v in row.items() if k not in ("what", "unit", "events")},
                "cpu_ratio_per_1000_nodes": round(1000 * row["controller_cpu_ratio"] / row["agents"], 4),
                "mib_per_1000_nodes": round(1000 * row["controller_mib"] / row["agents"], 1),
            }
            for row in sizes
        ],
    }


def _slurm(rows: Sequence[Row]) -> dict[str, float | None]:
    last = next(reversed(_of(rows, "slurm")), {})
    return {"evict_s": last.get("evict_s"), "lost_node_s": last.get("lost_node_s")}


def _per_1000(sizes: Sequence[Row], field: str) -> float | None:
    """How much a figure of the hub grows with each 1,000 nodes, from the smallest and the largest size."""
    if len(sizes) < 2:
        return None
    small, large = sizes[0], sizes[-1]
    more = large["agents"] - small["agents"]
    return round((large[field] - small[field]) / more * 1000, 3) if more else None
