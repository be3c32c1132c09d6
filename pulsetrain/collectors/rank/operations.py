"""Operations of one process group: numbered at the enqueue, shown while in flight, recorded at their end.

Numbers start at 1. Those of collectives count the collectives of a group. Every member enqueues these in the
same order, so ranks can be compared. Sends and receives are counted for each pair and direction. Sizes follow
nccl-tests: the larger of what goes in and what comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import get_ident
from time import perf_counter_ns
from typing import TYPE_CHECKING, Protocol

from pulsetrain.collectors.layout import (
    G_COMPLETED,
    G_ENQUEUED,
    G_OP,
    GROUP_WORDS,
    GROUPS_AT,
    MAX_SEQ,
    PACK_SPAN,
    W_LAST,
    WAITING,
    pair_head,
    span_head,
)
from pulsetrain.collectors.rank.phases import RankState
from pulsetrain.records.schema import CATEGORIES

if TYPE_CHECKING:
    import torch
    from torch._C._distributed_c10d import HookOpName, PostHookArgs, PreHookArgs
    from torch.distributed import Work

COMMUNICATION = CATEGORIES.index("communication")
_KINDS = ("ALLREDUCE", "ALLGATHER", "REDUCE_SCATTER", "ALLTOALL")
_NAMES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def phase_name(operation: str) -> str:
    """Return the phase of a hook's operation name.

    >>> phase_name("ALLGATHER_INTO_TENSOR_COALESCED"), phase_name("BARRIER")
    ('all_gather', 'barrier')
    """
    for prefix, name in zip(_KINDS, _NAMES, strict=True):
        if operation.startswith(prefix):
            return name
    return operation.lower()


def _payload(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> int:
    """Return the larger of what goes in and what comes out, in bytes."""
    size = out = 0
    for tensor in inputs:
        size += tensor.nbytes
    for tensor in outputs:
        out += tensor.nbytes
    return max(size, out)


class Operation:
    """One operation from its enqueue to its completion. `work` is None until the hook after it has run.

    `blocked`: ns that the main thread has stood still for it, -1 where that is not the host's to see.
    `output`: address of what comes out, for a work that tells its end only to who waits, else 0.
    `heads`: the first words of its span, and of a wait for it on the status page.
    """

    __slots__ = (
        *("blocked", "context", "group", "heads", "name", "output", "parent", "peer", "seq", "size", "start"),
        *("thread", "work"),
    )

    def __init__(self, group: Group, name: int, seq: int, size: int, peer: int) -> None:
        state = group.state
        self.group, self.name, self.seq, self.size, self.peer = group, name, seq, size, peer
        self.heads = group.heads.get(name) or group.heads_of(name)
        self.parent, self.context = state.parent, state.context
        self.thread = get_ident()
        self.blocked = 0 if group.host_only else -1
        self.output = 0
        self.work: Work | None = None
        self.start = perf_counter_ns()


class Watchlist(Protocol):
    """Who asks pending works for their completion (`collectives.Tracker`)."""

    state: RankState
    pending: dict[object, tuple[Operation, int]]
    coalesced: list[tuple[Operation, int]]

    def poll(self) -> None: ...
    def poll_after_backward(self) -> None: ...
    def is_coalescing(self, operation: Operation) -> bool: ...


class Group:
    """One process group: its cell in the ring and its operations in flight, oldest first.

    `get_members` returns its global ranks in group order. torch knows them only after it has made the group.
    `host_only`: every operation of the group ends on the host. `timeout_ns`: after which torch ends an
    operation, 0 if unknown.
    """

    def __init__(
        self,
        watchlist: Watchlist,
        name: str,
        get_members: Callable[[], Sequence[int]],
        *,
        host_only: bool,
        timeout_ns: int = 0,
    ) -> None:
        self.state = watchlist.state
        self.host_only = host_only
        self._timeout_ns = timeout_ns
        self.cell = -1
        self.enqueued = 0
        self.in_flight: dict[int, Operation] = {}
        self._watchlist = watchlist
        self._name = name
        self._label = watchlist.state.ring.intern(name)
        self._get_members = get_members
        self._members: Sequence[int] = ()
        self._transfers: dict[tuple[int, int], int] = {}  # by name and peer: how many were enqueued
        self._pairs: dict[tuple[int, int], int] = {}  # by name and peer: the word that shows it, or -1
        self.heads: dict[int, tuple[int, int]] = {}
        self._kinds: dict[HookOpName, tuple[int, bool, bool]] = {}

    def before(self, call: PreHookArgs) -> None:
        """Number the operation and publish it: the hook before an enqueue."""
        watchlist = self._watchlist
        try:
            if watchlist.pending:
                watchlist.poll()
            if not self._members:
                self._open_cell()
            operation = self._operation(call)
            oldest = not self.in_flight
            self.in_flight[call.op_id] = operation
            self.state.words[W_LAST] = operation.start
            if oldest:
                self._publish(operation)
        except Exception:  # noqa: BLE001 - a hook that raises would fail the collective; the status page counts
            self.state.fault()

    def _open_cell(self) -> None:
        self._members = self._get_members()
        self.cell = self.state.ring.add_group(self._name, self._members, self._timeout_ns)

    def after(self, call: PostHookArgs) -> None:
        """Keep the work, to ask it later: the hook after an enqueue."""
        try:
            operation = self.in_flight.get(call.op_id)
            if operation is not None:
                work = call.work
                operation.work = work
                if work is None:
                    self._watchlist.coalesced.append((operation, call.op_id))
                else:
                    self._watchlist.pending[id(work)] = (operation, call.op_id)
                    self._watchlist.poll_after_backward()
        except Exception:  # noqa: BLE001 - as above
            self.state.fault()

    def _operation(self, call: PreHookArgs) -> Operation:
        kind = call.name
        known = self._kinds.get(kind)
        if known is None:
            name = self.state.ring.intern(phase_name(kind.name))
            # Gloo's reduce-scatter is an all-reduce inside. The work around it is never complete by itself.
            silent = self.host_only and kind.name.startswith("REDUCE_SCATTER")
            known = self._kinds[kind] = (name, kind.name in ("SEND", "RECV"), silent)
        name, is_transfer, silent = known
        size = _payload(call.input_tensors, call.output_tensors)
        if is_transfer:
            peer = self._members[call.root] if 0 <= call.root < len(self._members) else -1
            self.state.transfers = True
            seq = self._transfers[name, peer] = self._transfers.get((name, peer), 0) + 1
            self._show_count(kind.name == "SEND", name, peer, seq)
            return Operation(self, name, seq, size, peer)
        if self.in_flight:
            self._remove_failed()
        self.enqueued = seq = self.enqueued + 1
        if self.cell >= 0:
            self.state.words[self.cell + G_ENQUEUED] = seq
        operation = Operation(self, name, seq, size, -1)
        if silent and call.output_tensors:
            operation.output = call.output_tensors[0].data_ptr()
        return operation

    def _show_count(self, sends: bool, name: int, peer: int, count: int) -> None:
        """Show how many were sent to or received from this peer: the barrier compares both sides."""
        word = self._pairs.get((name, peer))
        if word is None:
            ring = self.state.ring
            number = (self.cell - GROUPS_AT // 8) // GROUP_WORDS
            known = self.cell >= 0 and peer >= 0
            word = ring.add_pair(pair_head(number, peer, sends=sends)) if known else -1
            self._pairs[name, peer] = word
        if word >= 0:
            self.state.words[word] = count

    def _remove_failed(self) -> None:
        """Remove what this thread announced and failed to enqueue: torch raised between the two hooks."""
        me = get_ident()
        for key, operation in list(self.in_flight.items()):
            if (
                operation.work is None
                and operation.thread == me
                and not self._watchlist.is_coalescing(operation)
            ):
                self.in_flight.pop(key, None)

    def heads_of(self, name: int) -> tuple[int, int]:
        """Return the `heads` of operations of this name, from now on by one lookup."""
        head = span_head(name, COMMUNICATION)
        self.heads[name] = heads = (span_head(name, COMMUNICATION, group=self._label), head | WAITING)
        return heads

    def finish(self, key: int, operation: Operation, end: int) -> None:
        """Write the span of an operation that is over, and publish what is in flight now."""
        if self.in_flight.pop(key, None) is None:
            return
        slot = self.state.ring.next_slot()
        if slot is not None:
            at, mark = slot
            PACK_SPAN(
                self.state.ring.memory, at, operation.heads[0] | operation.parent, operation.context,
                operation.start, end, operation.seq & MAX_SEQ, operation.peer, operation.size,
                operation.blocked, mark,
            )  # fmt: skip
        self.publish_oldest()

    def abandon(self, key: int) -> None:
        """Forget an operation whose end nobody will ever know."""
        self.in_flight.pop(key, None)
        self.publish_oldest()

    def publish_oldest(self) -> None:
        """Publish the oldest operation in flight, and up to where the collectives are complete."""
        if self.cell < 0:
            return
        words = self.state.words
        if not self.in_flight:
            words[self.cell + G_COMPLETED] = self.enqueued
            words[self.cell + G_OP] = 0
            return
        completed, oldest = self.enqueued, None
        for operation in list(self.in_flight.values()):
            oldest = oldest or operation
            if operation.peer < 0:
                completed = operation.seq - 1
                break
        words[self.cell + G_COMPLETED] = completed
        if oldest is None:
            words[self.cell + G_OP] = 0
        else:
            self._publish(oldest)

    def _publish(self, operation: Operation) -> None:
        if self.cell >= 0:
            self.state.ring.set_op(
                self.cell, operation.name, operation.seq, operation.size, operation.start, operation.peer
            )
