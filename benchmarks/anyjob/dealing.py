"""Faults dealt out over jobs that others wrote: what strikes whom, and which verdict is right. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from trials.kinds import SLOW, Plan

from pulsetrain.faults.plan import Fault

RANKS_A_NODE, NODES = 2, 2
RANKS = RANKS_A_NODE * NODES
WARM, LEAD, SETTLE, LONG, TOLD = 25, 31, 12, 30, 60
"""steps at the start, clean ones before a fault, after one, those of a fault that lasts, and those in which a
bad number is told: numbers are read late, and losses are looked at every few seconds"""
PASSING_A_SESSION = 2
STALL_S = 8.0
VARIANTS = ("auto", "no_auto")
NEEDS_PHASES = frozenset({"data_stall", "gc_pause", "nan", "bit_flip"})
Subjects = frozenset[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class Dealt:
    """A fault from step `onset` on. `plan` is as in the campaign. A `throttle` slows it from outside."""

    plan: Plan
    onset: int
    throttle: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Hand:
    """One launch of a job with the faults that it gets."""

    number: int
    job: str
    variant: str
    faults: tuple[Dealt, ...]

    @property
    def key(self) -> str:
        """What makes it the same session in another run."""
        return f"{self.job}/{self.variant}/{self.number}"


def _rank(rank: int) -> Subjects:
    return frozenset({("rank", str(rank))})


Make = Callable[[random.Random, int], Dealt]


def _ending(kind: str, fault: str, point: str = "forward", **how: str) -> Make:
    def make(draw: random.Random, step: int) -> Dealt:
        rank = draw.randrange(RANKS)
        planned = Fault(kind=fault, rank=rank, step=step, phase=point, text=how.get("text", ""))
        kinds = frozenset({"crash", "hang"}) if fault == "desync" else frozenset({"crash"})
        plan = Plan(kind=kind, faults=(planned,), kinds=kinds, subjects=_rank(rank), steps=1, ends=True)
        return Dealt(plan=plan, onset=step)

    return make


def _stopped(draw: random.Random, step: int) -> Dealt:
    """A rank that stops for ever: only a new launch helps."""
    rank = draw.randrange(RANKS)
    fault = Fault(kind="sigstop", rank=rank, step=step, phase="optimizer")
    kinds = frozenset({"hang"})
    return Dealt(
        plan=Plan(kind="sigstop", faults=(fault,), kinds=kinds, subjects=_rank(rank), steps=1, ends=True),
        onset=step,
    )


def _stalling(kind: str, fault: str) -> Make:
    def make(draw: random.Random, step: int) -> Dealt:
        rank = draw.randrange(RANKS)
        planned = Fault(kind=fault, rank=rank, step=step, phase="forward", seconds=STALL_S)
        kinds = frozenset({"hang"})
        plan = Plan(kind=kind, faults=(planned,), kinds=kinds, subjects=_rank(rank), steps=2, stalls=True)
        return Dealt(plan=plan, onset=step)

    return make


def _slow(kind: str, factor: float, *, node: bool = False) -> Make:
    """From outside, by stops. `Plan.faults` say who, and are not injected."""

    def make(draw: random.Random, step: int) -> Dealt:
        rank = draw.randrange(RANKS)
        first = rank - rank % RANKS_A_NODE
        struck = range(first, first + RANKS_A_NODE) if node else (rank,)
        faults = tuple(
            Fault(kind="slow", rank=r, step=step, until=step + LONG - 1, factor=factor) for r in struck
        )
        named = frozenset({("node", f"n{rank // RANKS_A_NODE}")})
        plan = Plan(
            kind=kind,
            faults=faults,
            kinds=SLOW,
            subjects=named if node else _rank(rank),
            steps=LONG,
            within=LONG,
        )
        return Dealt(plan=plan, onset=step, throttle=factor)

    return make


def _repeated(kind: str, fault: str, point: str, seconds: float, every: int) -> Make:
    def make(draw: random.Random, step: int) -> Dealt:
        rank = draw.randrange(RANKS)
        faults = tuple(
            Fault(kind=fault, rank=rank, step=at, phase=point, seconds=seconds)
            for at in range(step, step + LONG, every)
        )
        kinds = frozenset({kind}) | (SLOW if kind == "data_stall" else frozenset())
        plan = Plan(kind=kind, faults=faults, kinds=kinds, subjects=_rank(rank), steps=LONG)
        return Dealt(plan=plan, onset=step)

    return make


def _value(kind: str, fault: str, *kinds: str) -> Make:
    """A bad number in one rank's gradient. It stays in the weights, so the job has had its time then."""

    def make(draw: random.Random, step: int) -> Dealt:
        rank = draw.randrange(RANKS)
        planned = Fault(kind=fault, rank=rank, step=step, phase="gradient")
        either = _rank(rank) | frozenset({("job", "")})
        plan = Plan(kind=kind, faults=(planned,), kinds=frozenset(kinds), subjects=either, steps=TOLD)
        return Dealt(plan=plan, onset=step)

    return make


LASTING: Mapping[str, Make] = {
    "slow_rank_1.3x": _slow("slow_rank_1.3x", 1.3),
    "slow_rank_2x": _slow("slow_rank_2x", 2.0),
    "slow_node_1.5x": _slow("slow_node_1.5x", 1.5, node=True),
    "stuck_in_code": _stalling("stuck_in_code", "busy"),
    "hold_gil": _stalling("hold_gil", "hold_gil"),
    "data_stall": _repeated("data_stall", "sleep", "data", 0.08, 1),
    "gc_pause": _repeated("gc_pause", "gc_pause", "forward", 0.3, 6),
}
"""faults after which the job goes on"""
LAST: Mapping[str, Make] = {
    "sigkill": _ending("sigkill", "sigkill"),
    "segfault": _ending("segfault", "segfault"),
    "abort": _ending("abort", "abort", "optimizer"),
    "cuda_error": _ending("cuda_error", "cuda_error", "optimizer"),
    "user_exception": _ending("user_exception", "exception", text="shapes do not match"),
    "out_of_memory": _ending("out_of_memory", "out_of_memory"),
    "desync": _ending("desync", "desync", "optimizer"),
    "sigstop": _stopped,
    "nan": _value("nan", "nan", "nan"),
    "bit_flip": _value("bit_flip", "bit_flip", "nan", "loss_spike", "grad_norm_jump"),
}
"""faults after which a session is over"""


def deal(jobs: Sequence[str], trials: int, seed: int) -> list[Hand]:
    """Return the sessions of a campaign: each kind about equally often, over jobs and variants by turns.

    Without inferred phases no fault is dealt whose only sign is in a phase or in the loss.

    >>> sum(len(hand.faults) for hand in deal(["ddp", "moe"], 12, 0))
    12
    """
    draw = random.Random(f"{seed}/deal")
    hands = []
    piles = {(name, variant): _Piles(draw, variant) for name in ("lasting", "last") for variant in VARIANTS}
    left, number = trials, 0
    while left:
        job, variant = jobs[number % len(jobs)], VARIANTS[number // len(jobs) % len(VARIANTS)]
        ends = 1 if left else 0
        passing = min(PASSING_A_SESSION, left - ends)
        kinds = [piles["lasting", variant].next(LASTING) for _ in range(passing)]
        kinds += [piles["last", variant].next(LAST)]
        hands.append(_hand(number, job, variant, kinds, seed))
        left -= len(kinds)
        number += 1
    return hands


class _Piles:
    """Kinds in random order, each once before any comes again."""

    def __init__(self, draw: random.Random, variant: str) -> None:
        self._draw, self._variant = draw, variant
        self._pile: list[str] = []

    def next(self, kinds: Mapping[str, Make]) -> str:
        if not self._pile:
            self._pile = [k for k in kinds if self._variant == "auto" or k not in NEEDS_PHASES]
            self._draw.shuffle(self._pile)
        return self._pile.pop()


def _hand(number: int, job: str, variant: str, kinds: Sequence[str], seed: int) -> Hand:
    draw = random.Random(f"{seed}/{number}")
    at, faults = WARM, []
    for kind in kinds:
        onset = at + LEAD + draw.randrange(4)
        dealt = {**LASTING, **LAST}[kind](draw, onset)
        faults.append(dealt)
        at = onset + dealt.plan.steps + SETTLE
    return Hand(number=number, job=job, variant=variant, faults=tuple(faults))
