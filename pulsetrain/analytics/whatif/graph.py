"""The dependency graph of one training step of a pipeline, from the operations that one replica recorded.

All replicas and all steps share one graph, so it is built once. The rules are those of the published what-if
analysis (arXiv 2505.05713, section 3): operations of one stream run in order, compute and communication wait
for each other, and the members of a communication begin their transfer together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from pulsetrain.analytics.whatif.operations import (
    BACKWARD,
    CLIP,
    COMPUTE,
    EMBEDDING,
    FORWARD,
    GATHER,
    GC,
    LAYERNORM,
    OPTIMIZER,
    P2P,
    REPLICA_SYNC,
    SCATTER,
    SEPARATE,
    Dependencies,
    Op,
    Wave,
)
from pulsetrain.analytics.whatif.transfers import add_transfers
from pulsetrain.core.errors import UsageError


def build(ops: Iterable[Op], *, replicated: bool) -> list[Wave]:
    """Return the waves of a step. Each comes after everything that it waits for.

    `replicated`: there is more than one data-parallel replica. Raises `UsageError` for operations that wait
    for each other in a circle, and as `add_transfers`.
    """
    graph = Dependencies(ops)
    replicated = replicated or bool(graph.kinds & {GATHER, SCATTER, SEPARATE})
    _add_streams(graph)
    add_transfers(graph)
    if replicated:
        _add_gathers(graph)
        if SEPARATE in graph.kinds:
            _add_scatters(graph)
    _add_epilogue(graph, replicated=replicated)
    _add_collectives(graph)
    return _ordered(graph)


def _add_streams(graph: Dependencies) -> None:
    """Add the streams of each stage: compute, one for each kind of transfer, and data parallelism."""
    for stage in graph.stages:
        graph.chain(graph.of(stage, *COMPUTE))
        for kind in P2P:
            graph.chain(graph.of(stage, kind))
        graph.chain(graph.of(stage, GATHER, SCATTER))


def _add_gathers(graph: Dependencies) -> None:
    """Let the first forward of a chunk wait for the last all-gather of the chunk's parameters."""
    for stage in graph.stages:
        forwards = graph.of(stage, FORWARD)
        for gather in _one_per_chunk(sorted(graph.of(stage, GATHER), key=lambda op: -op.seq)):
            graph.wait(min(_of_chunk(forwards, gather), key=lambda op: op.start, default=None), gather)


def _add_scatters(graph: Dependencies) -> None:
    """Let the first reduce-scatter of a chunk wait for the chunk's last backward, where the two overlap."""
    for stage in graph.stages:
        backwards = graph.of(stage, BACKWARD)
        for scatter in _one_per_chunk(sorted(graph.of(stage, SCATTER), key=lambda op: op.seq)):
            graph.wait(scatter, max(_of_chunk(backwards, scatter), key=lambda op: op.end, default=None))


def _one_per_chunk(ops: Iterable[Op]) -> list[Op]:
    """Return the first operation of each chunk."""
    first: dict[int, Op] = {}
    for op in ops:
        first.setdefault(op.chunk, op)
    return list(first.values())


def _of_chunk(ops: Sequence[Op], collective: Op) -> list[Op]:
    """Return the operations of the chunk of a collective, or all where its chunk is not known."""
    return [op for op in ops if op.chunk == collective.chunk or collective.chunk < 0]


def _add_epilogue(graph: Dependencies, *, replicated: bool) -> None:
    """Chain what follows the last backward. What the trace does not have is left out of the chain."""
    for stage in graph.stages:
        last = max(graph.of(stage, *COMPUTE), key=lambda op: op.end, default=None)
        collect = graph.get(GC, 0, stage)
        graph.wait(collect, last)
        anchor = [op for op in (collect or last,) if op is not None]
        scatters = sorted(graph.of(stage, SCATTER), key=lambda op: op.seq)
        sync: list[Op] = []
        if replicated and SEPARATE in graph.kinds:
            anchor += scatters[-1:]
            sync = graph.first_of(stage, SEPARATE)
        elif replicated:
            sync = scatters
        before = graph.first_of(stage, LAYERNORM, EMBEDDING)
        graph.chain([*before, *sync, *graph.first_of(stage, CLIP, OPTIMIZER)], anchor)


def _add_collectives(graph: Dependencies) -> None:
    """Group collectives: embedding gradients over first and last stage, clipping over all, others alone."""
    for kind in (GATHER, SCATTER, SEPARATE):
        graph.groups += [(op.index,) for op in graph.ops if op.kind == kind]
    for kind in (EMBEDDING, CLIP):
        members = tuple(op.index for op in graph.ops if op.kind == kind and op.seq == 0)
        if members:
            graph.groups.append(members)


def _ordered(graph: Dependencies) -> list[Wave]:
    """Return the waves in topological order (Kahn's algorithm)."""
    grouped = {index for members in graph.groups for index in members}
    groups = graph.groups + [(op.index,) for op in graph.ops if op.index not in grouped]
    group_of = {index: g for g, members in enumerate(groups) for index in members}
    waits = [
        {group_of[before] for m in members for before in graph.after[m]} - {g}
        for g, members in enumerate(groups)
    ]
    order = _topological(waits)
    ops = {op.index: op for op in graph.ops}
    if len(order) < len(groups):
        stuck = set(range(len(groups))) - set(order)
        op = ops[groups[min(stuck)][0]]
        raise UsageError(
            f"trace: operations wait for each other in a circle near {op.kind} {op.seq} of stage {op.stage}"
        )
    return [
        Wave(
            members=groups[g],
            after=tuple(tuple(dict.fromkeys(graph.after[m])) for m in groups[g]),
            communication=groups[g][0] in grouped,
            replicas=groups[g][0] in grouped and ops[groups[g][0]].kind in REPLICA_SYNC,
        )
        for g in order
    ]


def _topological(waits: Sequence[set[int]]) -> list[int]:
    """Return the nodes, each after those it waits for. Nodes of a circle, and behind it, are left out."""
    followers: list[list[int]] = [[] for _ in waits]
    for node, before in enumerate(waits):
        for b in before:
            followers[b].append(node)
    left = [len(before) for before in waits]
    ready = deque(node for node, count in enumerate(left) if count == 0)
    order: list[int] = []
    while ready:
        node = ready.popleft()
        order.append(node)
        for follower in followers[node]:
            left[follower] -= 1
            if left[follower] == 0:
                ready.append(follower)
    return order
