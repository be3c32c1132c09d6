"""Generated fleets of any size: the matrices that the store's queries would give, and what is planted there.

The numbers are those of `pulsetrain simulate`, step by step, without writing spans of them first; a test
holds both ways together on a small fleet. Everything here is simulated and says so.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pulsetrain.analytics import numerics, watch
from pulsetrain.analytics.incidents import correlate as incidents
from pulsetrain.analytics.incidents.locations import Topology
from pulsetrain.analytics.slowness import fail_slow, imbalance, links, mfu, stalls, straggler
from pulsetrain.analytics.slowness.timings import NUMBERS, PARTS, Timings
from pulsetrain.analytics.slowness.transfers import Transfers
from pulsetrain.analytics.verdict import Finding, Verdict, findings, guarded
from pulsetrain.protocol.messages import GroupStatus, RankStatus, WorldNode
from pulsetrain.simulate.spec import FleetFault, FleetSpec
from pulsetrain.simulate.telemetry import loss_of
from pulsetrain.simulate.timing import StepTimes, reduce_seconds, simulate_step
from trials.score import scored

NS = 1e9
STEPS = 200
PAYLOAD = 1 << 28


def spec_of(
    ranks: int, *, seed: int = 0, faults: tuple[FleetFault, ...] = (), steps: int = STEPS
) -> FleetSpec:
    """A fleet of tensor-parallel 8 and 4 or 8 stages; `ranks` that do not divide are rounded down."""
    tp, pp = 8, 8 if ranks >= 4096 else 4
    whole = ranks - ranks % (tp * pp)
    return FleetSpec(
        ranks=whole, tp=tp, pp=pp, steps=steps, seed=seed, microbatches=2, faults=faults, job="fleet"
    )


def timings_of(spec: FleetSpec) -> Timings:
    """The timings of all steps, as `load_timings.load` reads them of a store."""
    size = (spec.steps, spec.ranks)
    values = {name: np.zeros(size) for name in (*PARTS, *NUMBERS)}
    for row in range(spec.steps):
        step = spec.first_step + row
        times = simulate_step(spec, step)
        for name, value in _parts(spec, times).items():
            values[name][row] = (value * NS).reshape(-1)
        values["duration_ns"][row] = times.length * NS
        values["loss"][row] = loss_of(spec, step)
        values["grad_norm"][row] = 0.5 * values["loss"][row]
    values["tokens"][:] = spec.tokens
    values["flops"][:] = 1e12
    ranks = np.arange(spec.ranks)
    stages = ranks // (spec.tp * spec.dp)
    last = np.broadcast_to(stages == spec.pp - 1, size)
    values["loss"][~last] = np.nan
    return Timings(
        job=spec.job,
        attempt=0,
        now_ns=spec.start_ns,
        steps=np.arange(spec.first_step, spec.first_step + spec.steps),
        ranks=ranks,
        nodes=np.array([spec.node(r) for r in range(spec.ranks)]),
        stages=stages,
        parts={name: values[name] for name in PARTS},
        numbers={name: values[name] for name in NUMBERS},
        logged={"loss": last, "grad_norm": np.ones(size, np.bool_)},
        first_step=spec.first_step - 2,
        topology_known=True,
    )


def _parts(spec: FleetSpec, times: StepTimes) -> dict[str, NDArray[np.float64]]:
    forward, backward = times.forward_own.sum(axis=-1), times.backward_own.sum(axis=-1)
    inside = (times.forward - times.forward_own).sum(axis=-1) + (times.backward - times.backward_own).sum(
        axis=-1
    )
    waits = times.forward_wait.sum(axis=-1) + times.backward_wait.sum(axis=-1)
    return {
        "compute": forward + backward + times.optimizer,
        "wait": waits + (inside if spec.tp > 1 else 0.0) + (times.reduce if spec.dp > 1 else 0.0),
        "forward": forward,
        "backward": backward,
        "optimizer": times.optimizer,
        "data": times.data,
        "gc": times.gc,
        "gc_longest": times.gc,
    }


def transfers_of(spec: FleetSpec) -> tuple[Transfers, dict[str, tuple[int, ...]]]:
    """The gradient reduction of every data-parallel group over the steps, and who is in which group."""
    ranks = np.arange(spec.ranks).reshape(spec.pp, spec.dp, spec.tp)
    names = tuple(f"dp-{i}" for i in range(spec.pp * spec.tp))
    draw = np.random.default_rng((spec.seed, 7))
    rows = []
    for step in range(spec.first_step, spec.first_step + spec.steps):
        seconds = reduce_seconds(spec, step)[:, 0, :].reshape(-1)
        rows.append(seconds * draw.normal(1.0, spec.noise, seconds.shape) * NS / PAYLOAD)
    transfers = Transfers(
        steps=np.arange(spec.first_step, spec.first_step + spec.steps),
        groups=names,
        phases=("all_reduce",) * len(names),
        siblings=np.zeros(len(names), np.int64),
        ns_a_byte=np.array(rows),
    )
    columns = ranks.transpose(0, 2, 1).reshape(len(names), spec.dp)
    return transfers, {name: tuple(column.tolist()) for name, column in zip(names, columns, strict=True)}


def look(
    t: Timings, transfers: Transfers, members: Mapping[str, tuple[int, ...]]
) -> dict[str, list[Verdict]]:
    """What every analyzer of timings says, by name."""
    slow = guarded("straggler", lambda: straggler.find(t))
    return {
        "straggler": slow,
        "slow_link": guarded("slow_link", lambda: links.find(t, transfers, members, slow)),
        "fail_slow": guarded("fail_slow", lambda: fail_slow.find(t, recovered=False)),
        "stage_imbalance": guarded("stage_imbalance", lambda: imbalance.stages(t)),
        "sequence_imbalance": guarded("sequence_imbalance", lambda: imbalance.sequences(t)),
        "data_stall": guarded("data_stall", lambda: stalls.find(t, stalls.DATA)),
        "gc_pause": guarded("gc_pause", lambda: stalls.find(t, stalls.GC)),
        "numerics": guarded("numerics", lambda: numerics.find(t)),
        "mfu": guarded("mfu", lambda: mfu.find(t)),
    }


def stuck(spec: FleetSpec, culprit: int) -> watch.JobView:
    """All ranks of a fleet as their heartbeats have them 10 s after one of them stopped in its backward."""
    ranks = np.arange(spec.ranks).reshape(spec.pp, spec.dp, spec.tp)
    tensor = [[tuple(ranks[p, d, :].tolist()) for d in range(spec.dp)] for p in range(spec.pp)]
    data = [[tuple(ranks[p, :, k].tolist()) for k in range(spec.tp)] for p in range(spec.pp)]
    statuses = []
    for rank in range(spec.ranks):
        p, d, k = _place(spec, rank)
        groups = (
            _group(f"tp-{p * spec.dp + d}", tensor[p][d], rank, culprit, late=False),
            _group(f"dp-{p * spec.tp + k}", data[p][k], rank, culprit, late=True),
        )
        statuses.append(_status(rank, spec, groups, running=rank == culprit))
    world = tuple(
        WorldNode(node=spec.node(n * 8), node_rank=n, address="", peer_port=0, nproc=8)
        for n in range(spec.ranks // 8)
    )
    return watch.JobView(
        job=spec.job,
        attempt=0,
        now_ns=0,
        ranks=tuple(statuses),
        median_step_ns=int(0.4 * NS),
        first_step_done=True,
        world=world,
    )


def _place(spec: FleetSpec, rank: int) -> tuple[int, int, int]:
    return rank // (spec.tp * spec.dp), rank // spec.tp % spec.dp, rank % spec.tp


def _group(name: str, members: tuple[int, ...], rank: int, culprit: int, *, late: bool) -> GroupStatus:
    """`late`: all but the culprit are in the group's operation 9, which is not complete."""
    waits = late and rank != culprit
    return GroupStatus(
        group=name,
        members=members,
        enqueued=9 if waits or not late else 8,
        completed=8 if late else 9,
        op="all_reduce" if waits else "",
        op_seq=9 if waits else -1,
        op_bytes=PAYLOAD if waits else 0,
        op_age_ns=int(10 * NS) if waits else 0,
        peer=-1,
    )


def _status(rank: int, spec: FleetSpec, groups: tuple[GroupStatus, ...], *, running: bool) -> RankStatus:
    return RankStatus(
        rank=rank,
        local_rank=rank % spec.ranks_per_node,
        pid=rank + 1,
        state="running" if running else "sleeping",
        last_step=100,
        last_phase="backward" if running else "all_reduce",
        phase_age_ns=int(10 * NS),
        progress=1,
        progress_age_ns=int(10 * NS),
        groups=groups,
        dropped=0,
    )


@dataclass(frozen=True, kw_only=True)
class Planted:
    """One fault of a fleet and the verdict that would be right."""

    kind: str
    fault: FleetFault
    kinds: frozenset[str]
    subjects: frozenset[tuple[str, str]]
    struck: tuple[int, ...]


def planted(spec: FleetSpec, kind: str, draw: random.Random) -> Planted:
    """One fault of `kind` somewhere in the fleet, from step 100 on."""
    rank, node = draw.randrange(spec.ranks), draw.randrange(spec.ranks // spec.ranks_per_node)
    slow, one = frozenset({"straggler", "fail_slow"}), frozenset({("rank", str(rank))})
    name = spec.node(node * spec.ranks_per_node)
    mates = tuple(range(node * spec.ranks_per_node, (node + 1) * spec.ranks_per_node))
    job = frozenset({("job", "")})
    table: dict[
        str, tuple[str, dict[str, float], frozenset[str], frozenset[tuple[str, str]], tuple[int, ...]]
    ] = {
        "slow_rank_1.05x": ("straggler", {"rank": rank, "factor": 1.05}, slow, one, (rank,)),
        "slow_rank_1.1x": ("straggler", {"rank": rank, "factor": 1.1}, slow, one, (rank,)),
        "slow_rank_1.3x": ("straggler", {"rank": rank, "factor": 1.3}, slow, one, (rank,)),
        "slow_node_1.2x": ("straggler", {"factor": 1.2}, slow, frozenset({("node", name)}), mates),
        "drift": ("drift", {"rank": rank, "per_step": 0.002}, slow, one, (rank,)),
        "code_regression": ("slow_all", {"factor": 1.2}, frozenset({"fail_slow", "mfu_decay"}), job, ()),
        "slow_link": (
            "slow_link",
            {"rank": rank, "factor": 2.0},
            frozenset({"slow_link"}),
            frozenset({("group", f"dp-{rank // (spec.tp * spec.dp) * spec.tp + rank % spec.tp}")}),
            (rank,),
        ),
        "long_last_stage": (
            "stage",
            {"stage": spec.pp - 1, "factor": 1.5},
            frozenset({"stage_imbalance"}),
            frozenset({("stage", str(spec.pp - 1))}),
            (),
        ),
        "sequence_skew": ("sequence", {"spread": 0.3}, frozenset({"sequence_imbalance"}), job, ()),
        "data_stall": ("data_stall", {"rank": rank, "seconds": 0.2}, frozenset({"data_stall"}), one, (rank,)),
        "gc_pause": ("gc", {"rank": rank, "seconds": 0.5, "every": 8}, frozenset({"gc_pause"}), one, (rank,)),
        "nan": ("nan", {}, frozenset({"nan"}), job, ()),
        "loss_spike": ("loss_spike", {"factor": 3.0}, frozenset({"loss_spike"}), job, ()),
    }
    what, numbers, kinds, subjects, struck = table[kind]
    since = 0 if kind in ("long_last_stage", "sequence_skew") else 100
    fault = FleetFault(
        kind=what, since=since, numbers=numbers, node=name if kind.startswith("slow_node") else ""
    )
    return Planted(kind=kind, fault=fault, kinds=kinds, subjects=subjects, struck=struck)


KINDS = (
    "slow_rank_1.05x", "slow_rank_1.1x", "slow_rank_1.3x", "slow_node_1.2x", "drift", "code_regression",
    "slow_link", "long_last_stage", "sequence_skew", "data_stall", "gc_pause", "nan", "loss_spike",
)  # fmt: skip


def trials(ranks: int, each: int, seed: int) -> Iterator[dict[str, Any]]:
    """Rows as `watching` makes them: each kind `each` times, one hang and one clean fleet as often."""
    for number in range(each):
        draw = random.Random(f"{seed}/{ranks}/{number}")
        yield clean(spec_of(ranks, seed=seed + number))
        yield _hang(spec_of(ranks, seed=seed + number), draw)
        for kind in KINDS:
            plain = spec_of(ranks, seed=seed + number)
            yield trial(plain, planted(plain, kind, draw))


def clean(spec: FleetSpec) -> dict[str, Any]:
    """The row of a fleet without a fault: one window of all its steps."""
    t = timings_of(spec)
    reported = [f for verdicts in look(t, *transfers_of(spec)).values() for f in findings(verdicts)]
    seconds = float(t.numbers["duration_ns"].max(axis=1).sum() / NS)
    return {
        "what": "clean",
        "mode": f"simulated, {spec.ranks} ranks",
        "steps": spec.steps,
        "seconds": seconds,
        "findings": [scored(f) for f in reported],
    }


def trial(spec: FleetSpec, plan: Planted) -> dict[str, Any]:
    """The row of a fleet with one fault, looked at once at its end."""
    broken = replace(spec, faults=(plan.fault,))
    t = timings_of(broken)
    transfers = transfers_of(broken)
    began_s = time.monotonic()
    reported = [f for verdicts in look(t, *transfers).values() for f in findings(verdicts)]
    return _row(spec, plan.kind, plan.kinds, plan.subjects, plan.struck, reported, time.monotonic() - began_s)


def _hang(spec: FleetSpec, draw: random.Random) -> dict[str, Any]:
    rank = draw.randrange(spec.ranks)
    view = stuck(spec, rank)
    began_s = time.monotonic()
    reported = findings(watch.hang(view))
    took_s = time.monotonic() - began_s
    subjects = frozenset({("rank", str(rank))})
    return _row(spec, "hang", frozenset({"hang"}), subjects, (rank,), reported, took_s)


def _row(
    spec: FleetSpec,
    kind: str,
    kinds: frozenset[str],
    subjects: frozenset[tuple[str, str]],
    struck: tuple[int, ...],
    reported: Sequence[Finding],
    took_s: float,
) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "steps": -1,
        "seconds": took_s,
        "findings": [scored(f) for f in reported],
        "abstained": [],
        "hypotheses": [],
        "root_confidence": 0.0,
    }
    if reported:
        nodes = {(spec.job, r): spec.node(r) for r in range(spec.ranks)}
        incident = incidents.join(reported, Topology(node_of=nodes))[0]
        entry["hypotheses"] = [h["root"] for h in incident["hypotheses"]][:3]
        entry["root_confidence"] = incident["hypotheses"][0]["confidence"]
    return {
        "what": "trial",
        "mode": f"simulated, {spec.ranks} ranks",
        "kind": kind,
        "struck": list(struck),
        "nodes": sorted({spec.node(r) for r in struck}),
        "kinds": sorted(kinds),
        "subjects": sorted(subjects),
        "within": 0,
        "stalls": kind == "hang",
        "looks": [entry],
    }
