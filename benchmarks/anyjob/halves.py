"""The campaign over jobs that others wrote: one half for tuning, the other half held out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from jobs.catalogue import JOBS
from trials import report

from anyjob import dealing, faulty, untouched
from anyjob.kept import Kept
from anyjob.parts import Unit
from anyjob.parts import run as run_units
from pulsetrain.agent.local_hub import local_hub

HALVES = ("tuned", "held_out")
QUICK_TRIALS = 2
Row = dict[str, Any]


def half_of(job: str) -> str:
    """Return whether detectors are tuned on a job."""
    return "held_out" if JOBS[job].held_out else "tuned"


def units(jobs: Sequence[str], trials: int, seed: int) -> list[Unit]:
    """Return one unit for each session."""

    def rows_of(hand: dealing.Hand) -> Callable[[Path], Iterator[Row]]:
        def rows(folder: Path) -> Iterator[Row]:
            with local_hub(folder / "hub", dashboard=False) as hub:
                yield from faulty.Struck(hand, hub.address, folder).run()

        return rows

    return [
        Unit(name=f"jobs/{seed}/{hand.key}", run=rows_of(hand)) for hand in dealing.deal(jobs, trials, seed)
    ]


def campaign(
    trials: int, seed: int, *, until_s: float, kept: Path | None, only: Sequence[str] | None = None
) -> Row:
    """Run what is not done yet. Return the tables of both halves. `only` names jobs."""
    began_s, jobs = time.monotonic(), untouched.runnable(only)
    todo, known = units(jobs, trials, seed), Kept(kept)
    run_units(todo, known, until_s=until_s, logs=None)
    return {
        "benchmark": "campaign",
        "of": {half: [job for job in jobs if half_of(job) == half] for half in HALVES},
        "missing": sorted(set(JOBS) - set(jobs)),
        **{half: _half(half, known.rows, began_s) for half in HALVES},
    }


def _half(half: str, rows: Sequence[Row], began_s: float) -> Row:
    """Return the tables of the jobs of one half, as the campaign has them."""
    of_half = [row for row in rows if "job" in row and half_of(row["job"]) == half]
    broken = [row for row in rows if row["what"] == "broken" and half_of(row["unit"].split("/")[2]) == half]
    sessions = sum(row["what"] == "session" for row in of_half) + len(broken)
    result = report.result(of_half, sessions=sessions, wall_s=time.monotonic() - began_s)
    return {**result, "broken": [{"unit": row["unit"], "reason": row["reason"]} for row in broken]}
