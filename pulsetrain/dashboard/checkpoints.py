"""Checkpoints: where the state is safe, what a failure would cost now, and what each stage took."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import streamlit as st

from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard import page, parts
from pulsetrain.dashboard.models.checkpoints import (
    Cost,
    Safe,
    checkpoint_lines,
    costs,
    headline,
    own_file,
    safe_steps,
)
from pulsetrain.dashboard.models.recovery import recoveries
from pulsetrain.dashboard.models.text import ago, clock, duration, size
from pulsetrain.dashboard.models.times import TimeChoice
from pulsetrain.stream.queries import views

_STEPS_OF_A_TIME = 200


def show() -> None:
    """The page."""
    page.live(partial(_body, page.chosen_time()))


def _body(time: TimeChoice) -> None:
    job = page.chosen_job()
    lines = checkpoint_lines(_rows(job, time)) if job else []
    if not lines and time.given:
        page.empty("No data: no checkpoint of this job was reported in this time.", "Choose another time.")
        return
    if not lines:
        page.empty(
            "No data: no checkpoint of this job is on record.",
            "A script saves them with pulsetrain.Checkpointer, or as it always did.",
        )
        return
    _now(job)
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


def _rows(job: str, time: TimeChoice) -> Sequence[JsonObject]:
    """What was reported of the newest steps with checkpoints, or of those of the chosen time."""
    source = page.source()
    within = parts.within(source, job, time)
    return source.rows(views.checkpoints, job, **({"steps": _STEPS_OF_A_TIME, **within} if within else {}))


def _now(job: str) -> None:
    """Where the state is safe, and what a failure would cost at this moment."""
    source = page.source()
    safe = safe_steps(source.rows(views.checkpoint_tiers, job))
    safe += own_file(source.job(job).get("own_checkpoint"))
    progress = next(iter(source.rows(views.progress, job)), {"last_step": -1, "step_ns": 0})
    past = [line.total_ns for line in recoveries(source.rows(views.events, job, ("recovery",)))]
    failure_costs = costs(
        safe, last_step=progress["last_step"], step_ns=progress["step_ns"], recovery_ns=past
    )
    st.html(f"<div><b>{headline(safe, failure_costs)}</b></div>")
    page.table(
        ["held in", "newest step of every rank", "age", "size", "copies of each rank"],
        [_tier(one) for one in safe],
        right=(1, 2, 3, 4),
    )
    page.table(
        [
            "what a failure now would cost",
            "resumes at step",
            "from",
            "steps done again",
            "that takes",
            "usual pause",
        ],
        [_price(cost) for cost in failure_costs],
        right=(1, 3, 4, 5),
    )


def _tier(safe: Safe) -> list[str]:
    age = ago(safe.ts_ns, page.now_ns())
    return [safe.tier, str(safe.step), age, size(safe.bytes), f"{safe.copies:g}"]


def _price(cost: Cost) -> list[str]:
    resumes = str(cost.step) if cost.step >= 0 else "the first"
    pause = duration(cost.pause_ns) if cost.pause_ns is not None else "-"
    return [cost.failure, resumes, cost.tier or "-", str(cost.lost_steps), duration(cost.lost_ns), pause]


def _stage(done: tuple[int, int] | None) -> str:
    """How many ranks did a stage, and the longest time."""
    return "-" if done is None else f"{done[0]} ranks, {duration(done[1])}"
