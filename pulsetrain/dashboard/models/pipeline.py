"""Whether the monitoring itself is healthy: gauges of agents, facts of the hub."""

from __future__ import annotations

from collections.abc import Sequence

from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard.models.text import duration, natural, size, thousands


def gauge_text(name: str, value: float | None) -> str:
    """An agent's gauge by the unit in its name. "-" if the agent does not send it."""
    if value is None:
        return "-"
    if name.endswith("_bytes"):
        return size(value)
    if name.endswith("_ratio"):
        return f"{100 * value:.1f} %"
    if name.endswith("_s"):
        return duration(value * 1e9)
    return thousands(value) if float(value).is_integer() else f"{value:.3g}"


def hub_facts(hub: JsonObject, now_ns: int) -> dict[str, str]:
    """What the hub says about itself. A count of failures is shown also when it is zero."""
    started = hub.get("started_ns")
    return {
        "hub": str(hub.get("version", "-")),
        "running for": duration(now_ns - started) if started else "-",
        "failed analyses": thousands(hub.get("watch_failures")),
        "rows not written": thousands(hub.get("unwritten_rows")),
        "process": str(hub.get("pid", "-")),
    }


def ordered_loops(rows: Sequence[JsonObject]) -> list[JsonObject]:
    """Return the loops, those that are late or fail first, then by process, node and name."""
    return sorted(
        rows,
        key=lambda row: (
            not row["stale"],
            -row["failures_in_a_row"],
            row["process"] != "hub",
            natural(row["node"]),
            row["loop"],
        ),
    )
