"""Checkpoints: which steps can be restored, from where, and what each stage took."""

from __future__ import annotations

from pulsetrain.dashboard import page
from pulsetrain.dashboard.models.operations import checkpoint_lines
from pulsetrain.dashboard.models.text import clock, duration, size
from pulsetrain.stream.queries import views


def show() -> None:
    """The page."""
    page.live(_body)


def _body() -> None:
    job = page.chosen_job()
    lines = checkpoint_lines(page.source().rows(views.checkpoints, job)) if job else []
    if not lines:
        page.empty(
            "No data: no checkpoint of this job is on record.",
            "A script saves them with pulsetrain.Checkpointer.",
        )
        return
    stages = sorted({stage for line in lines for stage in line["stages"]})
    page.table(
        ["step", "attempt", "last report, UTC", "size", *(f"{stage}: ranks, longest" for stage in stages)],
        [
            [
                str(line["step"]),
                str(line["attempt"]),
                clock(line["ts_ns"]),
                size(line["bytes"]),
                *(_stage(line["stages"].get(stage)) for stage in stages),
            ]
            for line in lines[:200]
        ],
        right=(0, 1, 3, *range(4, 4 + len(stages))),
    )


def _stage(found: tuple[int, int] | None) -> str:
    return "-" if found is None else f"{found[0]} ranks, {duration(found[1])}"
