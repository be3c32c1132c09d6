"""Every collective and every send and receive of a rank, through the hooks of torch's process groups.

torch calls a hook before and after each operation is enqueued, whoever asked for it: `torch.distributed`,
functional collectives and DTensor, DDP's reducer, FSDP2, pipeline P2P. The hook before it numbers the
operation and publishes it as in flight in its group's cell of the ring. The hook after it keeps the `Work`
(`operations`).

Completion is seen by asking, never by waiting: when the script itself returns from a wait, and otherwise by
`Work.is_completed` (for NCCL an event query) at the next hook, phase or step. A completed operation is a span
from its enqueue to the moment at which this rank could know of its end.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from threading import get_ident
from time import perf_counter_ns
from typing import TYPE_CHECKING, TypeVar

import torch

from pulsetrain.collectors.layout import PACK_OPEN, STACK_END, WAITING, span_head
from pulsetrain.collectors.rank.operations import COMMUNICATION, Group, Operation
from pulsetrain.collectors.rank.phases import RankState

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, Work

HOOK_ID = 0x50554C53  # any number that no other user of the hooks takes

T = TypeVar("T")


class Tracker:
    """All process groups of a rank, and the works that are not known to have completed."""

    def __init__(self, state: RankState) -> None:
        self.state = state
        self.pending: dict[object, tuple[Operation, int]] = {}
        state.pending, state.poll = self.pending, self.poll
        self.coalesced: list[tuple[Operation, int]] = []
        self._attached: weakref.WeakSet[ProcessGroup] = weakref.WeakSet()
        self._main = get_ident()
        self._graph_task: Callable[[], int] = torch._C._current_graph_task_id
        self._queue: Callable[..., None] = torch.autograd.Variable._execution_engine.queue_callback
        self._backward = -1

    def attach(
        self, process_group: ProcessGroup, name: str, get_members: Callable[[], Sequence[int]]
    ) -> None:
        """Hook a process group. `get_members` returns its global ranks in group order, once it is in use."""
        group = Group(self, name, get_members, host_only=_host_only(process_group))
        process_group.register_pre_hook(HOOK_ID, group.before)
        process_group.register_post_hook(HOOK_ID, group.after)
        self._attached.add(process_group)

    def detach(self, process_groups: Iterable[ProcessGroup]) -> None:
        """Remove the hooks at exit.

        Otherwise torch releases them after the interpreter is gone, and crashes.
        """
        self.pending.clear()
        for process_group in {*self._attached, *process_groups}:
            with contextlib.suppress(RuntimeError):  # a group that was never hooked
                process_group.unregister_pre_hook(HOOK_ID)
                process_group.unregister_post_hook(HOOK_ID)

    def is_coalescing(self, operation: Operation) -> bool:
        """Return whether the operation waits for the end of a coalesced batch."""
        return any(operation is other for other, _ in self.coalesced)

    def poll(self) -> None:
        """Finish what has completed. Asks each pending work once."""
        try:
            for key, (operation, number) in list(self.pending.items()):
                if operation.work is not None and operation.work.is_completed():
                    self._finish(key, perf_counter_ns())
                elif (
                    operation.peer >= 0 and operation.group.host_only and sys.getrefcount(operation.work) <= 2
                ):
                    # Nobody else holds it, so nobody will wait for it. Gloo tells its end only to waiters.
                    self.pending.pop(key, None)
                    operation.group.abandon(number)
        except Exception:  # noqa: BLE001 - a failed work raises when asked; the script learns of it from its wait
            self.state.fault()

    def poll_after_backward(self) -> None:
        """Inside a backward pass, poll at its end: DDP's reducer waits for its buckets there, in C++.

        The engine runs callbacks in the order in which they were queued. The reducer queues its own after its
        last bucket. So one callback queues the poll behind that.
        """
        task = self._graph_task()
        if task != self._backward:
            self._backward = task
            if task >= 0:
                self._queue(lambda: self._queue(self._after_backward))

    def _after_backward(self) -> None:
        """Finish what the reducer has waited for.

        It waits for futures, which gloo marks just before their works.
        """
        try:
            for key, (operation, _) in list(self.pending.items()):
                work = operation.work
                if work is None or operation.peer >= 0 or not operation.group.host_only:
                    continue
                if work.get_future().done():
                    self._finish(key, perf_counter_ns())
        except Exception:  # noqa: BLE001 - raised here it would fail the backward pass
            self.state.fault()
        self.poll()

    def _finish(self, key: object, end: int) -> None:
        entry = self.pending.pop(key, None)
        if entry is not None:
            operation, number = entry
            operation.group.finish(number, operation, end)

    def _show_wait(self, operation: Operation) -> int:
        """Put a wait of the main thread on the status page. Returns the word to clear after it, or -1."""
        state = self.state
        at = state.top
        if at >= STACK_END or get_ident() != self._main:
            return -1
        head = span_head(operation.name, COMMUNICATION) | WAITING
        PACK_OPEN(state.ring.memory, at, head, perf_counter_ns())
        return at >> 3

    def wait(self, original: Callable[..., T], work: Work, *args: object, **kwargs: object) -> T:
        """Replace `Work.wait`. A wait that raises leaves its operation in flight, as evidence."""
        entry = self.pending.get(id(work))
        if entry is None:
            return original(work, *args, **kwargs)
        shown = self._show_wait(entry[0])
        try:
            result = original(work, *args, **kwargs)
        finally:
            if shown >= 0:
                self.state.words[shown] = 0
        try:
            if entry[0].group.host_only or work.is_completed():
                self._finish(id(work), perf_counter_ns())
        except Exception:  # noqa: BLE001 - the wait succeeded; what fails after it is ours
            self.state.fault()
        return result

    def wait_newest(self, original: Callable[..., T], *args: object) -> T:
        """Replace the functional collectives' wait.

        C++ does not say for which work it waits: take the newest.
        """
        entry = next(reversed(self.pending.values()), None)
        if entry is None or torch.compiler.is_compiling():
            return original(*args)
        shown = self._show_wait(entry[0])
        try:
            result = original(*args)
        finally:
            if shown >= 0:
                self.state.words[shown] = 0
        self.poll()
        return result

    def end_coalescing(self, original: Callable[..., Work], *args: object, **kwargs: object) -> Work:
        """Replace `ProcessGroup._end_coalescing`: one work for all operations since its start."""
        work = original(*args, **kwargs)
        batch, self.coalesced = self.coalesced, []
        for position, (operation, number) in enumerate(batch):
            operation.work = work
            if work is not None:
                self.pending[(id(work), number) if position else id(work)] = (operation, number)
        return work


def _host_only(process_group: ProcessGroup) -> bool:
    """Return whether every operation of the group ends on the host.

    Then a wait that returns is a completion.
    """
    backends = {process_group._get_backend(device).name() for device in process_group._device_types}
    return backends <= {"gloo", "mpi"}
