"""The faults of the campaign: what is injected, how often, and which verdict is right."""

from __future__ import annotations

import csv
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pulsetrain.faults.plan import Fault
from trials.job import DP, PP, REDUCE_EVERY, SAVE_EVERY, TP, group_label, members

RANKS = TP * PP * DP
RANKS_PER_NODE = 2
STALL_S = 4.0  # how long a fault that stops the job lasts; the threshold is 3 s
EQUALLY = 0.85
SLOW = frozenset({"straggler", "fail_slow"})
Subjects = frozenset[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One fault as planned: what strikes where, and the subjects that name it rightly.

    `kinds` are the right kinds of finding. `steps`: how long it lasts; a `ends` plan ends the job, a `stalls`
    plan stops it for a while and `resume` says who must be continued from outside.
    """

    kind: str
    faults: tuple[Fault, ...]
    kinds: frozenset[str]
    subjects: Subjects
    steps: int
    ends: bool = False
    stalls: bool = False
    resume: tuple[int, ...] = ()
    within: int = 0
    """steps in which it has to be detected; 0: no limit"""


def node(rank: int) -> str:
    """Name of the rank's node."""
    return f"n{rank // RANKS_PER_NODE}"


def mates(rank: int) -> tuple[int, ...]:
    """Ranks of the same node."""
    first = rank - rank % RANKS_PER_NODE
    return tuple(range(first, first + RANKS_PER_NODE))


def _rank(rank: int) -> Subjects:
    return frozenset({("rank", str(rank))})


Make = Callable[[random.Random, int], Plan]
ALIGNED: Mapping[str, tuple[int, int]] = {
    "storage_timeout": (SAVE_EVERY, SAVE_EVERY - 1),
    "disk_full": (SAVE_EVERY, SAVE_EVERY - 2),
    "desync": (REDUCE_EVERY, 0),
}
"""(every, place): where a fault strikes what happens only in some steps"""


def _ending(kind: str, fault: str, phase: str = "forward", **how: object) -> Make:
    def make(draw: random.Random, step: int) -> Plan:
        rank = draw.randrange(RANKS)
        planned = Fault(kind=fault, rank=rank, step=step, phase=phase, **how)  # type: ignore[arg-type]
        crash = frozenset({"crash"})
        return Plan(kind=kind, faults=(planned,), kinds=crash, subjects=_rank(rank), steps=1, ends=True)

    return make


def _node_killed(draw: random.Random, step: int) -> Plan:
    struck = mates(draw.randrange(RANKS))
    faults = tuple(Fault(kind="sigkill", rank=r, step=step, phase="data") for r in struck)
    return Plan(
        kind="node_killed",
        faults=faults,
        kinds=frozenset({"crash", "node_lost"}),
        subjects=frozenset({("node", node(struck[0]))}),
        steps=1,
        ends=True,
    )


def _desync(draw: random.Random, step: int) -> Plan:
    rank = draw.randrange(RANKS)
    fault = Fault(kind="desync", rank=rank, step=step, phase="reduce")
    kinds = frozenset({"hang", "crash"})  # gloo refuses a mismatch that others only wait for
    return Plan(kind="desync", faults=(fault,), kinds=kinds, subjects=_rank(rank), steps=1, ends=True)


def _stalling(kind: str, fault: str, phase: str, *, stopped: bool = False) -> Make:
    def make(draw: random.Random, step: int) -> Plan:
        rank = draw.randrange(RANKS)
        planned = Fault(kind=fault, rank=rank, step=step, phase=phase, seconds=STALL_S)
        return Plan(
            kind=kind,
            faults=(planned,),
            kinds=frozenset({"hang"}),
            subjects=_rank(rank),
            steps=1,
            stalls=True,
            resume=(rank,) if stopped else (),
        )

    return make


def _link_pause(draw: random.Random, step: int) -> Plan:
    rank = draw.randrange(RANKS)
    label, both = group_label("dp", rank), members("dp", rank)
    faults = tuple(
        Fault(kind="slow_group", rank=r, step=step, phase="data", seconds=STALL_S, text=label) for r in both
    )
    return Plan(
        kind="nic_flap",
        faults=faults,
        kinds=frozenset({"hang"}),
        subjects=frozenset({("group", label)}),
        steps=1,
        stalls=True,
    )


def _slow_rank(factor: float, steps: int, within: int = 0) -> Make:
    def make(draw: random.Random, step: int) -> Plan:
        rank = draw.randrange(RANKS)
        fault = Fault(kind="slow", rank=rank, step=step, until=step + steps - 1, factor=factor)
        return Plan(
            kind=f"slow_rank_{factor:g}x",
            faults=(fault,),
            kinds=SLOW,
            subjects=_rank(rank),
            steps=steps,
            within=within,
        )

    return make


def _slow_ranks(kind: str, factor: float, steps: int, struck: Callable[[int], Sequence[int]]) -> Make:
    """All ranks of a node, of a stage, or of the job."""

    def make(draw: random.Random, step: int) -> Plan:
        ranks = struck(draw.randrange(RANKS))
        faults = tuple(
            Fault(kind="slow", rank=r, step=step, until=step + steps - 1, factor=factor) for r in ranks
        )
        kinds, subjects = {
            "slow_node": (SLOW, ("node", node(ranks[0]))),
            "long_last_stage": (frozenset({"stage_imbalance"}), ("stage", str(PP - 1))),
            "code_regression": (frozenset({"fail_slow", "mfu_decay"}), ("job", "")),
        }[kind]
        return Plan(kind=kind, faults=faults, kinds=kinds, subjects=frozenset({subjects}), steps=steps)

    return make


def _drift(draw: random.Random, step: int) -> Plan:
    """One per cent slower with every five steps, up to a fifth."""
    rank, steps = draw.randrange(RANKS), 100
    faults = tuple(
        Fault(kind="slow", rank=rank, step=at, until=at + 4, factor=1 + 0.01 * (1 + (at - step) // 5))
        for at in range(step, step + steps, 5)
    )
    return Plan(kind="drift", faults=faults, kinds=SLOW, subjects=_rank(rank), steps=steps)


def _slow_link(draw: random.Random, step: int) -> Plan:
    rank, steps = draw.randrange(RANKS), 32
    label, both = group_label("dp", rank), members("dp", rank)
    faults = tuple(
        Fault(
            kind="slow_group",
            rank=r,
            step=step,
            until=step + steps - 1,
            phase="data",
            seconds=0.012,
            text=label,
        )
        for r in both
    )
    return Plan(
        kind="slow_link",
        faults=faults,
        kinds=frozenset({"slow_link"}),
        subjects=frozenset({("group", label)}),
        steps=steps,
    )


def _sequences(draw: random.Random, step: int) -> Plan:
    steps = 40
    faults = tuple(
        Fault(kind="uneven", rank=r, step=step, until=step + steps - 1, factor=0.3, code=r // (TP * PP))
        for r in range(RANKS)
    )
    return Plan(
        kind="sequence_skew",
        faults=faults,
        kinds=frozenset({"sequence_imbalance"}),
        subjects=frozenset({("job", "")}),
        steps=steps,
    )


def _lost_time(kind: str, fault: str, phase: str, seconds: float, every: int) -> Make:
    def make(draw: random.Random, step: int) -> Plan:
        rank, steps = draw.randrange(RANKS), 32
        faults = tuple(
            Fault(kind=fault, rank=rank, step=at, phase=phase, seconds=seconds)
            for at in range(step, step + steps, every)
        )
        return Plan(kind=kind, faults=faults, kinds=frozenset({kind}), subjects=_rank(rank), steps=steps)

    return make


def _value(kind: str, fault: str, phase: str, *kinds: str, everyone: bool = False) -> Make:
    def make(draw: random.Random, step: int) -> Plan:
        rank = draw.randrange(RANKS)
        ranks = range(RANKS) if everyone else (rank,)
        faults = tuple(Fault(kind=fault, rank=r, step=step, phase=phase, factor=3.0) for r in ranks)
        subjects = frozenset({("job", "")}) if everyone else _rank(rank)
        return Plan(kind=kind, faults=faults, kinds=frozenset(kinds), subjects=subjects, steps=10)

    return make


KINDS: Mapping[str, Make] = {
    "sigkill": _ending("sigkill", "sigkill"),
    "segfault": _ending("segfault", "segfault", "backward"),
    "abort": _ending("abort", "abort", "optimizer"),
    "cuda_error": _ending("cuda_error", "cuda_error", "backward"),
    "user_exception": _ending("user_exception", "exception", "forward", text="shapes do not match"),
    "out_of_memory": _ending("out_of_memory", "out_of_memory", "forward"),
    "disk_full": _ending("disk_full", "file_limit", "data", size_bytes=16384),
    "data_worker_killed": _ending("data_worker_killed", "kill_child", "data"),
    "node_killed": _node_killed,
    "desync": _desync,
    "sigstop": _stalling("sigstop", "sigstop", "backward", stopped=True),
    "stuck_in_code": _stalling("stuck_in_code", "busy", "forward"),
    "hold_gil": _stalling("hold_gil", "hold_gil", "backward"),
    "data_worker_stuck": _stalling("data_worker_stuck", "stop_child", "data", stopped=True),
    "storage_timeout": _stalling("storage_timeout", "sleep", "checkpoint"),
    "nic_flap": _link_pause,
    "slow_rank_1.05x": _slow_rank(1.05, 200, 200),
    "slow_rank_1.1x": _slow_rank(1.1, 36, 30),
    "slow_rank_1.3x": _slow_rank(1.3, 32, 30),
    "slow_rank_2x": _slow_rank(2.0, 32, 30),
    "slow_node": _slow_ranks("slow_node", 1.2, 32, mates),
    "long_last_stage": _slow_ranks(
        "long_last_stage", 1.5, 40, lambda _: [r for r in range(RANKS) if r // TP % PP == PP - 1]
    ),
    "code_regression": _slow_ranks("code_regression", 1.3, 45, lambda _: range(RANKS)),
    "drift": _drift,
    "slow_link": _slow_link,
    "sequence_skew": _sequences,
    "data_stall": _lost_time("data_stall", "sleep", "data", 0.02, 1),
    "gc_pause": _lost_time("gc_pause", "gc_pause", "forward", 0.15, 8),
    "nan": _value("nan", "nan", "loss", "nan"),
    "loss_spike": _value("loss_spike", "loss_spike", "loss", "loss_spike", everyone=True),
    "bit_flip": _value("bit_flip", "bit_flip", "gradient", "grad_norm_jump", "nan"),
}


def weights() -> dict[str, float]:
    """Share of each kind among published failures; `weights.csv` says from where."""
    text = Path(__file__).with_name("weights.csv").read_text()
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    shares = {row["kind"]: float(row["weight"]) for row in rows}
    total = sum(shares.values())
    return {kind: shares[kind] / total for kind in KINDS}


def counts(trials: int) -> dict[str, int]:
    """Trials of each kind: most of them dealt out equally, so that rare kinds are judged too, the rest by
    weight.

    >>> sum(counts(200).values())
    200
    """
    share = weights()
    wanted = {kind: trials * (EQUALLY / len(KINDS) + (1 - EQUALLY) * share[kind]) for kind in KINDS}
    whole = {kind: int(count) for kind, count in wanted.items()}
    left = sorted(KINDS, key=lambda kind: whole[kind] - wanted[kind])
    for kind in left[: trials - sum(whole.values())]:
        whole[kind] += 1
    return whole
