"""Every collective and every send and receive of a rank, through the hooks of torch's process groups.

torch calls a hook before and after each operation is enqueued, whoever asked for it: `torch.distributed`,
functional collectives and DTensor, DDP's reducer, FSDP2, pipeline P2P. The hook before it numbers the
operation and publishes it as in flight in its group's cell of the ring. The hook after it keeps the `Work`
(`operations`), or an event behind a synchronous operation, of which NCCL gives no work (`stream_end`). What
is captured into a CUDA graph does not run then, and is left alone.

Completion is seen by asking, never by waiting: when the script itself returns from a wait, and otherwise by
`Work.is_completed` (for NCCL an event query) at the next hook, phase or step. A completed operation is a span
from its enqueue to the moment at which this rank could know of its end.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from threading import get_ident
from time import perf_counter_ns
from typing import TYPE_CHECKING, Concatenate, Literal, ParamSpec, TypeVar, cast

import torch

from pulsetrain.collectors.layout import W_DEVICE, W_DEVICE_REFUSED
from pulsetrain.collectors.rank import stream_end
from pulsetrain.collectors.rank.blocking import Blocking
from pulsetrain.collectors.rank.operations import Group, Operation
from pulsetrain.collectors.rank.phases import RankState, Turns
from pulsetrain.collectors.rank.split_group import SplitGroup
from pulsetrain.collectors.rank.stream_end import StreamEnd
from pulsetrain.protocol.transfer_peer import NO_PEER

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, Work

MAX_HELD_BYTES = 64 << 20
"""Works of a device that were waited for may hold so much memory until the host sees their end."""
HOOK_ID = 0x50554C53  # any number that no other user of the hooks takes

P = ParamSpec("P")
T = TypeVar("T")


class Tracker:
    """All process groups of a rank, and the works that are not known to have completed."""

    def __init__(self, state: RankState) -> None:
        self.state = state
        self.pending: dict[object, tuple[Operation, int]] = {}
        state.pending, state.poll, state.settle = self.pending, self.poll, self.settle
        self._groups: weakref.WeakKeyDictionary[ProcessGroup, Group | SplitGroup] = (
            weakref.WeakKeyDictionary()
        )
        self._attached: list[tuple[weakref.ref[ProcessGroup], Group | SplitGroup]] = []
        self._has_device = False  # operations of a group may end elsewhere than on the host
        self._main = get_ident()
        self._graph_task: Callable[[], int] = torch._C._current_graph_task_id
        self._queue: Callable[..., None] = torch.autograd.Variable._execution_engine.queue_callback
        self._backward = -1
        self._blocking = Blocking(state)
        self._reducing = False  # the wait that is on is the reducer's
        self._left: set[int] = set()  # ids of the operations that it may wait for

    def attach(
        self, process_group: ProcessGroup, name: str, get_members: Callable[[], Sequence[int]]
    ) -> None:
        """Hook a process group. `get_members` returns its global ranks in group order, once it is in use."""
        limit_ns, sides, size = timeout_ns(process_group), _sides(process_group), process_group.size()
        group: Group | SplitGroup
        if len(sides) > 1:
            group = SplitGroup(
                Group(self, name, get_members, host_only=False, timeout_ns=limit_ns, size=size),
                Group(self, f"{name}/cpu", get_members, host_only=True, timeout_ns=limit_ns, size=size),
            )
        else:
            on_host = "host" in sides
            group = Group(self, name, get_members, host_only=on_host, timeout_ns=limit_ns, size=size)
        if "device" in sides:
            self._has_device = True
            self.state.words[W_DEVICE_REFUSED] = 1
            if self.state.turns is not None:
                self.state.turns.refuse()
        process_group.register_pre_hook(HOOK_ID, group.before)
        process_group.register_post_hook(HOOK_ID, group.after)
        self._groups[process_group] = group
        self._attached.append((weakref.ref(process_group), group))

    def detach(self, process_groups: Iterable[ProcessGroup]) -> None:
        """Remove the hooks at exit.

        Otherwise torch releases them after the interpreter is gone, and crashes.
        """
        self.pending.clear()
        for process_group in {*self._groups, *process_groups}:
            with contextlib.suppress(RuntimeError):  # a group that was never hooked
                process_group.unregister_pre_hook(HOOK_ID)
                process_group.unregister_post_hook(HOOK_ID)

    def retire(self, registered: Container[ProcessGroup]) -> None:
        """Empty the cells of groups that torch knows no more. Their names may come again."""
        try:
            for known in self._attached[:]:
                process_group = known[0]()
                if process_group is None or process_group not in registered:
                    ended = [side.retire() for side in _sides_of(known[1])]
                    if all(ended):
                        self._attached.remove(known)
        except Exception:  # noqa: BLE001 - the script makes its next group with or without us
            self.state.fault()

    def forget(self) -> None:
        """The attempt is over, and its process groups are gone. What they had in flight will not end."""
        self.pending.clear()
        for _, group in self._attached:
            for side in _sides_of(group):
                side.forget()
        self._backward = -1
        self._left = set()
        if self._reducing:
            self._reducing = False
            self._blocking.end(counts=False)

    def capturing(self) -> bool:
        """Return whether the current stream is captured into a CUDA graph.

        Nothing runs there, and a query of an event would spoil the capture. Never initialises CUDA.
        """
        return self._has_device and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()

    def take_synchronous(self, operation: Operation, number: int, end: StreamEnd | None = None) -> None:
        """Take an operation without a work. `end`: behind it, if it is known. Else one is recorded.

        An operation whose stream is unknown ends now, on the host's clock. A barrier of NCCL does: the host
        has waited for it.
        """
        group = operation.group
        if end is None and operation.device is not None and torch.cuda.is_initialized():
            end = stream_end.record(operation.device)
        if end is not None and not group.host_only:
            operation.work = end
            self.pending[operation] = (operation, number)
            return
        now = perf_counter_ns()
        if group.host_only and get_ident() == self._main and not self._blocking.began:
            operation.blocked = now - operation.start
            self.state.blocked += operation.blocked
        group.finish(number, operation, now)

    def settle(self) -> None:
        """A step has ended. What torch has refused on this thread meanwhile is in flight no more."""
        self.take_refused()
        self.poll()

    def take_refused(self) -> None:
        """Drop, at the next poll, what torch has raised for before it was enqueued on this thread.

        Until then it is evidence: a script that does not catch the error ends before it gets there.
        """
        try:
            for _, group in self._attached[:]:
                for side in _sides_of(group):
                    for number, operation in side.refused():
                        self.pending[operation] = (operation, number)
        except Exception:  # noqa: BLE001 - the script has an error of its own to look at
            self.state.fault()

    def poll(self, waited: Sequence[object] = ()) -> None:
        """Finish what has completed, and the silent operations whose output is in `waited`.

        Asks each pending work once, one that raises never again: it stays in flight as evidence. Where works
        end in order, those behind one that has not ended are not asked: each collective would ask them all.
        """
        try:
            if self.capturing():
                return
        except Exception:  # noqa: BLE001 - a device that failed raises whatever it is asked: the script will see
            self.state.fault()
            return
        behind: set[object] = set()  # streams that have not got to their first end, known or as `_order`
        for key, (operation, number) in list(self.pending.items()):
            try:
                self._ask(key, operation, number, waited, behind)
            except Exception:  # noqa: BLE001 - a failed work raises when asked; the script learns of it from its wait
                self.pending.pop(key, None)
                self.state.fault()

    def _ask(
        self, key: object, operation: Operation, number: int, waited: Sequence[object], behind: set[object]
    ) -> None:
        work = operation.work
        if work is None:
            self.pending.pop(key, None)
            operation.group.refuse(number)
            return
        if isinstance(work, StreamEnd):
            if work.stream in behind:
                return
            if work.is_completed():
                self._finish(key, perf_counter_ns())
            else:
                behind.add(work.stream)
            return
        order = _order(operation)
        if order is not None and order in behind:
            return
        if work.is_completed() or (operation.output and operation.output in self._addresses(waited)):
            self._finish(key, perf_counter_ns())
        elif order is not None:
            behind.add(order)
        elif operation.peer != NO_PEER and operation.group.host_only and sys.getrefcount(work) <= 3:
            # Nobody else holds it, so nobody will wait for it. Gloo tells its end only to waiters.
            self.pending.pop(key, None)
            operation.group.abandon(number)

    def _addresses(self, waited: Sequence[object]) -> Collection[int]:
        """Return the addresses of what was waited for."""
        try:
            values = waited[0] if waited and isinstance(waited[0], list) else waited
            tensors = [getattr(value, "elem", value) for value in values]  # what an asynchronous one wraps
            outputs = [tensor.data_ptr() for tensor in tensors if isinstance(tensor, torch.Tensor)]
            return [output for output in outputs if output]
        except Exception:  # noqa: BLE001 - the wait succeeded; what fails after it is ours
            self.state.fault()
            return ()

    def poll_after_backward(self) -> None:
        """Inside a backward pass, see to its end: DDP's reducer waits for its buckets there, in C++.

        The engine runs callbacks in the order in which they were queued. The reducer queues its own after its
        last bucket. So a callback that is queued now runs before it. What that one queues runs behind it.
        """
        task = self._graph_task()
        if task != self._backward:
            self._backward = task
            if task >= 0:
                self._queue(self._before_reducer)

    def _before_reducer(self) -> None:
        """Finish what needs no wait. If buckets are left, the reducer now waits for the last of them."""
        try:
            self._finish_buckets()
            self.poll()
            if self._reducing:  # left open by a backward pass that failed
                self._blocking.end(counts=False)
                self._take_turn()
            left = [operation for operation, _ in self.pending.values() if _ends_with_future(operation)]
            self._reducing = bool(left) and self._blocking.begin(left[-1])
            self._left = {id(operation) for operation in left}
            self._queue(self._after_reducer)
            if self._reducing and self.state.turns is not None:
                self.state.turns.leave()
        except Exception:  # noqa: BLE001 - raised here it would fail the backward pass
            self.state.fault()

    def _after_reducer(self) -> None:
        """Finish what the reducer has waited for."""
        waited = self._reducing
        try:
            if waited:
                self._reducing = False
                ended = {id(operation) for _, operation in self._ended_buckets()}
                self._blocking.end(counts=bool(ended & self._left))
            self._finish_buckets()
        except Exception:  # noqa: BLE001 - as above
            self.state.fault()
        self.poll()
        if waited:
            self._take_turn()

    def _take_turn(self) -> None:
        if self.state.turns is not None:
            self.state.turns.enter()

    def _ended_buckets(self) -> list[tuple[object, Operation]]:
        """Collectives whose futures are done. Gloo marks a future just before its work."""
        return [
            (key, operation)
            for key, (operation, _) in list(self.pending.items())
            if (work := operation.work) is not None
            and not isinstance(work, StreamEnd)
            and _ends_with_future(operation)
            and work.get_future().done()
        ]

    def _finish_buckets(self) -> None:
        for key, _ in self._ended_buckets():
            self._finish(key, perf_counter_ns())

    def _finish(self, key: object, end: int) -> None:
        entry = self.pending.pop(key, None)
        if entry is not None:
            operation, number = entry
            operation.group.finish(number, operation, end)

    # What replaces functions of torch. Each of them runs once or more for every collective, where caches are
    # cold. So these are closures of one frame, and what they call is as little as can be.

    def _shared(self) -> Turns | None:
        """Return the turns of the device where the rank shares one, else None."""
        turns = self.state.turns
        if turns is not None and (turns.held >= 0 or self.state.words[W_DEVICE]):
            return turns
        return None

    def watched_wait(self, original: Callable[Concatenate[Work, P], T]) -> Callable[Concatenate[Work, P], T]:
        """Return `Work.wait`, watched. A wait that raises leaves its operation in flight, as evidence."""
        pending, blocking = self.pending, self._blocking

        def wait(work: Work, /, *args: P.args, **kwargs: P.kwargs) -> T:
            entry, turns = pending.get(id(work)), self._shared()
            if turns is not None:
                turns.leave()
            try:
                if entry is None:
                    return original(work, *args, **kwargs)
                began = blocking.begin(entry[0])
                try:
                    result = original(work, *args, **kwargs)
                finally:
                    if began:
                        blocking.end()
                self._waited_for(work, entry[0])
                return result
            finally:
                if turns is not None:
                    turns.enter()

        return wait

    def _waited_for(self, work: Work, operation: Operation) -> None:
        try:
            if operation.group.host_only:
                self._finish(id(work), perf_counter_ns())
            elif not self.capturing():
                if work.is_completed():
                    self._finish(id(work), perf_counter_ns())
                else:
                    self._let_go(operation)
        except Exception:  # noqa: BLE001 - the wait succeeded; what fails after it is ours
            self.state.fault()

    def _let_go(self, operation: Operation) -> None:
        """Hold the work of an operation no more that the current stream waits for, if too much is held.

        A work of NCCL holds what comes out. The script may have dropped it, and then its memory is free as
        soon as nobody holds the work. An event on the stream that waits tells the end instead.
        """
        if (
            operation.device is None
            or isinstance(operation.work, StreamEnd)
            or self._held() <= MAX_HELD_BYTES
        ):
            return
        work, end = operation.work, stream_end.record(operation.device)
        for key, (other, number) in list(self.pending.items()):
            if other.work is work:  # and the others of its batch
                self.pending.pop(key, None)
                other.work = end
                self.pending[other] = (other, number)

    def _held(self) -> int:
        """Return how many bytes of devices are held by works at most."""
        entries = list(self.pending.values())
        return sum(op.size for op, _ in entries if op.address and not isinstance(op.work, StreamEnd))

    def _let_go_of_tensors(self, waited: Sequence[object]) -> None:
        """The current stream waits for these. C++ has let go of their works itself."""
        try:
            if self.capturing() or self._held() <= MAX_HELD_BYTES:
                return
            addresses = self._addresses(waited)
            for operation, _ in list(self.pending.values()):
                if operation.address and operation.address in addresses:
                    self._let_go(operation)
        except Exception:  # noqa: BLE001 - the wait succeeded; what fails after it is ours
            self.state.fault()

    def watched_wait_for_any(self, original: Callable[P, T]) -> Callable[P, T]:
        """Return the wait of functional collectives or of futures, watched.

        C++ does not say for which work it waits: take the newest. A future may be of RPC or of a thread, and
        then of no work at all. So before it waits for one, those that have ended are asked for.
        """
        pending, blocking, main, future = self.pending, self._blocking, self._main, torch._C.Future
        is_compiling = torch.compiler.is_compiling

        def wait(*args: P.args, **kwargs: P.kwargs) -> T:
            if blocking.began and get_ident() == main:  # torch calls it up to three times inside itself
                result = original(*args, **kwargs)
                if self._reducing:  # the wait around it does not look at outputs
                    self.poll(args)
                return result
            turns = self._shared()
            if turns is not None:
                turns.leave()
            try:
                if args and isinstance(args[0], future) and pending and not is_compiling():
                    self.poll()
                entries = [*pending.values()]
                if not entries or is_compiling():
                    return original(*args, **kwargs)
                began = blocking.begin(entries[-1][0])
                try:
                    result = original(*args, **kwargs)
                finally:
                    if began:
                        blocking.end()
                if pending:
                    self.poll(args)
                    if self._has_device:
                        self._let_go_of_tensors(args)
                return result
            finally:
                if turns is not None:
                    turns.enter()

        return wait

    def watched_call(self, original: Callable[P, T]) -> Callable[P, T]:
        """Return a call that enqueues collectives in C++ and waits for them there, as DDP's for buffers."""

        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            turns = self._shared()
            if turns is not None:
                turns.leave()
            try:
                before, began = set(self.pending), perf_counter_ns()
                result = original(*args, **kwargs)
                self._called(before, began)
                return result
            finally:
                if turns is not None:
                    turns.enter()

        return call

    def _called(self, before: Collection[object], began: int) -> None:
        """What was enqueued since `began` was waited for, too."""
        try:
            inside = [operation for key, (operation, _) in self.pending.items() if key not in before]
            if inside and inside[-1].group.host_only and get_ident() == self._main:
                took = perf_counter_ns() - began
                self.state.blocked += took
                inside[-1].blocked += took
            self._finish_buckets()
        except Exception:  # noqa: BLE001 - the call succeeded; what fails after it is ours
            self.state.fault()

    def watched_report(self, original: Callable[P, T]) -> Callable[P, T]:
        """Return what torch calls with the arguments of a collective that has raised."""

        def report(*args: P.args, **kwargs: P.kwargs) -> T:
            self.take_refused()
            return original(*args, **kwargs)

        return report

    def watched_start_of_batch(
        self, original: Callable[Concatenate[ProcessGroup, P], T]
    ) -> Callable[Concatenate[ProcessGroup, P], T]:
        """Return `ProcessGroup._start_coalescing`, watched. A group that cannot coalesce raises."""

        def start(process_group: ProcessGroup, /, *args: P.args, **kwargs: P.kwargs) -> T:
            result = original(process_group, *args, **kwargs)
            group = self._group_on(process_group, args[0] if args else kwargs.get("device"))
            if group is not None and group.batch is None:
                group.batch = []
            return result

        return start

    def watched_end_of_batch(
        self, original: Callable[Concatenate[ProcessGroup, P], T]
    ) -> Callable[Concatenate[ProcessGroup, P], T]:
        """Return `ProcessGroup._end_coalescing`, watched: one work for all operations since its start.

        A synchronous batch has none.
        """

        def end(process_group: ProcessGroup, /, *args: P.args, **kwargs: P.kwargs) -> T:
            device = args[0] if args else kwargs.get("device")
            group = self._group_on(process_group, device)
            batch: list[tuple[Operation, int]] = []
            if group is not None:
                batch, group.batch = group.batch or [], None
            work = original(process_group, *args, **kwargs)
            self._end_batch(batch, work, device)
            return work

        return end

    def _group_on(self, process_group: ProcessGroup, device: object) -> Group | None:
        """Return what follows the operations of a process group on `device`."""
        group = self._groups.get(process_group)
        if isinstance(group, SplitGroup):
            return group.on(device if isinstance(device, torch.device) else None)
        return group

    def _end_batch(self, batch: Sequence[tuple[Operation, int]], work: object, device: object) -> None:
        try:
            if self.capturing():
                for operation, number in batch:
                    operation.group.abandon(number)
            elif work is not None:
                for position, (operation, number) in enumerate(batch):
                    operation.work = cast("Work", work)
                    self.pending[(id(work), number) if position else id(work)] = (operation, number)
            elif batch:
                on_cuda = isinstance(device, torch.device) and device.type == "cuda"
                end = stream_end.record(cast("torch.device", device)) if on_cuda else None
                for operation, number in batch:
                    self.take_synchronous(operation, number, end)
        except Exception:  # noqa: BLE001 - the batch was enqueued; what fails after it is ours
            self.state.fault()


def _ends_with_future(operation: Operation) -> bool:
    """Return whether the operation's future tells its end: for collectives that end on the host."""
    return operation.group.host_only and operation.peer == NO_PEER and not operation.output


def timeout_ns(process_group: ProcessGroup) -> int:
    """Return the time after which torch ends an operation of the group, 0 where a backend does not say."""
    try:
        backends = [process_group._get_backend(device) for device in process_group._device_types]
        timeouts = [backend.options._timeout for backend in backends]
        return min((int(t.total_seconds() * 1e9) for t in timeouts), default=0)
    except Exception:  # noqa: BLE001 - a backend of somebody else's has other options, or none
        return 0


def _sides(process_group: ProcessGroup) -> frozenset[Literal["host", "device"]]:
    """Return where operations of the group end, by its backends. On the host, a wait that returns is the end.

    One that runs all devices, as MPI, is one side.
    """
    backends = {process_group._get_backend(device).name() for device in process_group._device_types}
    return frozenset("host" if name in ("gloo", "mpi") else "device" for name in backends)


def _sides_of(group: Group | SplitGroup) -> Sequence[Group]:
    return (group.device, group.host) if isinstance(group, SplitGroup) else (group,)


def _order(operation: Operation) -> tuple[object, ...] | None:
    """Return what stands for the stream that an operation's work ends on. None: its order is not known.

    NCCL runs the collectives of a group on a device in order, and so what goes to one peer. On the host works
    end in any order, and a work that tells its end only to who waits must be asked each time.
    """
    if operation.device is None or operation.group.host_only or operation.output:
        return None
    return operation.group, operation.device, operation.peer
