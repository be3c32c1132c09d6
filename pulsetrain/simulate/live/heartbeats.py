"""Heartbeats of simulated nodes as text: the messages that `protocol.messages.encode` would write.

They are put together from pieces that stay the same, because one process writes those of thousands of nodes
each second. Every field of the protocol is there, so a heartbeat costs the hub what a real one costs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pulsetrain.protocol.messages import LISTED_MEMBERS, ProcessState
from pulsetrain.simulate.live.fleet import LiveFleet
from pulsetrain.simulate.live.job import Holding
from pulsetrain.simulate.live.training import BACKWARD, IDLE, NORM, PHASES, REDUCE, Positions
from pulsetrain.simulate.spec import FleetSpec
from pulsetrain.simulate.telemetry import group_name

TIMEOUT_S = 600  # torch's default for NCCL
SILENT_NS = 1_000_000_000  # an agent reads the process of a rank that is silent for so long
LOOPS = ("hub_link", "zygote", "shipper", "replicate", "persist", "drain_rings", "sample", "echo_output")
DESCRIPTION = json.dumps(
    {
        "source": "simulated",
        "steps": "explicit",
        "phases": "explicit",
        "loss": "explicit",
        "tokens": "explicit",
    }
)
_DESCRIBED = json.dumps(DESCRIPTION)
_GAUGES = '{"gpus":0,"spool_bytes":0,"dropped_rows":0,"ring_dropped":0,"agent_cpu_ratio":0.01}'
_LOOPS = (
    f'"name":{json.dumps(LOOPS)},"failures":{{"same":0}},"failures_in_a_row":{{"same":0}},'
    '"last_error":{"same":""},"age_s":{"same":0.2},"stale":{"same":false}'
)
_ACTIVITY = (
    '"cpu_ratio":{"same":0.0},"helper_cpu_ratio":{"same":0.0},"io_bytes_s":{"same":0.0},'
    '"waits_in":{"same":"lock"}'
)
_BYTES = {"dp": 1 << 28, "world": 4}

Ranks: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Where some ranks stand now, and which processes neither run nor wait.

    `positions` is None before the first step begins. The attempt goes on from `resumed_step`.
    """

    now_s: float
    positions: Positions | None
    states: Mapping[int, ProcessState]
    resumed_step: int


@dataclass(frozen=True, kw_only=True)
class NodeReport:
    """What a heartbeat tells of one node. `at` is the place of its first rank in the positions.

    `describe`: its ranks say how they are instrumented.
    """

    node: str
    seq: int
    ts_ns: int
    attempt: int
    ranks: range
    at: int
    holding: Holding | None
    describe: bool = False


class HeartbeatWriter:
    """Writes the heartbeats of one job. `spec` says which ranks belong to which groups."""

    def __init__(self, fleet: LiveFleet, spec: FleetSpec) -> None:
        self._job, self._per_node, self._spec = json.dumps(fleet.job), fleet.ranks_per_node, spec
        self._sizes = {"tp": spec.tp, "pp": spec.pp, "dp": spec.dp, "world": spec.ranks}
        self._kinds = [kind for kind, size in self._sizes.items() if size > 1 or kind == "world"]
        self._members: dict[int, str] = {}
        self._held: dict[str, tuple[Holding | None, str]] = {}

    def write(self, reports: Sequence[NodeReport], moment: Moment) -> list[str]:
        """The heartbeats of several nodes, each as a line of JSON."""
        ranks = None if moment.positions is None else _Written(moment, moment.positions, self._kinds)
        return [self._line(report, moment, ranks) for report in reports]

    def _line(self, report: NodeReport, moment: Moment, written: _Written | None) -> str:
        statuses, activity = self._ranks(report, moment, written) if report.ranks else ("", "")
        return (
            f'{{"type":"Heartbeat","node":"{report.node}","seq":{report.seq},"ts_ns":{report.ts_ns},'
            f'"job":{self._job},"attempt":{report.attempt},"ranks":{statuses or "[]"},'
            f'"held":{self._holding(report)},"gauges":{_GAUGES},'
            f'"loops":{_rows(len(LOOPS), _LOOPS, turns=report.seq)},"activity":{activity or "[]"}}}'
        )

    def _ranks(self, report: NodeReport, moment: Moment, written: _Written | None) -> tuple[str, str]:
        """The statuses of a node's ranks, and what the processes of its silent ranks do."""
        here, count = slice(report.at, report.at + len(report.ranks)), len(report.ranks)
        phases = [IDLE] * count if written is None else written.phase[here]
        age_ns = [0] * count if written is None else written.age_ns[here]
        done = [1] * count if written is None else written.done[here]
        step = -1 if written is None else written.step
        states = [
            moment.states.get(rank) or ("sleeping" if PHASES[phase] == "all_reduce" else "running")
            for rank, phase in zip(report.ranks, phases, strict=True)
        ]
        columns = (
            f'"rank":{[*report.ranks]},"local_rank":{[*range(count)]},'
            f'"pid":{[pid_of(report.attempt, local) for local in range(count)]},'
            f'"state":{json.dumps(states)},'
            f'"last_step":{[step - 1 if many > len(PHASES) else -1 for many in done]},'
            f'"last_phase":{json.dumps([PHASES[phase] for phase in phases])},'
            f'"phase_age_ns":{age_ns},"progress":{done},"progress_age_ns":{age_ns},'
            f'"resumed_step":{{"same":{moment.resumed_step}}}'
        )
        if written is not None:
            columns += f',"groups":{written.groups(here, self._static(report.ranks))}'
        if report.describe:
            columns += f',"instrumentation":{{"same":{_DESCRIBED}}}'
        silent = [at for at in range(count) if age_ns[at] > SILENT_NS and states[at] != "gone"]
        activity = _rows(
            len(silent),
            _ACTIVITY,
            rank=[report.ranks[at] for at in silent],
            still_ns=[age_ns[at] for at in silent],
        )
        return f'{{"rows":{count},"columns":{{{columns}}}}}', activity

    def _static(self, ranks: range) -> str:
        """Names and members of the groups of a node's ranks: the part that never changes."""
        if ranks.start not in self._members:
            groups = [_group(self._spec, kind, rank) for rank in ranks for kind in self._kinds]
            codes: dict[tuple[str, range], int] = {}
            coded = [codes.setdefault(group, len(codes)) for group in groups]
            names, members = [name for name, _ in codes], [_listed(span) for _, span in codes]
            self._members[ranks.start] = (
                f'"group":{{"values":{json.dumps(names)},"codes":{coded}}},'
                f'"members":{{"values":{json.dumps(members)},"codes":{coded}}},'
                f'"timeout_s":{{"same":{TIMEOUT_S}}}'
            )
        return self._members[ranks.start]

    def _holding(self, report: NodeReport) -> str:
        """The checkpoints of a node."""
        holding = report.holding
        if holding is None:
            return "[]"
        known, text = self._held.get(report.node, (None, ""))
        if known is not holding:
            rows = [
                (rank, step, tier)
                for step in holding.steps
                for tier, ranks in (("memory", holding.own), ("peer", holding.partners))
                for rank in ranks
            ]
            rank, step, tier = (list(each) for each in zip(*rows, strict=True))
            text = _rows(len(rows), "", rank=rank, step=step, tier=tier)
            self._held[report.node] = (holding, text)
        return text


class _Written:
    """Ranks at one moment, as the columns of their heartbeats."""

    def __init__(self, moment: Moment, where: Positions, kinds: Sequence[str]) -> None:
        age_ns = np.maximum(0, (moment.now_s - where.since_s) * 1e9).astype(np.int64)
        self.step, self._age_ns = where.step, age_ns
        self.phase, self.age_ns = where.phase.tolist(), age_ns.tolist()
        self.done = (where.done + 1).tolist()
        numbers = [_numbers(kind, where) for kind in kinds]
        self._enqueued = np.stack([enqueued for enqueued, _ in numbers], axis=1)
        self._completed = np.stack([completed for _, completed in numbers], axis=1)
        self._bytes = np.array([_BYTES.get(kind, 0) for kind in kinds])

    def groups(self, ranks: slice, static: str) -> str:
        """The groups of some ranks. `static` is the text of names and members."""
        enqueued, completed = self._enqueued[ranks], self._completed[ranks]
        flies = (enqueued > completed).reshape(-1)
        columns = (
            f'{static},"enqueued":{enqueued.reshape(-1).tolist()},'
            f'"completed":{completed.reshape(-1).tolist()}'
        )
        if flies.any():
            size = np.broadcast_to(self._bytes, enqueued.shape).reshape(-1)
            age_ns = np.repeat(self._age_ns[ranks], enqueued.shape[1])
            columns += (
                f',"op":{json.dumps(np.where(flies, "all_reduce", "").tolist())},'
                f'"op_seq":{np.where(flies, enqueued.reshape(-1), -1).tolist()},'
                f'"op_bytes":{np.where(flies, size, 0).tolist()},'
                f'"op_age_ns":{np.where(flies, age_ns, 0).tolist()}'
            )
        return (
            f'{{"lengths":{{"same":{enqueued.shape[1]}}},'
            f'"items":{{"rows":{enqueued.size},"columns":{{{columns}}}}}}}'
        )


def _numbers(kind: str, where: Positions) -> tuple[Ranks, Ranks]:
    """The newest operation that each rank has enqueued and completed in its group of a kind.

    The numbers are those of the spans (`telemetry`). A forward has one collective of the tensor-parallel
    group and one transfer, a backward two and one. Of the others a step has one each.
    """
    step, phase = where.step, where.phase
    passed = (phase >= BACKWARD).astype(np.int64) + (phase > BACKWARD)
    if kind == "tp":
        newest = 4 * step + np.array([-1, 0, 3])[passed]
        return newest, newest
    if kind == "pp":
        return 2 * step - 1 + passed, 2 * step - 1 + passed
    during = REDUCE if kind == "dp" else NORM
    return step - 1 + (phase >= during), step - 1 + (phase > during)


def _rows(count: int, same: str, **columns: object) -> str:
    """`count` rows as `protocol.packing` writes them. `same` is the text of columns that never change."""
    if not count:
        return ""
    texts = [f'"{name}":{json.dumps(_column(value))}' for name, value in columns.items()]
    return f'{{"rows":{count},"columns":{{{",".join([*texts, same] if same else texts)}}}}}'


def _column(value: object) -> object:
    return value if isinstance(value, list) else {"same": value}


def pid_of(attempt: int, local_rank: int) -> int:
    """The process of a rank: another one in each attempt."""
    return 10_000 + 100 * (attempt % 1000) + local_rank


def rank_array(ranks: Sequence[range]) -> Ranks:
    """The ranks of several nodes in one array."""
    parts = [np.arange(each.start, each.stop) for each in ranks]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _group(spec: FleetSpec, kind: str, rank: int) -> tuple[str, range]:
    """Name and members of the group of a kind that a rank belongs to."""
    tp, dp, pp = rank % spec.tp, rank // spec.tp % spec.dp, rank // (spec.tp * spec.dp)
    stage = spec.dp * spec.tp
    if kind == "tp":
        return group_name(kind, pp * spec.dp + dp), range(rank - tp, rank - tp + spec.tp)
    if kind == "pp":
        return group_name(kind, dp * spec.tp + tp), range(rank % stage, spec.ranks, stage)
    if kind == "dp":
        return group_name(kind, pp * spec.tp + tp), spec.dp_peers(rank)
    return group_name(kind, 0), range(spec.ranks)


def _listed(span: range) -> object:
    """Members as the protocol writes them: few in a list, many as first, distance and number."""
    return [*span] if len(span) <= LISTED_MEMBERS else {"span": [span.start, span.step, len(span)]}
