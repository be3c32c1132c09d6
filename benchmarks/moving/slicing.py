"""What it costs that ranks take turns on fewer devices: step times beside the ideal, in one run.

The devices of a real data-parallel job change while it runs: N ranks on N devices, then on fewer, and again.
So both share the same minutes. What a device does is a wait of known length, as it is for the host of a GPU,
so that the machine needs no N cores. The ideal of N ranks on M devices is N/M times that work: no time for
the communication of N ranks, for optimizers, or for turns. `slicing_ratio` is the step over it, on the number
of devices where that is worst. `step_ratios` are over N/M times the step on N devices instead.

    PYTHONPATH=benchmarks .venv/bin/python -m moving.slicing [--quick]

prints one JSON object as its last line.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from moving.sliced_run import JOB, SlicedRun, sliced

SETTLE_STEPS = 2  # after a change, in which ranks may still be at different steps


@dataclass(frozen=True, kw_only=True)
class Plan:
    """`ranks` take turns on each of `devices`, `steps` steps long, `rounds` times."""

    ranks: int
    devices: tuple[int, ...]
    steps: int
    rounds: int
    work_s: float


FULL = Plan(ranks=8, devices=(4, 2, 1), steps=6, rounds=5, work_s=0.25)
QUICK = Plan(ranks=4, devices=(2, 1), steps=6, rounds=2, work_s=0.02)


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measure. `slicing_ratio` is the worst one of all numbers of devices."""
    plan = QUICK if quick else FULL
    with tempfile.TemporaryDirectory() as folder:
        steps_s, digests, lent = _steps(plan, Path(folder))
    medians = {m: median(s) for m, s in steps_s.items()}
    by_devices = ratios(plan.ranks, plan.work_s, medians)
    by_step = ratios(plan.ranks, medians[plan.ranks], medians)
    return {
        "slicing_ratio": max(by_devices.values()),
        "slicing_by_devices": {str(m): ratio for m, ratio in by_devices.items()},
        "step_ratios": {str(m): ratio for m, ratio in by_step.items()},
        "work_s": plan.work_s,
        "step_s": {str(m): round(median(s), 5) for m, s in steps_s.items()},
        "identical": len(digests) == 1,
        "turns_given_away": lent,
    }


def ratios(ranks: int, own_s: float, steps_s: dict[int, float]) -> dict[int, float]:
    """The step on each smaller number of devices M, over ranks / M times `own_s`.

    >>> ratios(8, 0.1, {8: 0.1, 4: 0.21, 1: 0.8})
    {4: 1.05, 1: 1.0}
    """
    return {m: round(step_s / (ranks / m * own_s), 4) for m, step_s in steps_s.items() if m != ranks}


def _steps(plan: Plan, folder: Path) -> tuple[dict[int, list[float]], set[str], int]:
    """Seconds of each step by number of devices, the digests of all ranks, and turns given away."""
    arguments = ("--steps", "1000000", "--sleep", str(plan.work_s), "--out", str(folder))
    with sliced(folder, plan.ranks, 0, JOB, *arguments) as running:
        running.wait_for_step(3)
        windows = [
            _window(running, devices, plan.steps)
            for _ in range(plan.rounds)
            for devices in (plan.ranks, *plan.devices)
        ]
        running.stop()
        results = running.results()
        lent = sum(turns[2] for turns in running.turns())
    return _by_devices(windows, results[0]["ends_ns"]), {r["digest"] for r in results}, lent


def _window(running: SlicedRun, devices: int, steps: int) -> tuple[int, int, int]:
    """Let the ranks share so many devices for some steps. Returns devices, first and last step."""
    running.share(devices)
    first = running.step() + SETTLE_STEPS
    running.wait_for_step(first + steps)
    return devices, first, first + steps


def _by_devices(windows: Sequence[tuple[int, int, int]], ends_ns: Sequence[int]) -> dict[int, list[float]]:
    steps_s: dict[int, list[float]] = defaultdict(list)
    for devices, first, last in windows:
        steps_s[devices] += [(ends_ns[s] - ends_ns[s - 1]) / 1e9 for s in range(first + 1, last + 1)]
    return steps_s


if __name__ == "__main__":
    print(json.dumps(run(quick="--quick" in sys.argv)))
