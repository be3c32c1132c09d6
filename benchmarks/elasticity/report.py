"""What the rows of finished units say together."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any


def result(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The fields that others read. None where nothing of the kind was run."""
    points = [row for row in rows if row["what"] == "point"]
    examples = [row for row in rows if row["what"] == "example"]
    jobs = [row for row in rows if row["what"] == "job"]
    ntp = [row for row in rows if row["what"] == "ntp"]
    timed = examples or [row for row in points if row["ranks"]]
    wrong = [reason for job in jobs for reason in job["wrong"]]
    return {
        "shrink_s": max((row["shrink_s"] for row in timed), default=None),
        "survivors_s": _stall_s(rows, "pulsetrain"),
        "torchft_s": _stall_s(rows, "torchft"),
        "torchft_why_not": next((row["why_not"] for row in rows if row.get("why_not")), ""),
        "regrow_s": max((row["regrow_s"] for row in timed), default=None),
        "points": len(points),
        "wrong": len(wrong),
        "wrong_because": wrong,
        "restores": sum(job["restores"] for job in jobs),
        "steps": sum(job["steps"] for job in jobs),
        "samples_lost": sum(job["samples_lost"] for job in jobs),
        "samples_doubled": sum(job["samples_doubled"] for job in jobs),
        "ntp_max_error": max((row["max_error"] for row in ntp), default=None),
        "ntp_overhead_ratio": max(
            (row["overhead_ratio"] for row in ntp if row["overhead_ratio"]), default=None
        ),
    }


def _stall_s(rows: Sequence[dict[str, Any]], library: str) -> float | None:
    """For how long survivors stood still, the median of the runs. None where there was none."""
    stalls = [row["stall_s"] for row in rows if row["what"] == "survivors" and row["library"] == library]
    known = [stall_s for stall_s in stalls if stall_s is not None]
    return round(median(known), 3) if known else None
