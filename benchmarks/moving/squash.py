"""What it saves that replicas of one device compute an optimizer's update once, and that nothing changes.

`ranks` replicas of a real data-parallel job share one device, so a step takes as long as all of them compute.
Squashing begins and ends several times while the job runs. So steps with it and without share the same
minutes. A second job compares parameters and optimizer state with a run that never squashes. In two more, one
rank changes a number of its own, of a parameter and of the optimizer's state.

    PYTHONPATH=benchmarks .venv/bin/python -m moving.squash [--quick]

prints one JSON object as its last line.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any

from moving.sliced_run import SlicedRun, sliced

JOB = Path(__file__).with_name("squash_job.py")
SETTLE_STEPS = 5  # after a change: the first comparisons are among them
EVERY = 10  # updates between two comparisons, where results are compared
CORRUPT_STEP = 2 * EVERY - 1  # its update is one that all compute, and compare
HEAVY = "muon"  # its update multiplies matrices


@dataclass(frozen=True, kw_only=True)
class Plan:
    """`ranks` share a device. `models` are width and number of square layers by optimizer.

    They are timed in `rounds` of `steps` each. Results are compared after `compared_steps` with AdamW.
    """

    ranks: int
    models: Mapping[str, tuple[int, int]]
    compared: tuple[int, int]
    steps: int
    rounds: int
    compared_steps: int


FULL = Plan(
    ranks=4,
    models=MappingProxyType({"muon": (512, 6), "adamw": (2048, 4), "fused": (2048, 4)}),
    compared=(512, 4),
    steps=8,
    rounds=4,
    compared_steps=60,
)
QUICK = Plan(
    ranks=3,
    models=MappingProxyType({"muon": (384, 2)}),
    compared=(64, 2),
    steps=6,
    rounds=2,
    compared_steps=25,
)


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measure. `squash_saving_ratio` is what a step with Muon saves, over the updates that were left out."""
    plan = QUICK if quick else FULL
    with tempfile.TemporaryDirectory() as folder:
        timed = {name: _timed(plan, name, Path(folder) / name) for name in plan.models}
        without, _ = _ends(plan, Path(folder) / "without", every=0)
        squashed, said = _ends(plan, Path(folder) / "squashed", every=EVERY)
        caught = {what: _corrupted(plan, Path(folder) / what, what) for what in ("parameter", "state")}
    return {
        "squash_saving_ratio": timed[HEAVY]["saving_ratio"],
        "squash_identical": len(without | squashed) == 1 and not said,
        "squash_caught": all(caught.values()),
        "squash_caught_by": caught,
        "squash_by_optimizer": timed,
        "squash_ranks": plan.ranks,
        "squash_parameters": {name: width**2 * n for name, (width, n) in plan.models.items()},
    }


def savings(ranks: int, steps_s: Mapping[bool, float], update_s: float) -> dict[str, float]:
    """What a step saves. `steps_s` by whether ranks squash, `update_s` of one rank where they do not.

    >>> savings(4, {False: 1.0, True: 0.55}, 0.2)
    {'saved_s': 0.45, 'left_out_s': 0.6, 'saving_ratio': 0.75, 'step_ratio': 0.55}
    """
    saved_s, left_out_s = steps_s[False] - steps_s[True], (ranks - 1) * update_s
    return {
        "saved_s": round(saved_s, 5),
        "left_out_s": round(left_out_s, 5),
        "saving_ratio": round(saved_s / left_out_s, 4),
        "step_ratio": round(steps_s[True] / steps_s[False], 4),
    }


def cpu_savings(alone_ns: Sequence[float], squashed_ns: Sequence[float]) -> dict[str, float]:
    """The same of processor time in `optimizer.step()`, of each rank. It depends less on other programs.

    >>> cpu_savings([100, 100, 100, 100], [100, 10, 10, 10])
    {'update_cpu_saving_ratio': 0.9}
    """
    left_out_ns = sum(alone_ns) * (len(alone_ns) - 1) / len(alone_ns)
    return {"update_cpu_saving_ratio": round((sum(alone_ns) - sum(squashed_ns)) / left_out_ns, 4)}


def _timed(plan: Plan, optimizer: str, folder: Path) -> dict[str, float]:
    """Step times with squashing and without, in turn, in one run."""
    arguments = (*_job(plan.models[optimizer], folder), "--steps", "1000000", "--optimizer", optimizer)
    with sliced(folder, plan.ranks, 1, JOB, *arguments, squash_every=10**6) as running:
        running.wait_for_step(3)
        windows = [_window(running, plan.steps, on=on) for _ in range(plan.rounds) for on in (False, True)]
        running.stop()
        results, said = running.results(), running.stopped()
    if said:
        raise RuntimeError(f"{optimizer}: ranks do not squash: {said}")
    ends = results[0]["ends_ns"]
    steps_s = {on: median(times) for on, times in _by_kind(windows, ends).items()}
    alone = [s for on, first, last in windows if not on for s in range(first + 1, last + 1)]
    squashed = [s for on, first, last in windows if on for s in range(first + 1, last + 1)]
    update_s = median(r["updates_ns"][s] / 1e9 for r in results for s in alone)
    cpu = [[median(r["updates_cpu_ns"][s] for s in steps) for r in results] for steps in (alone, squashed)]
    said = {"step_s": round(steps_s[False], 5), "squashed_step_s": round(steps_s[True], 5)}
    saved = {**savings(plan.ranks, steps_s, update_s), **cpu_savings(*cpu)}
    return {**said, "update_s": round(update_s, 5), **saved}


def _window(running: SlicedRun, steps: int, *, on: bool) -> tuple[bool, int, int]:
    """Let the ranks squash, or not, for some steps. Returns whether, first and last step."""
    running.squash(1, on=on)
    first = running.step() + SETTLE_STEPS
    running.wait_for_step(first + steps)
    return on, first, first + steps


def _by_kind(windows: Sequence[tuple[bool, int, int]], ends_ns: Sequence[int]) -> dict[bool, list[float]]:
    steps_s: dict[bool, list[float]] = defaultdict(list)
    for on, first, last in windows:
        steps_s[on] += [(ends_ns[s] - ends_ns[s - 1]) / 1e9 for s in range(first + 1, last + 1)]
    return steps_s


def _job(model: tuple[int, int], folder: Path) -> tuple[str, ...]:
    return ("--width", str(model[0]), "--layers", str(model[1]), "--out", str(folder))


def _ends(plan: Plan, folder: Path, every: int, *more: str) -> tuple[set[str], list[dict[str, Any]]]:
    """The digests of all ranks at the end, and what those said that stopped."""
    arguments = (*_job(plan.compared, folder), "--steps", str(plan.compared_steps), *more)
    with sliced(folder, plan.ranks, 1, JOB, *arguments, squash_every=every) as running:
        digests = {result["digest"] for result in running.results()}
        return digests, running.stopped()


def _corrupted(plan: Plan, folder: Path, what: str) -> str:
    """What the ranks say of a number that the last one has changed, "" where they notice nothing."""
    last = plan.ranks - 1
    _, said = _ends(plan, folder, EVERY, "--corrupt", f"{last}:{CORRUPT_STEP}:{what}")
    right = [s for s in said if (s["rank"], s["step"]) == (last, CORRUPT_STEP)]
    return str(right[0]["why"]) if right else ""


if __name__ == "__main__":
    print(json.dumps(run(quick="--quick" in sys.argv)))
