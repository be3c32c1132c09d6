"""The dependency graph of one training step of a pipeline, from the operations that one replica recorded.

All replicas and all steps share one graph, so it is built once and swept for all of them together. The rules
are those of the published what-if analysis (arXiv 2505.05713, section 3): in-rank stream order, compute to
communication, and groups of operations that begin their transfer together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pulsetrain.core.errors import UsageError

CLOCK_SLACK_S = 5e-5

FORWARD, BACKWARD = "forward-compute", "backward-compute"
COMPUTE = (FORWARD, BACKWARD)
P2P = ("forward-send", "forward-recv", "backward-send", "backward-recv")
GATHER, SCATTER = "params-all-gather", "grads-reduce-scatter"
SEPARATE = "separate-grads-all-reduce"
LAYERNORM, EMBEDDING = "layernorm-grads-all-reduce", "embedding-grads-all-reduce"
CLIP, OPTIMIZER, GC = "optimizer-clip-main-grad", "optimizer", "gc"
REPLICA_SYNC = (GATHER, SCATTER, SEPARATE, CLIP)
COMMUNICATION = (*P2P, GATHER, SCATTER, SEPARATE, LAYERNORM, EMBEDDING, CLIP)
KNOWN = (*COMPUTE, *COMMUNICATION, OPTIMIZER, GC)

_PEER = {
    "forward-send": ("forward-recv", 1),
    "forward-recv": ("forward-send", -1),
    "backward-send": ("backward-recv", -1),
    "backward-recv": ("backward-send", 1),
}


@dataclass(frozen=True, kw_only=True)
class Op:
    """One operation of one stage in the step that serves as the model. Times: seconds, stage's clock."""

    index: int
    kind: str
    seq: int
    stage: int
    start: float
    end: float
    chunk: int  # model chunk within the stage; -1: not known
    model_chunk: int  # model chunk within the model; -1: not known


@dataclass(frozen=True, kw_only=True)
class Wave:
    """Operations that begin together: a compute operation alone, or the members of one communication.

    `members` are operation indices, `after` their predecessors in the same order; `replicas` is true where
    the data-parallel replicas wait for each other too.
    """

    members: tuple[int, ...]
    after: tuple[tuple[int, ...], ...]
    communication: bool
    replicas: bool


class _Builder:
    """Collects edges and groups; every rule of the model is one method."""

    def __init__(self, ops: Iterable[Op], *, replicated: bool) -> None:
        self.ops = list(ops)
        self.by_name = {(op.kind, op.seq, op.stage): op for op in self.ops}
        self.stages = sorted({op.stage for op in self.ops})
        self.after: dict[int, list[int]] = {op.index: [] for op in self.ops}
        self.groups: list[tuple[int, ...]] = []
        kinds = {op.kind for op in self.ops}
        self.replicated = replicated or bool(kinds & {GATHER, SCATTER, SEPARATE})
        self.overlapped = SEPARATE in kinds
        self.kinds = kinds
        self.chunks = 1 + max([0, *(op.chunk for op in self.ops)])

    def of(self, stage: int, *kinds: str) -> list[Op]:
        """Operations of a stage in the order in which they started."""
        chosen = [op for op in self.ops if op.stage == stage and op.kind in kinds]
        return sorted(chosen, key=lambda op: (op.start, op.seq, op.kind))

    def edge(self, before: Op | None, then: Op | None) -> None:
        if before is not None and then is not None and before is not then:
            self.after[then.index].append(before.index)

    def chain(self, ops: Iterable[Op], first_after: Iterable[Op] = ()) -> None:
        last = list(first_after)
        for op in ops:
            for before in last:
                self.edge(before, op)
            last = [op]

    def streams(self) -> None:
        """A stage has one stream for compute, one for each kind of transfer, and one for data parallelism."""
        for stage in self.stages:
            self.chain(self.of(stage, *COMPUTE))
            for kind in P2P:
                self.chain(self.of(stage, kind))
            self.chain(self.of(stage, GATHER, SCATTER))

    def pipeline(self) -> None:
        """Match each transfer with its compute operation and with the transfer on the other side."""
        real: dict[tuple[str, int], list[Op]] = {}
        for stage in self.stages:
            for kind in P2P:
                for transfer, compute in self._matched(stage, kind):
                    self._attach(kind, transfer, compute)
                    if not self._outside(kind, compute):
                        real.setdefault((kind, stage), []).append(transfer)
            self._first_backward(stage)
        for kind in ("forward-recv", "backward-recv"):
            if kind not in self.kinds:
                self._unrecorded_receives(kind, real)
        paired: set[int] = set()
        for pair in self._pairs(real):
            self.groups.append(tuple(op.index for op in pair))
            paired.update(op.index for op in pair)
        self.groups += [(op.index,) for op in self.ops if op.kind in P2P and op.index not in paired]

    def _matched(self, stage: int, kind: str) -> Iterator[tuple[Op, Op]]:
        """Transfers of `kind` beside their compute operation.

        A profiler also records transfers that were never launched: receives after the last compute operation
        and sends before the end of the first one are skipped.
        """
        computes = self.of(stage, _compute_of(kind))
        if not computes:
            return
        last_start = max(op.start for op in computes) + CLOCK_SLACK_S
        first_end = min(op.end for op in computes) - CLOCK_SLACK_S
        receives = kind.endswith("recv")
        transfers = [
            op for op in self.of(stage, kind) if (op.start <= last_start if receives else op.end >= first_end)
        ]
        missing = len(computes) - len(transfers)
        if missing < 0 or (transfers and missing > 1):
            raise UsageError(
                f"stage {stage}: {len(transfers)} {kind} for {len(computes)} {_compute_of(kind)}; "
                "allowed: as many, one fewer, or none"
            )
        ordered = sorted(computes, key=lambda op: op.seq)
        skip = (
            1 if receives and missing == 1 and transfers else 0
        )  # the first receive of the model is not always recorded
        yield from zip(transfers, ordered[skip:], strict=False)

    def _attach(self, kind: str, transfer: Op, compute: Op) -> None:
        """A send follows its compute operation; a receive precedes it and follows the one before."""
        if kind.endswith("send"):
            self.edge(compute, transfer)
            return
        self.edge(transfer, compute)
        self.edge(self.by_name.get((compute.kind, compute.seq - 1, compute.stage)), transfer)

    def _outside(self, kind: str, compute: Op) -> bool:
        """True where the other side would be before the first or after the last chunk of the model."""
        chunk = compute.model_chunk if compute.model_chunk >= 0 else compute.stage
        return not 0 <= chunk + _PEER[kind][1] < self.chunks * len(self.stages)

    def _pairs(self, real: dict[tuple[str, int], list[Op]]) -> Iterator[tuple[Op, Op]]:
        for (kind, stage), transfers in real.items():
            if not kind.endswith("send"):
                continue
            other, step = _PEER[kind]
            position = (self.stages.index(stage) + step) % len(self.stages)
            peers = real.get((other, self.stages[position]), [])
            yield from zip(transfers, peers, strict=False)

    def _unrecorded_receives(self, kind: str, real: dict[tuple[str, int], list[Op]]) -> None:
        """Where nobody recorded receives, compute waits for the send, or for the compute beyond it."""
        send, step = _PEER[kind]
        if len(self.stages) < 2:
            return
        for position, stage in enumerate(self.stages):
            peer = self.stages[(position + step) % len(self.stages)]
            sources = real.get((send, peer)) or self._inner(peer, send)
            for source, compute in zip(sources, self._inner(stage, kind), strict=False):
                self.edge(source, compute)

    def _inner(self, stage: int, kind: str) -> list[Op]:
        """Compute operations, by number, whose transfer of `kind` has another side."""
        computes = sorted(self.of(stage, _compute_of(kind)), key=lambda op: op.seq)
        return [op for op in computes if not self._outside(kind, op)]

    def _first_backward(self, stage: int) -> None:
        """The first backward transfer is launched right after the last but one forward of the warm-up."""
        computes = self.of(stage, *COMPUTE)
        first = next((i for i, op in enumerate(computes) if op.kind == BACKWARD), 0)
        if first >= 2:
            for kind in ("backward-recv", "backward-send"):
                self.edge(computes[first - 2], self.by_name.get((kind, 0, stage)))

    def gathers(self) -> None:
        """The first forward of a chunk waits for the last all-gather of that chunk's parameters."""
        for stage in self.stages:
            forwards = self.of(stage, FORWARD)
            seen: set[int] = set()
            for gather in sorted(self.of(stage, GATHER), key=lambda op: -op.seq):
                if gather.chunk in seen:
                    continue
                seen.add(gather.chunk)
                users = [op for op in forwards if op.chunk == gather.chunk or gather.chunk < 0]
                self.edge(gather, min(users, key=lambda op: op.start, default=None))

    def scatters(self) -> None:
        """Overlapped: the first reduce-scatter of a chunk waits for that chunk's last backward."""
        for stage in self.stages:
            backwards = self.of(stage, BACKWARD)
            seen: set[int] = set()
            for scatter in sorted(self.of(stage, SCATTER), key=lambda op: op.seq):
                if scatter.chunk in seen:
                    continue
                seen.add(scatter.chunk)
                makers = [op for op in backwards if op.chunk == scatter.chunk or scatter.chunk < 0]
                self.edge(max(makers, key=lambda op: op.end, default=None), scatter)

    def epilogue(self) -> None:
        """What follows the last backward, in order; what the trace lacks is left out of the chain."""
        for stage in self.stages:
            computes = self.of(stage, *COMPUTE)
            last = max(computes, key=lambda op: op.end, default=None)
            collect = self.by_name.get((GC, 0, stage))
            self.edge(last, collect)
            anchor = [op for op in (collect or last,) if op is not None]
            scatters = sorted(self.of(stage, SCATTER), key=lambda op: op.seq)
            middle: list[Op] = []
            if self.replicated and self.overlapped:
                anchor += scatters[-1:]
                middle = self._present(stage, SEPARATE)
            elif self.replicated:
                middle = scatters
            before = self._present(stage, LAYERNORM, EMBEDDING)
            self.chain([*before, *middle, *self._present(stage, CLIP, OPTIMIZER)], anchor)

    def _present(self, stage: int, *kinds: str) -> list[Op]:
        found = (self.by_name.get((kind, 0, stage)) for kind in kinds)
        return [op for op in found if op is not None]

    def collectives(self) -> None:
        """Embedding gradients meet between the first and the last stage; clipping meets everywhere."""
        for kinds in (GATHER, SCATTER, SEPARATE):
            self.groups += [(op.index,) for op in self.ops if op.kind == kinds]
        for kind in (EMBEDDING, CLIP):
            members = tuple(op.index for op in self.ops if op.kind == kind and op.seq == 0)
            if members:
                self.groups.append(members)


def _compute_of(kind: str) -> str:
    return FORWARD if kind.startswith("forward") else BACKWARD


def build(ops: Iterable[Op], *, replicated: bool) -> list[Wave]:
    """Waves in an order in which each comes after everything it waits for.

    `replicated`: there is more than one data-parallel replica. Raises `UsageError` for operations that wait
    for each other in a circle.
    """
    builder = _Builder(ops, replicated=replicated)
    builder.streams()
    builder.pipeline()
    if builder.replicated:
        builder.gathers()
        if builder.overlapped:
            builder.scatters()
    builder.epilogue()
    builder.collectives()
    return _ordered(builder)


def _ordered(builder: _Builder) -> list[Wave]:
    groups = list(builder.groups)
    grouped = {index for members in groups for index in members}
    groups += [(op.index,) for op in builder.ops if op.index not in grouped]
    wave_of = {index: g for g, members in enumerate(groups) for index in members}
    waits = [
        {wave_of[b] for m in members for b in builder.after[m]} - {g} for g, members in enumerate(groups)
    ]
    followers: list[list[int]] = [[] for _ in groups]
    for g, before in enumerate(waits):
        for b in before:
            followers[b].append(g)
    left = [len(before) for before in waits]
    ready = deque(g for g, count in enumerate(left) if count == 0)
    order: list[int] = []
    while ready:
        g = ready.popleft()
        order.append(g)
        for follower in followers[g]:
            left[follower] -= 1
            if left[follower] == 0:
                ready.append(follower)
    kind = {op.index: op for op in builder.ops}
    if len(order) < len(groups):
        op = kind[groups[next(g for g, count in enumerate(left) if count)][0]]
        raise UsageError(
            f"trace: operations wait for each other in a circle near {op.kind} {op.seq} of stage {op.stage}"
        )
    return [
        Wave(
            members=groups[g],
            after=tuple(tuple(dict.fromkeys(builder.after[m])) for m in groups[g]),
            communication=groups[g][0] in grouped,
            replicas=kind[groups[g][0]].kind in REPLICA_SYNC and groups[g][0] in grouped,
        )
        for g in order
    ]
