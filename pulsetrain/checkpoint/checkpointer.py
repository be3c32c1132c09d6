"""The trainer's side of a checkpoint: `save`, `wait` and `restore`.

`save` copies at once what forward and backward may change: buffers, random generators, numbers. A thread
copies parameters and optimizer state into the arena while forward and backward go on. A hook waits for that
copy before an optimizer changes anything. So a checkpoint is consistent as of one step. It costs the loop
only what does not fit beside one forward and backward.
"""

from __future__ import annotations

import contextlib
import gc
import operator
import os
import time
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import Lock, Thread, get_ident
from typing import NamedTuple

import structlog
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from pulsetrain.checkpoint.copying import Copier, Pairs, copier_for
from pulsetrain.checkpoint.early_changes import EarlyChanges, Watch
from pulsetrain.checkpoint.memory.arena import ArenaWriter, SlotWriter, create_arena
from pulsetrain.checkpoint.memory.header_page import NOWHERE, is_arena
from pulsetrain.checkpoint.memory.layout import Layout, encode_values
from pulsetrain.checkpoint.memory.slots import Header, SlotInfo, edition_after, next_history
from pulsetrain.checkpoint.peer_lag import PeerLag
from pulsetrain.checkpoint.reshaped_restore import ask_for_parts, take_form
from pulsetrain.checkpoint.resharding.mailbox import read_offer, refuse_offer
from pulsetrain.checkpoint.rng import RngState, StateWithRng
from pulsetrain.checkpoint.save_result import SaveResult
from pulsetrain.checkpoint.slot_targets import LayoutCache, TargetCache
from pulsetrain.checkpoint.state_restore import put_back, read_state
from pulsetrain.checkpoint.statetree import Leaves, collect, expected_bytes
from pulsetrain.collectors.rank.handle import process_handle
from pulsetrain.collectors.rank.lost_update import UNSAVED
from pulsetrain.core.errors import CheckpointError, CorruptData, NotReshardable, PulsetrainError, UsageError

log = structlog.get_logger(__name__)

_COPY_AT_ONCE_BYTES = 8 << 20  # copied in less time than another thread needs to start
_STEPS = range(1 << 63)
DO_NOT_FIT = (CheckpointError, UsageError, ValueError, TypeError, LookupError, AssertionError)
"""What loaders of a script raise where a state of another world does not fit. A device's errors do not say
that."""


class Checkpointer:
    """Saves `state` into the agent's arena and restores it. Without an agent, the arena is private.
    So it is in a process that a rank has started.

    `state` maps names to modules, optimizers, schedulers (anything with state_dict and load_state_dict),
    tensors, numbers and strings. Random generators are included unless `rng` is false. `every` skips the
    steps between. With `blocking`, `save` returns when the bytes are copied. `replicated` says that every
    rank saves the same state, as in plain data parallelism. A job of another size can then go on from any
    rank's copy. Code that changes parameters without a torch optimizer's ``step()`` calls `wait()` first.
    Where it did not, that save fails and says which one.
    """

    def __init__(
        self,
        state: Mapping[str, object],
        *,
        every: int = 1,
        blocking: bool = False,
        rng: bool = True,
        replicated: bool = False,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """Raises `CheckpointError` for `every` below 1, and beside another one that is not closed.

        Raises `CorruptData` for an arena of another version.
        """
        if every < 1:
            raise CheckpointError(f"every = {every}: allowed: 1 or more")
        environ = _of_this_process(environ)
        _refuse_second(environ.get("PULSETRAIN_ARENA_FD"))
        self.state = state
        self._every = every
        self._blocking, self._replicated = blocking, replicated
        self._rng = RngState() if rng else None
        self._identity = _Identity.of(environ)
        fd = environ.get("PULSETRAIN_ARENA_FD")
        own = create_arena() if fd is None else os.dup(int(fd))
        self._arena = ArenaWriter(own)
        mine = (self._identity.rank, self._identity.attempt)
        before = next((i for i in self._arena.published() if (i.rank, i.attempt) == mine), None)
        self._edition = next_history(before.edition) if before else 0
        self._last_step: int | None = None  # of the last save, also where that was skipped
        if fd is None:
            self._arena.replicated_step = self._arena.durable_step = NOWHERE
        else:
            _open[fd] = self
        weakref.finalize(self._arena, os.close, own)  # a thread that outlives this object may use the arena
        self._copier: Copier = copier_for(torch.cuda.is_initialized())
        self._layouts, self._targets = LayoutCache(), TargetCache(self._copier)
        self._early_changes = EarlyChanges()
        self._preparer = ArenaPreparer(self._arena, self._copier)
        self._peer_lag = PeerLag(self._arena)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pulsetrain-checkpoint")
        self._last: SaveResult | None = None
        self._is_forked = False
        self._saving, self._saving_threads = Lock(), set[int]()
        _living.add(self)
        self._hook = register_optimizer_step_pre_hook(_wait_hook(weakref.ref(self)))
        self._close_at_restart = _close_hook(weakref.ref(self))
        process_handle().before_restart.append(self._close_at_restart)

    def save(self, step: int, *, durable: bool = False) -> SaveResult:
        """Save the state as of `step`, which is complete. `durable` asks the agent to persist this one.

        Where the job is about to be moved, the agent asks for steps that `every` would skip. A save without
        enough memory, or without a free slot, is skipped: the result says why. So is one of a signal's
        handler that interrupts another, one in a process that the rank has forked, and one of a `step` that
        is no integer from 0 to 2**63 - 1. A save of another thread is waited for. Raises `CheckpointError`
        only for a state that cannot be saved at all, with the name of the entry. Where somebody asks all
        ranks to stand still for a moment, they do so at the end of this call.
        """
        result = self._save(step, durable=durable)
        handle = process_handle()
        if handle.state is not None:
            handle.after_hold(handle.hold.after_save(handle.state))
            handle.raise_of_hold()
        return result

    def _save(self, step: int, *, durable: bool) -> SaveResult:
        if self._is_forked:
            return SaveResult(step, skipped="this process is a copy of the rank, made by fork")
        number = _as_step(step)
        if number is None:
            self._arena.skip(-1, why := f"step {step!r}: allowed: integers from 0 to 2**63 - 1")
            return SaveResult(step, skipped=why)
        state = process_handle().state
        if state is not None and state.update_lost():
            return self._skip(number, UNSAVED)
        thread = get_ident()
        if thread in self._saving_threads:
            return self._skip(number, "another save of this thread was interrupted by this one")
        started = time.perf_counter_ns()
        self._saving_threads.add(thread)  # before it waits: a signal's handler must not wait for itself
        try:
            with self._saving:
                return self._save_in_turn(number, durable=durable, started=started)
        finally:
            self._saving_threads.discard(thread)

    def _save_in_turn(self, step: int, *, durable: bool, started: int) -> SaveResult:
        """Save while no other thread does: two must not fill one slot."""
        self._edition, self._last_step = edition_after(self._edition, self._last_step, step), step
        if step % self._every and not durable and not self._arena.is_wanted(step):
            return SaveResult(step, skipped=f"not a multiple of every = {self._every}")
        return self._save_now(step, durable=durable, started=started)

    def _save_now(self, step: int, *, durable: bool, started: int) -> SaveResult:
        if self._last is not None:
            self._last.wait_finished()
        state = self._full_state()
        leaves = collect(state)
        head, layout = self._layouts.of(state, leaves)
        values = encode_values(leaves.values)
        self._early_changes.copy_at_once(leaves, layout)
        try:
            writing = self._arena.begin(self._header(step, len(head), len(values), layout, durable))
        except CheckpointError as error:
            return self._skip(step, str(error))
        if writing is None:
            return self._skip(step, "every slot waits for the agent to take a durable checkpoint")
        writing.bytes[: len(head) + len(values)] = head + values
        self._last = result = SaveResult(step, arena=self._arena)
        try:
            return self._copy_and_publish(writing, leaves, layout, result, started)
        except Exception as error:  # noqa: BLE001 - such as CUDA without memory: the loop goes on
            self._fail(result, error)
            result.mark_copied()
            return result
        except BaseException as error:  # such as KeyboardInterrupt: nobody may wait for this save
            self._fail(result, error)
            result.mark_copied()
            raise

    def _copy_and_publish(
        self, writing: SlotWriter, leaves: Leaves, layout: Layout, result: SaveResult, started: int
    ) -> SaveResult:
        """Begin the copy, and leave the rest to the checkpoint thread unless the state is small."""
        pairs = self._targets.pairs(writing, leaves, layout)
        self._copier.begin(pairs)
        at_once = self._copier.cpu_bound and writing.header.total_bytes < _COPY_AT_ONCE_BYTES
        if self._blocking or at_once:
            self._copy(writing, pairs, result)
        writing.blocked_ns = time.perf_counter_ns() - started
        if at_once:
            self._publish(writing, pairs, result)
        else:
            watch = None if result.copied else self._early_changes.watch(leaves, layout)
            self._thread.submit(self._publish, writing, pairs, result, watch)
        return result

    def copy_at_once(self) -> None:
        """From now on `save` returns when the bytes are copied, as with `blocking`: nothing else waits."""
        self._blocking = True
        self.wait()

    def wait(self) -> None:
        """Return when the state may be changed. Never raises.

        The copy of the last save is complete then. Where the agent asks for it (`checkpoint.lag_steps`),
        peers are no further behind than that.
        """
        if self._last is not None:
            self._last.wait_copied()
            self._peer_lag.wait(self._last)

    def restore(self, step: int | None = None) -> int | None:
        """Bring `state` back to `step`, by default the one that the agent names (PULSETRAIN_RESTORE_STEP).

        Returns the step. Returns None where there is nothing to restore, and empties the arena. Later
        checkpoints in the arena are forgotten. A process that the rank has forked changes nothing in the
        arena. Raises `CheckpointError` where the checkpoint is missing or does not fit the state,
        `CorruptData` where its bytes do not have its checksum. Random generators stay as they are where
        another rank, or a world of another size, has saved the step.
        """
        wanted = self._identity.restore_step if step is None else step
        if self._last is not None:
            self._last.wait_finished()
        state = self._full_state()
        if self._is_forked:
            return self._restore_copy(wanted, state)
        if wanted < 0:
            self._arena.clear()
            self._preparer.start(state)
            return None
        taken = self._take_parts(wanted)
        info = self._saved(wanted)
        if not self._arena.verified(info) and not self._arena.verify(info):
            self._arena.invalidate(info)
            raise CorruptData(f"checkpoint of step {wanted}: its bytes do not have its checksum")
        try:
            self._put_back(info, state)
        except DO_NOT_FIT as error:
            if not taken:
                raise
            self._arena.invalidate(info)
            raise self._refused(error) from error
        self._arena.forget_after(wanted)
        if self._last_step is not None and self._last_step > wanted:
            self._edition, self._last_step = next_history(self._edition), None
        self._preparer.start(state)
        return wanted

    def _restore_copy(self, step: int, state: Mapping[str, object]) -> int | None:
        """Restore in a process that the rank has forked. What the rank has saved stays as it is."""
        if step < 0:
            return None
        info = self._saved(step)
        if not self._arena.verify(info):
            raise CorruptData(f"checkpoint of step {step}: its bytes do not have its checksum")
        self._put_back(info, state)
        return step

    def _saved(self, step: int) -> SlotInfo:
        """What this rank has saved of the step. Raises `CheckpointError` where it is not in the arena."""
        info = self._arena.find(self._identity.rank, step)
        if info is None:
            have = ", ".join(str(i.step) for i in self._arena.published()) or "none"
            raise CheckpointError(
                f"step {step} of rank {self._identity.rank} is not in the arena; it has: {have}"
            )
        return info

    def _put_back(self, info: SlotInfo, state: Mapping[str, object]) -> None:
        """Random generators of another rank, or of a world of another size, are left out."""
        own = info.world == self._identity.world
        put_back(state if own else self.state, read_state(self._arena, info))

    def _take_parts(self, step: int) -> bool:
        """Where ranks of another world have saved the step, ask the agent for this rank's part of it.

        Returns whether that is so.
        """
        offer = read_offer(self._arena)
        if offer is None or offer.step != step:
            return False
        try:
            form = take_form(self.state, offer)
        except DO_NOT_FIT as error:
            raise self._refused(error) from error
        state = self._with_rng(form)
        leaves = collect(state)
        head, layout = self._layouts.of(state, leaves)
        values = encode_values(leaves.values)
        header = self._header(step, len(head), len(values), layout, durable=False)
        ask_for_parts(self._arena, header, head + values, layout, leaves)
        return True

    def _refused(self, error: Exception) -> NotReshardable:
        """Tell the agent why this rank cannot take its part."""
        why = str(error) if isinstance(error, PulsetrainError) else f"{type(error).__name__}: {error}"
        refuse_offer(self._arena, why)
        return NotReshardable(why)

    def close(self) -> None:
        """Finish the last save and remove the optimizer hook."""
        with contextlib.suppress(ValueError):  # closed before
            process_handle().before_restart.remove(self._close_at_restart)
        self._hook.remove()
        self._thread.shutdown(wait=True)
        self._preparer.join()
        self._copier.close()
        for fd in [fd for fd, one in _open.items() if one is self]:
            del _open[fd]

    def _full_state(self) -> Mapping[str, object]:
        return self._with_rng(self.state)

    def _with_rng(self, state: Mapping[str, object]) -> Mapping[str, object]:
        return state if self._rng is None else StateWithRng(state, self._rng)

    def _header(self, step: int, head: int, values: int, layout: Layout, durable: bool) -> Header:
        every, identity = self._arena.persist_every, self._identity
        return Header(
            step=step,
            attempt=identity.attempt,
            rank=identity.rank,
            world=identity.world,
            layout_bytes=head,
            values_bytes=values,
            payload_bytes=layout.payload_bytes,
            pinned=identity.has_agent and (durable or (every > 0 and step % every == 0)),
            durable=identity.has_agent and durable,
            replicated=self._replicated,
            shard=0 if self._replicated else layout.shard,
            edition=self._edition,
        )

    def _copy(
        self, writing: SlotWriter, pairs: Pairs, result: SaveResult, watch: Watch | None = None
    ) -> None:
        """Copy what is left and let the optimizer continue. `copy_ns` is this part alone."""
        try:
            writing.prefault()
            started = time.perf_counter_ns()
            self._copier.finish(pairs)
            ended = time.perf_counter_ns()
            if watch is not None:
                watch.check()
            writing.copy_ns = ended - started
            writing.blocked_ns += ended - result.waiting_since_ns if result.waiting_since_ns else 0
        except Exception as error:  # noqa: BLE001 - the loop goes on, the result says what happened
            self._fail(result, error)
        finally:
            result.mark_copied()

    def _publish(
        self, writing: SlotWriter, pairs: Pairs, result: SaveResult, watch: Watch | None = None
    ) -> None:
        """Seal and publish what is copied, on the checkpoint thread."""
        try:
            if not result.copied:
                self._copy(writing, pairs, result, watch)
            if not result.finished:
                result.mark_published(writing.commit())
        except Exception as error:  # noqa: BLE001 - a thread's edge: the loop goes on, the result says what happened
            self._fail(result, error)
        except BaseException as error:
            self._fail(result, error)
            raise

    def _fail(self, result: SaveResult, error: BaseException) -> None:
        result.mark_failed(error)
        why = str(error) or type(error).__name__
        self._arena.skip(result.step, why)
        log.warning("checkpoint_failed", step=result.step, error=why)

    def _skip(self, step: int, reason: str) -> SaveResult:
        self._arena.skip(step, reason)
        return SaveResult(step, skipped=reason)


_open: weakref.WeakValueDictionary[str, Checkpointer] = weakref.WeakValueDictionary()
"""by the file descriptor of the agent's arena: whoever writes it in this process"""


_living: weakref.WeakSet[Checkpointer] = weakref.WeakSet()


def _after_fork() -> None:
    """A copy of the rank has not the thread that copies. Nothing waits for that there, and nothing is saved.

    Asking for the process at each step would be simpler, but ends the graph of a compiled optimizer.
    """
    for checkpointer in list(_living):
        checkpointer._is_forked, checkpointer._last = True, None


os.register_at_fork(after_in_child=_after_fork)


def _as_step(step: object) -> int | None:
    """The step as an integer, also where it is that of another library. None: it cannot be one."""
    try:
        number = operator.index(step)  # type: ignore[arg-type]  # what it cannot take raises
    except Exception:  # noqa: BLE001 - such as a tensor of several elements
        return None
    return number if number in _STEPS else None


def _of_this_process(environ: Mapping[str, str]) -> Mapping[str, str]:
    """The environment without what is a rank's alone, where this process is a rank's child.

    It may have inherited the arena, as a child of `os.system` does, or not.
    """
    fd = environ.get("PULSETRAIN_ARENA_FD")
    if fd is None or (is_arena(int(fd)) and not process_handle().started_by_rank):
        return environ
    log.warning(
        "checkpoints_private", why="this process is a child of a rank, and its agent takes none of it"
    )
    return {k: v for k, v in environ.items() if k not in ("PULSETRAIN_ARENA_FD", "PULSETRAIN_RESTORE_STEP")}


def _refuse_second(fd: str | None) -> None:
    """Two of them would overwrite each other's slots, and restore each other's state."""
    if fd is None or fd not in _open:
        return
    gc.collect()  # perhaps nothing refers to it any more
    if fd in _open:
        raise CheckpointError(
            "a second Checkpointer in one process: give one of them the state of all models and optimizers, "
            "or close() the first"
        )


class ArenaPreparer:
    """Makes room for the first save while the first steps run: faults pages in, and pins them on CUDA."""

    def __init__(self, arena: ArenaWriter, copier: Copier) -> None:
        self._arena, self._copier = arena, copier
        self._thread: Thread | None = None

    def start(self, state: Mapping[str, object]) -> None:
        """Begin, once. A state that cannot be saved is left for `save` to report."""
        if self._thread is None:
            with contextlib.suppress(Exception):  # such as parameters of a lazy module that have no shape yet
                size = expected_bytes(state)
                self._thread = Thread(target=self._prepare, args=(size,), name="pulsetrain-arena")
                self._thread.start()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until the room is made."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _prepare(self, size: int) -> None:
        try:
            for region in self._arena.prepare(size):
                self._copier.adopt(region)
        except Exception as error:  # noqa: BLE001 - a thread's edge: the first save then makes the room itself
            log.warning("checkpoint_arena_not_prepared", error=str(error))


class _Identity(NamedTuple):
    """Whose checkpoints they are, and the step that the agent wants restored (-1: none)."""

    rank: int
    world: int
    attempt: int
    restore_step: int
    has_agent: bool

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> _Identity:
        return cls(
            rank=int(environ.get("RANK", "0")),
            world=max(1, int(environ.get("WORLD_SIZE", "0"))),
            attempt=int(environ.get("PULSETRAIN_ATTEMPT", "0")),
            restore_step=int(environ.get("PULSETRAIN_RESTORE_STEP", "-1")),
            has_agent="PULSETRAIN_ARENA_FD" in environ,
        )


def _close_hook(reference: weakref.ref[Checkpointer]) -> Callable[[], None]:
    """Closes it before its process begins another attempt: nothing of this one may write then."""

    def close() -> None:
        checkpointer = reference()
        if checkpointer is not None:
            checkpointer.close()

    return close


def _wait_hook(reference: weakref.ref[Checkpointer]) -> Callable[..., None]:
    """A hook before any optimizer's step. It keeps no checkpointer alive.

    Compiled into a step it would wait for nothing, and break the graph. So where `torch.compile` traces one,
    copies are complete when `save` returns, from then on.
    """

    def is_compiled() -> None:
        checkpointer = reference()
        if checkpointer is not None:
            checkpointer.copy_at_once()

    # Called by the trace, and no part of it: what torch.compiler.assume_constant_result does. That would
    # import the whole compiler into each rank.
    is_compiled._dynamo_marked_constant = True  # type: ignore[attr-defined]

    def before_step(*_: object) -> None:
        if torch.compiler.is_compiling():
            is_compiled()
            return
        checkpointer = reference()
        if checkpointer is not None:
            checkpointer.wait()

    return before_step
