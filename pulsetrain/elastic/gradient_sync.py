"""Summing gradients over replicas whose tensor-parallel groups have unequal sizes.

Where a replica has more ranks than the smallest one, each gradient goes by an all-to-all inside its group
to the ranks that have partners, is summed one to one, and goes back. The first move starts as soon as
backward has made the gradient. The way back of one gradient overlaps the sum of the next ones. No other
rank waits for a spare.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from pulsetrain.core.errors import UsageError
from pulsetrain.elastic.exchange import RankExchange, exchange
from pulsetrain.elastic.shard_mapping import ShardMapping


@dataclass(frozen=True, kw_only=True)
class ReplicaGroups:
    """What one rank belongs to. `local_rank` counts within its replica, `first_rank` is that replica's rank
    0.

    `tensor` is the replica's own group of `degree` ranks. `data` joins this rank with its partners in the
    other replicas, and is None for a spare rank.
    """

    local_rank: int
    first_rank: int
    degree: int
    tensor: dist.ProcessGroup
    data: dist.ProcessGroup | None


@dataclass(frozen=True, kw_only=True)
class ParameterLayout:
    """How a parameter is held: split along `dim`, or whole on every rank of the group (`mapping` None)."""

    parameter: torch.nn.Parameter
    mapping: ShardMapping | None = None
    dim: int = 0
    unit_size: int = 1
    """Rows along `dim` of one unit: the size of a head, or 1 for a column of a hidden layer."""


@dataclass
class _Transfer:
    """One gradient on its way: there, summed, and back."""

    layout: ParameterLayout
    there: RankExchange | None
    back: RankExchange | None
    buffer: torch.Tensor
    work: dist.Work | None = field(default=None)


class GradientSync:
    """Sums the gradients of all replicas, from hooks of backward.

    Every rank names the same parameters in the same order, and backward makes their gradients in one order
    on all. After `finish` each gradient is the sum over replicas. Raises `UsageError` for a shape that does
    not fit.
    """

    def __init__(self, layouts: Sequence[ParameterLayout], groups: ReplicaGroups) -> None:
        self._groups = groups
        self._transfers: list[_Transfer] = []
        self._held = False
        moves = {id(layout): _moves(layout, groups) for layout in layouts}
        self._hooks = [
            layout.parameter.register_post_accumulate_grad_hook(
                lambda parameter, layout=layout: self._start(layout, *moves[id(layout)])
            )
            for layout in layouts
        ]
        self._count = len(layouts)

    def close(self) -> None:
        """Take the hooks off again."""
        for hook in self._hooks:
            hook.remove()

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Only accumulate, for all microbatches of a step but the last."""
        self._held = True
        try:
            yield
        finally:
            self._held = False

    def finish(self) -> None:
        """Wait until every gradient holds its sum. Call it between backward and the optimizer's step."""
        if len(self._transfers) != self._count:
            raise UsageError(f"{len(self._transfers)} gradients came: allowed: all {self._count}")
        self._sum_last()
        for transfer in self._transfers:
            _wait(transfer)
            self._send_back(transfer)
        for transfer in self._transfers:
            _wait(transfer)
            assert transfer.layout.parameter.grad is not None
            buffer = transfer.buffer
            if transfer.back is not None:
                buffer = _placed(buffer, transfer.back, transfer.layout)
            transfer.layout.parameter.grad.copy_(buffer)
        self._transfers.clear()

    def _start(self, layout: ParameterLayout, there: RankExchange | None, back: RankExchange | None) -> None:
        """Backward has made a gradient: move it, and sum the one before, which has arrived meanwhile."""
        if self._held:
            return
        self._sum_last()
        assert layout.parameter.grad is not None
        buffer = layout.parameter.grad.contiguous()
        transfer = _Transfer(layout=layout, there=there, back=back, buffer=buffer)
        if there is not None:
            transfer.buffer, transfer.work = _all_to_all(buffer, there, layout, self._groups.tensor)
        self._transfers.append(transfer)

    def _sum_last(self) -> None:
        if not self._transfers:
            return
        transfer = self._transfers[-1]
        _wait(transfer)
        if transfer.there is not None:
            transfer.buffer = _placed(transfer.buffer, transfer.there, transfer.layout)
        if self._groups.data is not None:
            transfer.buffer = transfer.buffer.contiguous()
            transfer.work = dist.all_reduce(transfer.buffer, group=self._groups.data, async_op=True)

    def _send_back(self, transfer: _Transfer) -> None:
        """Return the sum to the ranks that compute with it. A whole gradient goes to the spare ranks."""
        groups = self._groups
        if transfer.back is not None:
            layout = transfer.layout
            transfer.buffer, transfer.work = _all_to_all(
                transfer.buffer, transfer.back, layout, groups.tensor
            )
        elif transfer.layout.mapping is None and groups.degree > 1:
            source = groups.first_rank  # rank 0 of a replica always has partners
            transfer.work = dist.broadcast(transfer.buffer, source, group=groups.tensor, async_op=True)


def _moves(
    layout: ParameterLayout, groups: ReplicaGroups
) -> tuple[RankExchange, RankExchange] | tuple[None, None]:
    """The all-to-alls of this rank before and after the sum. None where nothing moves."""
    mapping = layout.mapping
    if mapping is None:
        return None, None
    larger = groups.degree != len(mapping.reduced)
    held = (mapping.compute if larger else mapping.reduced)[groups.local_rank]
    if layout.parameter.shape[layout.dim] != len(held) * layout.unit_size:
        shape = tuple(layout.parameter.shape)
        raise UsageError(f"shape {shape}: allowed: {len(held)} units of {layout.unit_size} in {layout.dim}")
    if not larger:
        return None, None
    there = exchange(mapping.compute, mapping.sync)[groups.local_rank]
    return there, exchange(mapping.sync, mapping.compute)[groups.local_rank]


def _all_to_all(
    tensor: torch.Tensor, part: RankExchange, layout: ParameterLayout, group: dist.ProcessGroup
) -> tuple[torch.Tensor, dist.Work]:
    """Start the exchange of a gradient. The result is complete, and out of order, once the work is done."""
    rows = tensor.movedim(layout.dim, 0)
    rest = rows.shape[1:]
    units = rows.reshape(len(part.send_order), layout.unit_size, *rest)
    outgoing = units[torch.tensor(part.send_order, dtype=torch.long, device=tensor.device)].contiguous()
    incoming = outgoing.new_empty((len(part.recv_order), layout.unit_size, *rest))
    work = dist.all_to_all_single(
        incoming, outgoing, list(part.recv_counts), list(part.send_counts), group=group, async_op=True
    )
    assert work is not None, "an asynchronous operation gives its work"
    return incoming, work


def _placed(incoming: torch.Tensor, part: RankExchange, layout: ParameterLayout) -> torch.Tensor:
    """Units in the order of the rank's buffer, in the shape of its gradient."""
    placed = torch.empty_like(incoming)
    placed[torch.tensor(part.recv_order, dtype=torch.long, device=incoming.device)] = incoming
    return placed.reshape(-1, *incoming.shape[2:]).movedim(0, layout.dim)


def _wait(transfer: _Transfer) -> None:
    if transfer.work is not None:
        transfer.work.wait()
        transfer.work = None
