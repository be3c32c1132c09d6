"""Where every rank of a simulated attempt stands at a moment, and who holds the others up.

Each step is a forward, a backward, an all-reduce of the gradients in each data-parallel group, an all-reduce
over all ranks, and the optimizer. A rank that is held up never joins the all-reduce of its data-parallel
group. Its peers wait there, and all others wait for them in the all-reduce over all ranks. Times are seconds
on one clock. Nothing here reads a clock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pulsetrain.simulate.spec import FleetFault, FleetSpec
from pulsetrain.simulate.timing import StepTimes, simulate_step

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]

PHASES = ("data", "forward", "backward", "all_reduce", "all_reduce", "optimizer", "")
FORWARD, BACKWARD, REDUCE, NORM, OPTIMIZER, IDLE = range(1, 7)
RECORDED = len(PHASES)  # what a rank records in one step


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step. `bounds` [rank, phase]: seconds from `begins_s` to each phase after the first."""

    number: int
    begins_s: float
    spec: FleetSpec
    times: StepTimes
    bounds: Floats

    @property
    def ends_s(self) -> float:
        """When every rank has done it."""
        return self.begins_s + self.times.length


@dataclass(frozen=True, kw_only=True)
class Positions:
    """Where some ranks stand. `step` is the one that they are in, `since_s` when they entered their `phase`.

    `done` counts the phases that a rank has completed in the attempt.
    """

    step: int
    phase: Integers
    since_s: Floats
    done: Integers


def make_step(spec: FleetSpec, number: int, begins_s: float, slow: Mapping[int, float]) -> Step:
    """The step in which the ranks of `slow` compute so many times as long."""
    faults = tuple(
        FleetFault(kind="straggler", numbers={"rank": rank, "factor": factor})
        for rank, factor in sorted(slow.items())
    )
    spec = replace(spec, faults=faults)
    times = simulate_step(spec, number)
    reduced = times.reduce_start + times.reduce
    bounds = (
        times.forward_start[..., 0],
        times.backward_start[..., 0],
        times.reduce_start,
        reduced,
        reduced + times.norm,
        reduced + times.norm + times.optimizer,
    )
    return Step(
        number=number,
        begins_s=begins_s,
        spec=spec,
        times=times,
        bounds=np.stack([each.reshape(-1) for each in bounds], axis=1),
    )


def held_bounds(spec: FleetSpec, bounds: Floats, held: Collection[int]) -> Floats:
    """`bounds` while the ranks of `held` do not join the all-reduce of their data-parallel groups."""
    waiting = bounds.copy()
    waiting[:, _begin(OPTIMIZER) :] = np.inf
    for rank in held:
        waiting[list(spec.dp_peers(rank)), _begin(NORM) :] = np.inf
    waiting[list(held), _begin(REDUCE) :] = np.inf
    return waiting


def _begin(phase: int) -> int:
    """The column of `bounds` with the beginning of a phase."""
    return phase - 1


class Attempt:
    """One launch of the job, from the moment at which its first step begins. One thread uses it."""

    def __init__(self, spec: FleetSpec, *, first_step: int, begins_s: float) -> None:
        self.spec, self.first_step = spec, first_step
        self.step = make_step(spec, first_step, begins_s, {})
        self.held: frozenset[int] = frozenset()
        self._bounds = self.step.bounds

    @property
    def spec_now(self) -> FleetSpec:
        """The job with what is wrong in the present step."""
        return self.step.spec

    def advance(self, now_s: float, slow: Mapping[int, float], held: Collection[int]) -> list[Step]:
        """Let time pass until `now_s`. Returns the steps that were completed.

        `slow` counts for steps that begin from now on. The ranks of `held` stand still, which holds up the
        present step, or the next one where some of them have joined the all-reduce of this one already.
        """
        completed: list[Step] = []
        while True:
            if held and not self.held and (completed or self._not_joined(now_s, held)):
                self._hold(held)
            if self.held:
                if not held:
                    self._go_on(now_s)
                    continue
                if frozenset(held) != self.held:
                    self._hold(held)
                return completed
            if now_s < self.step.ends_s:
                return completed
            completed.append(self.step)
            self.step = make_step(self.spec, self.step.number + 1, self.step.ends_s, slow)
            self._bounds = self.step.bounds

    def positions(self, now_s: float, ranks: Integers) -> Positions:
        """Where `ranks` stand at `now_s`."""
        bounds = self._bounds[ranks]
        passed_s = max(0.0, now_s - self.step.begins_s)
        phase = (bounds <= passed_s).sum(axis=1)
        entered = np.where(
            phase > 0, np.take_along_axis(bounds, np.maximum(phase - 1, 0)[:, None], 1)[:, 0], 0.0
        )
        since_s = np.minimum(self.step.begins_s + entered, now_s)
        steps = self.step.number - self.first_step
        return Positions(step=self.step.number, phase=phase, since_s=since_s, done=steps * RECORDED + phase)

    def _not_joined(self, now_s: float, held: Collection[int]) -> bool:
        joins_s = self.step.begins_s + self.step.bounds[list(held), _begin(REDUCE)].min()
        return bool(now_s < joins_s)

    def _hold(self, held: Collection[int]) -> None:
        self.held = frozenset(held)
        self._bounds = held_bounds(self.spec, self.step.bounds, held)

    def _go_on(self, now_s: float) -> None:
        """Nobody is held any more: the ranks that were join their all-reduce now, unless it was too early."""
        joined_s = float(self.step.bounds[list(self.held), _begin(REDUCE)].max())
        begins_s = max(self.step.begins_s, now_s - joined_s)
        self.step = replace(self.step, begins_s=begins_s)
        self.held, self._bounds = frozenset(), self.step.bounds
