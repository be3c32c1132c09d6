"""Operations of one training step of a pipeline, and what each of them waits for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

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


@dataclass(frozen=True, kw_only=True)
class Op:
    """One operation of one stage, in the step that serves as the model.

    Times are seconds on the clock of the stage. `chunk` is the model chunk within the stage, `model_chunk`
    that within the model. They are -1 where they are not known.
    """

    index: int
    kind: str
    seq: int
    stage: int
    start: float
    end: float
    chunk: int
    model_chunk: int


@dataclass(frozen=True, kw_only=True)
class Wave:
    """Operations that begin together: a compute operation alone, or the members of one communication.

    `members` are operation indices. `after` has the predecessors of each member, in the same order.
    `replicas`: the data-parallel replicas wait for each other too.
    """

    members: tuple[int, ...]
    after: tuple[tuple[int, ...], ...]
    communication: bool
    replicas: bool


class Dependencies:
    """The operations of a step, which of them wait for which, and which communicate together.

    `after` maps an operation to those it waits for. `groups` are the members of each communication.
    """

    def __init__(self, ops: Iterable[Op]) -> None:
        self.ops = list(ops)
        self.stages = sorted({op.stage for op in self.ops})
        self.kinds = {op.kind for op in self.ops}
        self.chunks = 1 + max([0, *(op.chunk for op in self.ops)])
        self.after: dict[int, list[int]] = {op.index: [] for op in self.ops}
        self.groups: list[tuple[int, ...]] = []
        self._by_key = {(op.kind, op.seq, op.stage): op for op in self.ops}

    def of(self, stage: int, *kinds: str) -> list[Op]:
        """Return the operations of a stage in the order in which they started."""
        chosen = [op for op in self.ops if op.stage == stage and op.kind in kinds]
        return sorted(chosen, key=lambda op: (op.start, op.seq, op.kind))

    def get(self, kind: str, seq: int, stage: int) -> Op | None:
        """Return one operation, or None where the trace does not have it."""
        return self._by_key.get((kind, seq, stage))

    def first_of(self, stage: int, *kinds: str) -> list[Op]:
        """Return the first operation of each kind, without those that the trace does not have."""
        ops = (self.get(kind, 0, stage) for kind in kinds)
        return [op for op in ops if op is not None]

    def wait(self, op: Op | None, before: Op | None) -> None:
        """Let `op` wait for `before`. Nothing happens where one of them is missing."""
        if before is not None and op is not None and before is not op:
            self.after[op.index].append(before.index)

    def chain(self, ops: Iterable[Op], first_after: Iterable[Op] = ()) -> None:
        """Let each operation wait for the one before it, and the first one for all of `first_after`."""
        last = list(first_after)
        for op in ops:
            for before in last:
                self.wait(op, before)
            last = [op]
