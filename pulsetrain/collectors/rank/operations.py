"""Operations of one process group: numbered at the enqueue, shown while in flight, recorded at their end.

Numbers start at 1. Those of collectives count the collectives of a group. Every member enqueues these in the
same order, so ranks can be compared. Sends and receives are counted for each pair and direction. Sizes follow
nccl-tests: the larger of what goes in and what comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
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
    PACK_GROUP,
    PACK_SPAN,
    W_LAST,
    pair_head,
    span_head,
)
from pulsetrain.collectors.rank.phases import RankState
from pulsetrain.collectors.rank.stream_end import StreamEnd
from pulsetrain.protocol.own_world import own_name
from pulsetrain.protocol.transfer_peer import ANY_SOURCE, NO_PEER
from pulsetrain.records.schema import CATEGORIES

if TYPE_CHECKING:
    import torch
    from torch._C._distributed_c10d import PostHookArgs, PreHookArgs
    from torch.distributed import Work

COMMUNICATION = CATEGORIES.index("communication")
MAX_BATCH = 4096  # operations of a coalesced batch that is open. An error may have left it open for ever
NBYTES: Callable[[torch.Tensor], int] = attrgetter("nbytes")
_KINDS = ("ALLREDUCE", "ALLGATHER", "REDUCE_SCATTER", "ALLTOALL")
_NAMES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
_LARGER = {"ALLREDUCE": "inputs", "REDUCE_SCATTER": "inputs", "ALLGATHER": "outputs"}


def phase_name(operation: str) -> str:
    """Return the phase of a hook's operation name.

    >>> phase_name("ALLGATHER_INTO_TENSOR_COALESCED"), phase_name("BARRIER")
    ('all_gather', 'barrier')
    """
    for prefix, name in zip(_KINDS, _NAMES, strict=True):
        if operation.startswith(prefix):
            return name
    return operation.lower()


class Kind:
    """What an operation's name among torch's hooks says about it.

    `number`: its phase among the names of the ring. `transfers`: to or from one peer. `tells_end`: its work
    can be asked whether it is complete. `larger`: which side is never the smaller one, "" where it depends.
    """

    __slots__ = ("larger", "number", "sends", "tells_end", "transfers")

    def __init__(self, number: int, name: str, *, host_only: bool) -> None:
        self.number = number
        self.sends = name == "SEND"
        self.transfers = name in ("SEND", "RECV")
        # Gloo's reduce-scatter is an all-reduce inside. The work around it is never complete by itself.
        self.tells_end = not (host_only and name.startswith("REDUCE_SCATTER"))
        self.larger = next((side for start, side in _LARGER.items() if name.startswith(start)), "")

    def payload(self, call: PreHookArgs) -> int:
        """Return the larger of what goes in and what comes out, in bytes.

        Each list of tensors is made anew when torch is asked for it. So the smaller one is not asked for.
        """
        if self.larger == "outputs":
            return sum(map(NBYTES, call.output_tensors)) or sum(map(NBYTES, call.input_tensors))
        size = sum(map(NBYTES, call.input_tensors))
        if size and self.larger == "inputs":
            return size
        return max(size, sum(map(NBYTES, call.output_tensors)))


class Operation:
    """One operation from its enqueue to its completion. `work` is None until the hook after it has run.

    `blocked`: ns that the main thread has stood still for it, -1 where that is not the host's to see.
    `device`: the CUDA device of its tensors, None if it has none or if every operation ends on the host.
    `address`: of what comes out on that device.
    `output`: address of what comes out, for a work that tells its end only to who waits, else 0.
    `head`: the first word of its span, and of a wait for it on the status page but for the mark.
    """

    __slots__ = (
        *("address", "blocked", "context", "device", "group", "head", "name", "output", "parent", "peer"),
        *("seq", "size", "start", "work"),
    )

    def __init__(self, group: Group, name: int, seq: int, size: int, peer: int) -> None:
        state = group.state
        self.group, self.name, self.seq, self.size, self.peer = group, name, seq, size, peer
        self.head = group.heads.get(name) or group.head_of(name)
        self.parent, self.context = state.parent, state.context
        self.blocked = 0 if group.host_only else -1
        self.output = self.address = 0
        self.device: torch.device | None = None
        self.work: Work | StreamEnd | None = None
        self.start = perf_counter_ns()


class Watchlist(Protocol):
    """Who asks pending works for their completion (`collectives.Tracker`)."""

    state: RankState
    pending: dict[object, tuple[Operation, int]]

    def poll(self) -> None: ...
    def poll_after_backward(self) -> None: ...
    def capturing(self) -> bool: ...
    def take_synchronous(self, operation: Operation, number: int) -> None: ...


class Group:
    """One process group: its cell in the ring and its operations in flight, oldest first.

    `get_members` returns its global ranks in group order. torch knows them only after it has made the group.
    `host_only`: every operation of the group ends on the host. `timeout_ns`: after which torch ends an
    operation, 0 if unknown. `size`: how many members it has, more than are known where its world is not the
    job's. Its name has the rank in it then. `batch`: the operations of the coalesced batch that is open, None
    if none is.
    """

    def __init__(
        self,
        watchlist: Watchlist,
        name: str,
        get_members: Callable[[], Sequence[int]],
        *,
        host_only: bool,
        timeout_ns: int = 0,
        size: int = 0,
    ) -> None:
        self.state = watchlist.state
        self._size = size
        self.host_only = host_only
        self._timeout_ns = timeout_ns
        self.cell = -1
        self.enqueued = 0
        self.in_flight: dict[int, Operation] = {}
        self.batch: list[tuple[Operation, int]] | None = None
        # By thread: the operation that the hook after the enqueue has not been told of.
        self._announced: dict[int, int] = {}
        self._watchlist = watchlist
        self._name = name
        self._label = 0  # the name's index in the ring, 0 while the group is not in use
        self._get_members = get_members
        self._members: Sequence[int] = ()
        self._transfers: dict[tuple[int, int], int] = {}  # by name and peer: how many were enqueued
        self._pairs: dict[tuple[int, int], int] = {}  # by name and peer: the word that shows it, or -1
        self.heads: dict[int, int] = {}
        self._kinds: dict[int, Kind] = {}

    def before(self, call: PreHookArgs) -> None:
        """Number the operation and publish it: the hook before an enqueue."""
        try:
            if self._watchlist.pending:
                self._watchlist.poll()
            if not self._members:
                self._open_cell()
            name: int = call.name.value  # a member of torch's enumeration is slow to hash and to compare
            kind = self._kinds.get(name) or self._kind(name, call.name.name)
            number, thread = call.op_id, get_ident()
            if thread in self._announced:
                self.refuse(self._announced[thread])
            operation = self._transfer(call, kind) if kind.transfers else self._collective(call, kind)
            is_oldest = not self.in_flight
            self.in_flight[number] = operation
            self._announced[thread] = number
            words = self.state.words
            words[W_LAST] = operation.start
            if self.cell < 0:
                return
            if not is_oldest:
                words[self.cell + G_ENQUEUED] = self.enqueued
                return
            completed = self.enqueued if kind.transfers else operation.seq - 1
            PACK_GROUP(
                self.state.ring.memory, (self.cell + G_ENQUEUED) * 8, self.enqueued, completed,
                operation.seq, operation.size, operation.start, operation.peer, operation.name,
            )  # fmt: skip
        except Exception:  # noqa: BLE001 - a hook that raises would fail the collective; the status page counts
            self.state.fault()

    def _open_cell(self) -> None:
        self._members = self._get_members()
        if 0 < len(self._members) < self._size:
            self._name = own_name(self._name, self._members[0])
        self._label = self.state.ring.name_group(self._name)
        self.cell = self.state.ring.add_group(
            self._label, self._members, self._timeout_ns, on_device=not self.host_only
        )
        if self.cell < 0:
            self.state.fault()

    def retire(self) -> bool:
        """torch has destroyed the group: its cell is free. What was in flight is still recorded.

        Return whether its name is free too. Until nothing is in flight any more it is not: call it again.
        """
        cell, self.cell = self.cell, -1
        if cell >= 0:
            pairs, self._pairs = self._pairs, {}
            self.state.ring.free_group(cell, [word for word in pairs.values() if word >= 0])
        if self.in_flight:
            return False
        self._free_name()
        return True

    def forget(self) -> None:
        """The attempt is over, and its ring with it. What was in flight will not end."""
        self.cell, self.batch, self._members = -1, None, ()
        self._pairs = {}
        self.in_flight.clear()
        self._announced.clear()
        self._free_name()

    def _free_name(self) -> None:
        label, self._label = self._label, 0
        self.heads = {}  # an operation that still comes is one of a group without a name
        self.state.ring.free_name(label)

    def _kind(self, number: int, name: str) -> Kind:
        phase = self.state.ring.intern(phase_name(name))
        kind = self._kinds[number] = Kind(phase, name, host_only=self.host_only)
        return kind

    def after(self, call: PostHookArgs) -> None:
        """Keep the work, to ask it later: the hook after an enqueue.

        A synchronous operation may have no work. Inside a coalesced batch, the end of the batch tells that of
        all its operations. Inside the capture of a CUDA graph nothing runs, so nothing is kept.
        """
        try:
            number = call.op_id
            self._announced.pop(get_ident(), None)
            operation = self.in_flight.get(number)
            if operation is None:
                return
            if self.batch is not None:
                self._add_to_batch(operation, number)
            elif not self.host_only and self._watchlist.capturing():
                self.abandon(number)
            elif (work := call.work) is None:
                self._watchlist.take_synchronous(operation, number)
            else:
                operation.work = work
                self._watchlist.pending[id(work)] = (operation, number)
                self._watchlist.poll_after_backward()
        except Exception:  # noqa: BLE001 - as above
            self.state.fault()

    def _add_to_batch(self, operation: Operation, number: int) -> None:
        if self.batch is not None:
            self.batch.append((operation, number))
            if len(self.batch) > MAX_BATCH:
                self.abandon(self.batch.pop(0)[1])

    def _collective(self, call: PreHookArgs, kind: Kind) -> Operation:
        size = kind.payload(call)
        self.enqueued = seq = self.enqueued + 1
        operation = Operation(self, kind.number, seq, size, NO_PEER)
        if not kind.tells_end:
            outputs = call.output_tensors
            operation.output = outputs[0].data_ptr() if outputs else 0
        if not self.host_only:
            _place(operation, call)
        return operation

    def _transfer(self, call: PreHookArgs, kind: Kind) -> Operation:
        name, root, size = kind.number, call.root, kind.payload(call)
        members = self._members if len(self._members) > 1 else ()  # of another world: the peer is not known
        peer = members[root] if 0 <= root < len(members) else ANY_SOURCE
        self.state.transfers = True
        seq = self._transfers[name, peer] = self._transfers.get((name, peer), 0) + 1
        self._show_count(kind.sends, name, peer, seq)
        operation = Operation(self, name, seq, size, peer)
        if not self.host_only:
            _place(operation, call)
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

    def head_of(self, name: int) -> int:
        """Return the `head` of operations of this name, from now on by one lookup."""
        self.heads[name] = head = span_head(name, COMMUNICATION, group=self._label)
        return head

    def finish(self, key: int, operation: Operation, end: int) -> None:
        """Write the span of an operation that is over, and publish what is in flight now."""
        if self.in_flight.pop(key, None) is None:
            return
        ring = self.state.ring
        try:
            slot: tuple[int, int] | None = ring.claim()
        except StopIteration:
            slot = ring.refill()
        if slot is not None:
            at, mark = slot
            PACK_SPAN(
                ring.memory, at, operation.head | operation.parent, operation.context,
                operation.start, end, operation.seq & MAX_SEQ, operation.peer, operation.size,
                operation.blocked, mark,
            )  # fmt: skip
        if self.in_flight:
            self.publish_oldest()
        elif self.cell >= 0:
            self.state.words[self.cell + G_COMPLETED] = self.enqueued
            self.state.words[self.cell + G_OP] = 0

    def refused(self) -> list[tuple[int, Operation]]:
        """Return what torch has raised for between the two hooks on this thread: at most one operation.

        Ask where the script's own code runs. There this thread is between the two hooks of no operation.
        """
        number = self._announced.get(get_ident(), -1)
        operation = self.in_flight.get(number)
        return [] if operation is None else [(number, operation)]

    def refuse(self, key: int) -> None:
        """torch has raised instead of enqueuing the operation. The next one has its number."""
        operation = self.in_flight.pop(key, None)
        if operation is None:
            return
        pair = operation.name, operation.peer
        if operation.peer == NO_PEER:
            self.enqueued -= operation.seq == self.enqueued
        elif self._transfers.get(pair) == operation.seq:
            self._transfers[pair] = operation.seq - 1
            if self._pairs.get(pair, -1) >= 0:
                self.state.words[self._pairs[pair]] = operation.seq - 1
        if self.cell >= 0:
            self.state.words[self.cell + G_ENQUEUED] = self.enqueued
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
            if operation.peer == NO_PEER:
                completed = operation.seq - 1
                break
        words[self.cell + G_COMPLETED] = completed
        if oldest is None:
            words[self.cell + G_OP] = 0
        else:
            self.state.ring.set_op(self.cell, oldest.name, oldest.seq, oldest.size, oldest.start, oldest.peer)


def _place(operation: Operation, call: PreHookArgs) -> None:
    """Note where its tensors are. A barrier has none. Other devices than CUDA's are left out."""
    tensors = call.output_tensors or call.input_tensors
    if tensors and tensors[0].is_cuda:
        operation.device, operation.address = tensors[0].device, tensors[0].data_ptr()
