"""Transfers between pipeline stages: each belongs to a compute operation and to a transfer of a neighbour."""

from __future__ import annotations

from collections.abc import Iterator

from pulsetrain.analytics.whatif.operations import BACKWARD, COMPUTE, FORWARD, P2P, Dependencies, Op
from pulsetrain.core.errors import UsageError

CLOCK_SLACK_S = 5e-5

# The kind of the other side, and the distance of its stage.
_OTHER_SIDE = {
    "forward-send": ("forward-recv", 1),
    "forward-recv": ("forward-send", -1),
    "backward-send": ("backward-recv", -1),
    "backward-recv": ("backward-send", 1),
}


def add_transfers(graph: Dependencies) -> None:
    """Add the dependencies of all transfers, and group each send with its receive.

    Raises `UsageError` where the number of transfers does not fit the number of compute operations.
    """
    _TransferRules(graph).add()


class _TransferRules:
    """The rules for transfers. `_inner` has those with another side, by kind and stage."""

    def __init__(self, graph: Dependencies) -> None:
        self._graph = graph
        self._inner: dict[tuple[str, int], list[Op]] = {}

    def add(self) -> None:
        graph = self._graph
        for stage in graph.stages:
            for kind in P2P:
                for transfer, compute in self._matched(stage, kind):
                    self._attach(kind, transfer, compute)
                    if not self._at_model_end(kind, compute):
                        self._inner.setdefault((kind, stage), []).append(transfer)
            self._first_backward(stage)
        for kind in ("forward-recv", "backward-recv"):
            if kind not in graph.kinds:
                self._unrecorded_receives(kind)
        paired: set[int] = set()
        for pair in self._pairs():
            graph.groups.append(tuple(op.index for op in pair))
            paired.update(op.index for op in pair)
        graph.groups += [(op.index,) for op in graph.ops if op.kind in P2P and op.index not in paired]

    def _matched(self, stage: int, kind: str) -> Iterator[tuple[Op, Op]]:
        """Yield the transfers of `kind`, each with its compute operation.

        A profiler also records transfers that were never launched. So receives after the last compute
        operation and sends before the end of the first one are skipped.
        """
        computes = self._graph.of(stage, _compute_of(kind))
        if not computes:
            return
        last_start = max(op.start for op in computes) + CLOCK_SLACK_S
        first_end = min(op.end for op in computes) - CLOCK_SLACK_S
        receives = kind.endswith("recv")
        transfers = [
            op
            for op in self._graph.of(stage, kind)
            if (op.start <= last_start if receives else op.end >= first_end)
        ]
        missing = len(computes) - len(transfers)
        if missing < 0 or (transfers and missing > 1):
            raise UsageError(
                f"stage {stage}: {len(transfers)} {kind} for {len(computes)} {_compute_of(kind)}; "
                "allowed: as many, one fewer, or none"
            )
        ordered = sorted(computes, key=lambda op: op.seq)
        # The first receive of the model is not always recorded.
        skip = 1 if receives and missing == 1 and transfers else 0
        yield from zip(transfers, ordered[skip:], strict=False)

    def _attach(self, kind: str, transfer: Op, compute: Op) -> None:
        """Let a send wait for its compute operation, and a compute operation for its receive.

        A receive waits for the compute operation before its own.
        """
        if kind.endswith("send"):
            self._graph.wait(transfer, compute)
            return
        self._graph.wait(compute, transfer)
        self._graph.wait(transfer, self._graph.get(compute.kind, compute.seq - 1, compute.stage))

    def _at_model_end(self, kind: str, compute: Op) -> bool:
        """Whether the other side would be before the first or after the last chunk of the model."""
        chunk = compute.model_chunk if compute.model_chunk >= 0 else compute.stage
        return not 0 <= chunk + _OTHER_SIDE[kind][1] < self._graph.chunks * len(self._graph.stages)

    def _pairs(self) -> Iterator[tuple[Op, Op]]:
        """Yield each send with its receive on the neighbouring stage."""
        for (kind, stage), transfers in self._inner.items():
            if kind.endswith("send"):
                receives = self._inner.get((_OTHER_SIDE[kind][0], self._neighbour(stage, kind)), [])
                yield from zip(transfers, receives, strict=False)

    def _neighbour(self, stage: int, kind: str) -> int:
        """Return the stage on the other side of a transfer."""
        stages = self._graph.stages
        return stages[(stages.index(stage) + _OTHER_SIDE[kind][1]) % len(stages)]

    def _unrecorded_receives(self, kind: str) -> None:
        """Let compute wait for the send, or for what computed its data, where no receive is recorded."""
        if len(self._graph.stages) < 2:
            return
        send = _OTHER_SIDE[kind][0]
        for stage in self._graph.stages:
            neighbour = self._neighbour(stage, kind)
            sources = self._inner.get((send, neighbour)) or self._inner_computes(neighbour, send)
            for source, compute in zip(sources, self._inner_computes(stage, kind), strict=False):
                self._graph.wait(compute, source)

    def _inner_computes(self, stage: int, kind: str) -> list[Op]:
        """Return the compute operations, by number, whose transfer of `kind` has another side."""
        computes = sorted(self._graph.of(stage, _compute_of(kind)), key=lambda op: op.seq)
        return [op for op in computes if not self._at_model_end(kind, op)]

    def _first_backward(self, stage: int) -> None:
        """Let the first backward transfers wait for the last but one forward operation of the warm-up."""
        computes = self._graph.of(stage, *COMPUTE)
        first = next((i for i, op in enumerate(computes) if op.kind == BACKWARD), 0)
        if first >= 2:
            for kind in ("backward-recv", "backward-send"):
                self._graph.wait(self._graph.get(kind, 0, stage), computes[first - 2])


def _compute_of(kind: str) -> str:
    return FORWARD if kind.startswith("forward") else BACKWARD
