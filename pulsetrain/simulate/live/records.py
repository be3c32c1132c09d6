"""The rows that a simulated fleet records: steps, spans, heartbeats, counters, checkpoints, last lines.

Functions of what happened, the same for the same seed. Where they write less than real agents do, the page of
the command says so (docs/commands/simulate.md).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pulsetrain.collectors.machine.tail import severity
from pulsetrain.records.columns import Column, Columns, coded
from pulsetrain.simulate.live.fleet import LiveFleet
from pulsetrain.simulate.live.heartbeats import Moment, Ranks, pid_of
from pulsetrain.simulate.live.job import Exit
from pulsetrain.simulate.live.plan import LiveFault, port_name
from pulsetrain.simulate.live.training import PHASES, Attempt, Step
from pulsetrain.simulate.telemetry import span_rows, step_rows, topology

PORTS = 8
LINE_BYTES_S = 50e9  # of one port of 400 Gbit/s
STATES = ("running", "sleeping", "stopped", "gone")
# stage, tier, bytes a second of one rank. See `checkpoint` for what the stages are.
STAGES = (
    ("copy", "memory", 8e9),
    ("stall", "memory", 200e9),
    ("replicate", "peer", 4e9),
    ("persist", "storage", 1e9),
    ("commit", "storage", 1e9),
)


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line that a rank printed before it ended."""

    ts_ns: int
    exit: Exit
    attempt: int
    message: str


def of_step(step: Step, begins_ns: int, *, all_spans: bool) -> list[Columns]:
    """The rows of a completed step that began at `begins_ns` (UTC): every rank's step and its spans.

    Without `all_spans` those of communication are left out.
    """
    spec = replace(step.spec, start_ns=begins_ns)
    return [
        step_rows(spec, step.number, step.times, 0.0),
        span_rows(spec, step.number, step.times, 0.0, communication=all_spans),
    ]


def of_held_step(attempt: Attempt, begins_ns: int) -> list[Columns]:
    """The spans of the step that a rank holds up, those in flight as open."""
    step, hung = attempt.step, min(attempt.held)
    spec = replace(step.spec, start_ns=begins_ns)
    return [span_rows(spec, step.number, step.times, 0.0, hung=hung)]


def of_launch(attempt: Attempt, now_ns: int) -> list[Columns]:
    """Where every rank of a new attempt stands."""
    return [topology(replace(attempt.spec, start_ns=now_ns))]


def of_heartbeats(
    fleet: LiveFleet, attempt: int, nodes: Sequence[str], ranks: Ranks, moment: Moment, ts_ns: int, seq: int
) -> Columns:
    """One heartbeat of each node and of each of its ranks. `ranks` are those of `nodes`, in their order."""
    rows, per_node = len(nodes) + len(ranks), fleet.ranks_per_node
    first = len(nodes)
    rank = np.concatenate([np.full(first, -1), ranks])
    node = np.concatenate([np.arange(first), np.repeat(np.arange(first), per_node)])
    local = np.concatenate([np.zeros(first, np.int64), ranks % per_node])
    values: dict[str, object] = {
        "node": coded(node, nodes),
        "ts": ts_ns,
        "seq": seq,
        "job": fleet.job,
        "attempt": attempt,
        "rank": rank,
        "pid": np.where(rank < 0, 1, pid_of(attempt, 0) + local),
    }
    return Columns.from_values("heartbeats", rows, values | _progress(first, ranks, moment))


def _progress(nodes: int, ranks: Ranks, moment: Moment) -> dict[str, object]:
    """States, steps and phases of nodes and ranks."""
    where, zeros = moment.positions, np.zeros(nodes, np.int64)
    phase = np.full(len(ranks), len(PHASES) - 1) if where is None else where.phase
    last_step = np.full(nodes + len(ranks), -1 if where is None else where.step - 1)
    age_ns = np.zeros(len(ranks)) if where is None else (moment.now_s - where.since_s) * 1e9
    state = np.isin(phase, [PHASES.index("all_reduce"), PHASES.index("all_reduce") + 1]).astype(np.int64)
    for rank, name in moment.states.items():
        state[ranks == rank] = STATES.index(name)
    return {
        "state": coded(np.concatenate([zeros, state]), STATES),
        "last_step": last_step,
        "last_phase": _named(np.concatenate([zeros - 1, phase]), PHASES),
        "phase_age_ns": np.concatenate([zeros, np.maximum(0, age_ns).astype(np.int64)]),
    }


def _named(codes: Ranks, names: Sequence[str]) -> Column:
    """Names by code, "" for -1. Names may be equal."""
    unique = ["", *sorted({*names} - {""})]
    table = np.array([unique.index(name) for name in (*names, "")])
    return coded(table[codes], unique)


def of_counters(
    fleet: LiveFleet,
    nodes: Sequence[str],
    flapping: Sequence[LiveFault],
    up_s: float,
    plan_s: float,
    ts_ns: int,
) -> Columns:
    """One sample of every port of `nodes`: state, bytes both ways, how often the link went down.

    The fleet has run for `up_s`. Faults of `flapping` are those that have begun by `plan_s`. A flap is too
    short to be seen in the state.
    """
    names = ("rdma_port_state", "rdma_transmit_bytes", "rdma_receive_bytes", "rdma_link_downed_total")
    port = np.tile(np.repeat(np.arange(PORTS), len(names)), len(nodes))
    name = np.tile(np.arange(len(names)), PORTS * len(nodes))
    node = np.repeat(np.arange(len(nodes)), PORTS * len(names))
    moved = (
        np.floor(up_s * 0.3 * LINE_BYTES_S * (1 + 0.001 * port) / 4) * 4
    )  # the files count words of 4 bytes
    value = np.select([name == 0, name == 3], [4.0, 0.0], moved)
    for fault in flapping:
        since_s = min(plan_s, fault.at_s + fault.for_s) - fault.at_s
        downs = int(since_s // fault.number("every_s")) + 1
        at = (node == _index(nodes, fault.node)) & (port == int(fault.number("port")))
        value[at & (name == 3)] = downs
    values = {
        "node": coded(node, nodes),
        "device": coded(port, [port_name(each) for each in range(PORTS)]),
        "name": coded(name, names),
        "ts": ts_ns,
        "value": value,
    }
    return Columns.from_values("metrics", len(value), values)


def _index(names: Sequence[str], name: str) -> int:
    return names.index(name) if name in names else -1


def of_checkpoint(fleet: LiveFleet, attempt: int, step: int, ts_ns: int) -> Columns:
    """Every stage of every rank's checkpoint of a step that ended at `ts_ns` (UTC)."""
    rng = np.random.default_rng((fleet.seed, step, 2))
    stage = np.tile(np.arange(len(STAGES)), fleet.ranks)
    rank = np.repeat(np.arange(fleet.ranks), len(STAGES))
    took_s = fleet.checkpoint_bytes / np.array([rate for _, _, rate in STAGES])[stage]
    took_ns = (took_s * rng.uniform(0.9, 1.1, len(rank)) * 1e9).astype(np.int64)
    tiers = sorted({tier for _, tier, _ in STAGES})
    tier = np.array([tiers.index(tier) for _, tier, _ in STAGES])[stage]
    values = {
        "ts": ts_ns + took_ns,
        "job": fleet.job,
        "attempt": attempt,
        "rank": rank,
        "step": step,
        "stage": coded(stage, [name for name, _, _ in STAGES]),
        "tier": coded(tier, tiers),
        "bytes": fleet.checkpoint_bytes,
        "duration_ns": took_ns,
    }
    return Columns.from_values("checkpoints", len(rank), values)


def of_event(
    fleet: LiveFleet, kind: str, detail: object, ts_ns: int, *, node: str = "", rank: int = -1
) -> Columns:
    """One event in the simulation's name."""
    values = {
        "ts": ts_ns, "node": node, "job": fleet.job, "attempt": -1, "rank": rank, "kind": kind,
        "actor": "pulsetrain simulate", "detail": json.dumps(detail),
    }  # fmt: skip
    return Columns.from_values("events", 1, values)


def last_words(code: int) -> tuple[str, ...]:
    """What a rank prints before it ends."""
    return (
        "Traceback (most recent call last):",
        '  File "simulated_train.py", line 88, in <module>',
        f"RuntimeError: this rank was simulated to end with code {code}",
    )


def of_lines(fleet: LiveFleet, lines: Sequence[Line]) -> Columns:
    """Lines of stderr."""
    rows = [
        {
            "ts": line.ts_ns, "node": line.exit.node, "job": fleet.job, "attempt": line.attempt,
            "rank": line.exit.rank, "source": "stderr", "severity": severity(line.message),
            "message": line.message, "rule": "",
        }
        for line in lines
    ]  # fmt: skip
    return Columns.from_rows("logs", rows)
