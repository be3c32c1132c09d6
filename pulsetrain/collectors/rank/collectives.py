"""Every collective and every send and recv of a rank, through the hooks of torch's process groups.

torch calls a hook before and after each operation is enqueued, whoever asked for it: `torch.distributed`,
functional collectives and DTensor, DDP's reducer, FSDP2, pipeline P2P. The hook before it numbers the
operation and publishes it as in flight in its group's cell of the ring; the hook after it keeps the `Work`.
Completion is seen by asking, never by waiting: when the script itself returns from a wait, and otherwise by
`Work.is_completed` (for NCCL an event query) at the next hook, phase or step. A completed operation is a span
from its enqueue to the moment at which this rank could know of its end.

Numbers start at 1. Those of collectives count the collectives of a group, which every member enqueues in the
same order, so that ranks can be compared; sends and receives have a count of their own for each pair and
direction. Sizes follow nccl-tests: the larger of what goes in and what comes out.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from threading import get_ident
from time import perf_counter_ns
from typing import Any

import torch

from pulsetrain.collectors.layout import (
    G_COMPLETED,
    G_ENQUEUED,
    G_OP,
    PACK_OPEN,
    STACK_END,
    W_LAST,
    WAITING,
    span_head,
)
from pulsetrain.collectors.rank.phases import RankState
from pulsetrain.records.schema import CATEGORIES

HOOK_ID = 0x50554C53  # any number that no other user of the hooks takes
COMMUNICATION = CATEGORIES.index("communication")
_KINDS = ("ALLREDUCE", "ALLGATHER", "REDUCE_SCATTER", "ALLTOALL")
_NAMES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def phase_name(operation: str) -> str:
    """The phase of a hook's operation name.

    >>> phase_name("ALLGATHER_INTO_TENSOR_COALESCED"), phase_name("BARRIER")
    ('all_gather', 'barrier')
    """
    for prefix, name in zip(_KINDS, _NAMES, strict=True):
        if operation.startswith(prefix):
            return name
    return operation.lower()


def _payload(inputs: Sequence[Any], outputs: Sequence[Any]) -> int:
    """The larger of what goes in and what comes out, in bytes."""
    size = out = 0
    for tensor in inputs:
        size += tensor.nbytes
    for tensor in outputs:
        out += tensor.nbytes
    return max(size, out)


class Operation:
    """One operation from its enqueue to its completion; `work` is None until the hook after it has run."""

    __slots__ = ("context", "group", "name", "parent", "peer", "seq", "size", "start", "thread", "work")

    def __init__(self, group: Group, name: int, seq: int, size: int, peer: int) -> None:
        state = group.tracker.state
        self.group, self.name, self.seq, self.size, self.peer = group, name, seq, size, peer
        self.parent, self.context = state.parent, state.context
        self.thread = get_ident()
        self.work: Any = None
        self.start = perf_counter_ns()


class Group:
    """One process group: its cell in the ring and its operations in flight, oldest first."""

    def __init__(
        self, tracker: Tracker, name: str, members: Callable[[], Sequence[int]], *, host_only: bool
    ) -> None:
        self.tracker = tracker
        self.host_only = host_only
        self.cell = -1
        self._name = name
        self._label = tracker.state.ring.intern(name)
        self._ask_members = members
        self._members: Sequence[int] = ()
        self._numbers: dict[tuple[int, int], int] = {}
        self._heads: dict[int, int] = {}
        self._kinds: dict[Any, tuple[int, bool]] = {}
        self.enqueued = 0
        self.flying: dict[int, Operation] = {}

    def before(self, call: Any) -> None:
        """The hook before an enqueue: numbers the operation and publishes it."""
        tracker = self.tracker
        try:
            if tracker.pending:
                tracker.poll()
            if not self._members:
                self._open_cell()
            operation = self._operation(call)
            oldest = not self.flying
            self._take_off(call.op_id, operation)
            tracker.state.words[W_LAST] = operation.start
            if oldest:
                self._publish(operation)
        except Exception:  # noqa: BLE001 - a hook that raises would fail the collective; the status page counts
            tracker.state.fault()

    def _open_cell(self) -> None:
        """At the first operation, for torch knows a group's members only after it has made the group."""
        self._members = self._ask_members()
        self.cell = self.tracker.state.ring.add_group(self._name, self._members)

    def after(self, call: Any) -> None:
        """The hook after an enqueue: keeps the work, to ask it later."""
        try:
            operation = self.flying.get(call.op_id)
            if operation is not None:
                work = call.work
                operation.work = work
                if work is None:
                    self.tracker.coalesced.append((operation, call.op_id))
                else:
                    self.tracker.pending[id(work)] = (operation, call.op_id)
                    self.tracker.poll_after_backward()
        except Exception:  # noqa: BLE001 - as above
            self.tracker.state.fault()

    def _operation(self, call: Any) -> Operation:
        kind = call.name
        known = self._kinds.get(kind)
        if known is None:
            name = self.tracker.state.ring.intern(phase_name(kind.name))
            known = self._kinds[kind] = (name, kind.name in ("SEND", "RECV"))
        name, is_transfer = known
        size = _payload(call.input_tensors, call.output_tensors)
        if is_transfer:
            peer = self._members[call.root] if 0 <= call.root < len(self._members) else -1
            seq = self._numbers[name, peer] = self._numbers.get((name, peer), 0) + 1
            return Operation(self, name, seq, size, peer)
        if self.flying:
            self._forget_failed()
        self.enqueued = seq = self.enqueued + 1
        if self.cell >= 0:
            self.tracker.state.words[self.cell + G_ENQUEUED] = seq
        return Operation(self, name, seq, size, -1)

    def _forget_failed(self) -> None:
        """Drops what this thread announced and then failed to enqueue: torch raised between the two hooks."""
        me = get_ident()
        for key, operation in list(self.flying.items()):
            if (
                operation.work is None
                and operation.thread == me
                and not self.tracker.is_coalescing(operation)
            ):
                self._land(key)

    def _take_off(self, key: int, operation: Operation) -> None:
        self.flying[key] = operation
        processor = self.tracker.state.processor
        if self.host_only and processor is not None:
            processor.enter_collective()

    def _land(self, key: int) -> bool:
        """Whether it was in flight."""
        if self.flying.pop(key, None) is None:
            return False
        processor = self.tracker.state.processor
        if self.host_only and processor is not None:
            processor.leave_collective()
        return True

    def finish(self, key: int, operation: Operation, end: int) -> None:
        """The operation is over: writes its span and publishes what is in flight now."""
        if not self._land(key):
            return
        state = self.tracker.state
        head = self._heads.get(operation.name)
        if head is None:
            head = span_head(operation.name, COMMUNICATION, group=self._label)
            self._heads[operation.name] = head
        state.ring.span(
            head | operation.parent,
            operation.context,
            operation.start,
            end,
            seq=operation.seq,
            size=operation.size,
            peer=operation.peer,
        )
        self.show()

    def abandon(self, key: int) -> None:
        """Forgets an operation whose end nobody will ever know."""
        self._land(key)
        self.show()

    def show(self) -> None:
        """Publishes the oldest operation in flight, and up to where the collectives are complete."""
        if self.cell < 0:
            return
        completed, oldest = self.enqueued, None
        for operation in list(self.flying.values()):
            oldest = oldest or operation
            if operation.peer < 0:
                completed = operation.seq - 1
                break
        words = self.tracker.state.words
        words[self.cell + G_COMPLETED] = completed
        if oldest is None:
            words[self.cell + G_OP] = 0
        else:
            self._publish(oldest)

    def _publish(self, operation: Operation) -> None:
        if self.cell >= 0:
            self.tracker.state.ring.set_op(
                self.cell, operation.name, operation.seq, operation.size, operation.start, operation.peer
            )


class Tracker:
    """All process groups of a rank, and the works that are not known to have completed."""

    def __init__(self, state: RankState) -> None:
        self.state = state
        self.pending: dict[object, tuple[Operation, int]] = state.pending
        state.poll = self.poll
        self.coalesced: list[tuple[Operation, int]] = []
        self._attached: weakref.WeakSet[Any] = weakref.WeakSet()
        self._main = get_ident()
        self._graph_task: Callable[[], int] = torch._C._current_graph_task_id
        self._queue: Callable[..., None] = torch.autograd.Variable._execution_engine.queue_callback
        self._backward = -1

    def attach(self, process_group: Any, name: str, members: Callable[[], Sequence[int]]) -> None:
        """Hooks a process group; `members` gives its global ranks in group order, once it is in use."""
        group = Group(self, name, members, host_only=_host_only(process_group))
        process_group.register_pre_hook(HOOK_ID, group.before)
        process_group.register_post_hook(HOOK_ID, group.after)
        self._attached.add(process_group)

    def detach(self, process_groups: Iterable[Any]) -> None:
        """Takes the hooks off at exit: torch would release them after the interpreter is gone, and crash."""
        self.pending.clear()
        for process_group in {*self._attached, *process_groups}:
            with contextlib.suppress(RuntimeError):  # a group that was never hooked
                process_group.unregister_pre_hook(HOOK_ID)
                process_group.unregister_post_hook(HOOK_ID)

    def is_coalescing(self, operation: Operation) -> bool:
        return any(operation is other for other, _ in self.coalesced)

    def poll(self) -> None:
        """Finishes what has completed; one query for each work that is pending."""
        try:
            for key, (operation, number) in list(self.pending.items()):
                if operation.work.is_completed():
                    self._finish(key, perf_counter_ns())
                elif (
                    operation.peer >= 0 and operation.group.host_only and sys.getrefcount(operation.work) <= 2
                ):
                    # Nobody else holds it, so nobody will wait for it, and gloo tells its end to waiters.
                    self.pending.pop(key, None)
                    operation.group.abandon(number)
        except Exception:  # noqa: BLE001 - a failed work raises when asked; the script learns of it from its wait
            self.state.fault()

    def poll_after_backward(self) -> None:
        """Inside a backward pass: polls at its end, for DDP's reducer waits for its buckets there, in C++.

        The engine runs callbacks in the order in which they were queued, and the reducer queues its own after
        its last bucket; hence one callback that queues the poll behind that.
        """
        task = self._graph_task()
        if task != self._backward:
            self._backward = task
            if task >= 0:
                self._queue(lambda: self._queue(self._after_backward))

    def _after_backward(self) -> None:
        """The reducer has waited for futures, which gloo marks an instant before their works."""
        try:
            for key, (operation, _) in list(self.pending.items()):
                if operation.peer < 0 and operation.group.host_only and operation.work.get_future().done():
                    self._finish(key, perf_counter_ns())
        except Exception:  # noqa: BLE001 - raised here it would fail the backward pass
            self.state.fault()
        self.poll()

    def _finish(self, key: object, end: int) -> None:
        found = self.pending.pop(key, None)
        if found is not None:
            operation, number = found
            operation.group.finish(number, operation, end)

    def _show_wait(self, operation: Operation) -> int:
        """Puts a wait of the main thread on the status page; the word to clear after it, or -1."""
        state = self.state
        at = state.top
        if at >= STACK_END or get_ident() != self._main:
            return -1
        head = span_head(operation.name, COMMUNICATION) | WAITING
        PACK_OPEN(state.ring.memory, at, head, perf_counter_ns())
        return at >> 3

    def wait(self, original: Callable[..., Any], work: Any, *args: Any, **kwargs: Any) -> Any:
        """What `Work.wait` becomes. A wait that raises leaves its operation in flight, as evidence."""
        found = self.pending.get(id(work))
        if found is None:
            return original(work, *args, **kwargs)
        shown = self._show_wait(found[0])
        try:
            result = original(work, *args, **kwargs)
        finally:
            if shown >= 0:
                self.state.words[shown] = 0
        try:
            if found[0].group.host_only or work.is_completed():
                self._finish(id(work), perf_counter_ns())
        except Exception:  # noqa: BLE001 - the wait succeeded; what fails after it is ours
            self.state.fault()
        return result

    def wait_newest(self, original: Callable[..., Any], *args: Any) -> Any:
        """What the functional collectives' wait becomes; C++ does not say for which work: the newest."""
        found = next(reversed(self.pending.values()), None)
        if found is None or torch.compiler.is_compiling():
            return original(*args)
        shown = self._show_wait(found[0])
        try:
            result = original(*args)
        finally:
            if shown >= 0:
                self.state.words[shown] = 0
        self.poll()
        return result

    def end_coalescing(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What `ProcessGroup._end_coalescing` becomes: one work for all operations since its start."""
        work = original(*args, **kwargs)
        batch, self.coalesced = self.coalesced, []
        for place, (operation, number) in enumerate(batch):
            operation.work = work
            if work is not None:
                self.pending[(id(work), number) if place else id(work)] = (operation, number)
        return work


def _host_only(process_group: Any) -> bool:
    """Whether every operation of the group ends on the host: then a wait that returns is a completion."""
    backends = {process_group._get_backend(device).name() for device in process_group._device_types}
    return backends <= {"gloo", "mpi"}
