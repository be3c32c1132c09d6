"""The trainer's side of a checkpoint: three calls, an explicit result, and no waiting that can be avoided.

`save` takes everything that forward and backward may change (buffers, random generators, numbers) at once,
and lets the copy of parameters and optimizer state into the arena run in a thread beside them. Before an
optimizer changes anything, a hook waits for that copy. So a checkpoint is consistent as of one step, and
its cost to the loop is what did not fit beside one forward and backward.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import time
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from itertools import compress
from operator import not_
from threading import Event, Thread
from typing import Any, NamedTuple

import structlog
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from pulsetrain.checkpoint.copying import Copier, Pairs, Tensors, copier_for
from pulsetrain.checkpoint.memory import layout as layouts
from pulsetrain.checkpoint.memory.arena import ArenaWriter, SlotWriter, create_arena
from pulsetrain.checkpoint.memory.slots import Header, SlotInfo, payload_offset
from pulsetrain.checkpoint.rng import RngState
from pulsetrain.checkpoint.statetree import (
    Leaves,
    collect,
    expected_bytes,
    layout_of,
    put_back,
    views,
)
from pulsetrain.core.errors import CheckpointError, CorruptData

log = structlog.get_logger(__name__)

_RNG = "pulsetrain.rng"
_HANDED_OVER_BYTES = 8 << 20  # less is copied in the time that another thread takes to begin
LAG_TIMEOUT_S = 2.0


class SaveResult:
    """What became of one save. `skipped` says why nothing was saved; else the checkpoint is on its way."""

    def __init__(self, step: int, *, skipped: str = "", arena: ArenaWriter | None = None) -> None:
        self.step = step
        self.skipped = skipped
        self._arena = arena
        self._copied = Event()
        self._awaited_ns = 0  # since when training waits for the copy
        self._published: Future[SlotInfo] = Future()

    def __bool__(self) -> bool:
        """It was not skipped, and has not failed so far."""
        return not self.skipped and not (self._published.done() and self._published.exception())

    def __repr__(self) -> str:
        return f"SaveResult(step={self.step}, status={self.status!r})"

    @property
    def status(self) -> str:
        """`skipped: WHY`, `copying`, `copied`, `saved` (published in memory), or `failed: WHY`."""
        if self.skipped:
            return f"skipped: {self.skipped}"
        if self._published.done():
            error = self._published.exception()
            return f"failed: {error}" if error else "saved"
        return "copied" if self._copied.is_set() else "copying"

    def wait(self, timeout_s: float | None = None) -> SlotInfo:
        """Wait until it is published in memory. Raises `CheckpointError` where it was skipped, failed or is
        late."""
        if self.skipped:
            raise CheckpointError(f"step {self.step} was skipped: {self.skipped}")
        try:
            return self._published.result(timeout_s)
        except FutureTimeout as error:
            raise CheckpointError(f"step {self.step} is not saved after {timeout_s} s") from error

    def wait_replicated(self, timeout_s: float, poll_s: float = 0.002) -> None:
        """Wait until the agent's peers hold this step, or a later one. Raises `CheckpointError`."""
        self.wait(timeout_s)
        self._poll(lambda arena: arena.replicated_step, "in a peer's memory", timeout_s, poll_s)

    def wait_durable(self, timeout_s: float, poll_s: float = 0.02) -> None:
        """Wait until the agent has committed this step, or a later one, to storage. Raises
        `CheckpointError`."""
        self.wait(timeout_s)
        self._poll(lambda arena: arena.durable_step, "in storage", timeout_s, poll_s)

    def _poll(
        self, safe_step: Callable[[ArenaWriter], int], where: str, timeout_s: float, poll_s: float
    ) -> None:
        assert self._arena is not None, "what is published has an arena"
        deadline = time.monotonic() + timeout_s
        while safe_step(self._arena) < self.step:
            if time.monotonic() > deadline:
                raise CheckpointError(f"step {self.step} is not {where} after {timeout_s} s")
            time.sleep(poll_s)


class Checkpointer:
    """Saves `state` into the agent's arena and restores it; without an agent, into a private arena.

    `state` maps names to modules, optimizers, schedulers (anything with state_dict and load_state_dict),
    tensors, numbers and strings. Random generators are included unless `rng` is false. `every` skips the
    steps between. With `blocking`, `save` returns when the bytes are copied. Code that changes parameters
    without a torch optimizer's ``step()`` calls `wait()` before it does.
    """

    def __init__(
        self,
        state: Mapping[str, Any],
        *,
        every: int = 1,
        blocking: bool = False,
        rng: bool = True,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """Raises `CheckpointError` for `every` below 1, `CorruptData` for an arena it does not know."""
        if every < 1:
            raise CheckpointError(f"every = {every}: allowed: 1 or more")
        self.state = state
        self._every = every
        self._blocking = blocking
        self._rng = RngState() if rng else None
        self._environ, self._who = environ, _Who.of(environ)
        fd = environ.get("PULSETRAIN_ARENA_FD")
        own = create_arena() if fd is None else os.dup(int(fd))  # stays open while a thread of ours uses it
        weakref.finalize(self, os.close, own)
        self._arena = ArenaWriter(own)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pulsetrain-checkpoint")
        self._last: SaveResult | None = None
        self._known: tuple[Any, bytes, layouts.Layout] | None = None
        self._places: dict[int, _Places] = {}
        self._room: Thread | None = None
        self._behind = False
        self._copier: Copier = copier_for(torch.cuda.is_initialized())
        self._hook = register_optimizer_step_pre_hook(_waiter(weakref.ref(self)))

    def save(self, step: int, *, durable: bool = False) -> SaveResult:
        """Save the state as of `step`, which is complete. `durable` asks the agent to persist this one.

        Never raises into the loop for want of room or of an agent: the result says what happened. Raises
        `CheckpointError` only for a state that cannot be saved at all, naming the entry.
        """
        if step % self._every and not durable:
            return SaveResult(step, skipped=f"not a multiple of every = {self._every}")
        started = time.perf_counter_ns()
        self._settle()
        leaves = collect(self._whole())
        head, layout = self._layout(leaves)
        values = layouts.encode_values(leaves.values)
        try:
            writing = self._arena.begin(self._header(step, len(head), len(values), layout, durable))
        except CheckpointError as error:
            return self._skip(step, str(error))
        if writing is None:
            return self._skip(step, "every slot waits for the agent to take a durable checkpoint")
        writing.bytes[: len(head) + len(values)] = head + values
        self._last = result = SaveResult(step, arena=self._arena)
        pairs = self._pairs(writing, leaves, layout)
        self._copier.begin(pairs)
        at_once = self._copier.immediate and writing.header.total_bytes < _HANDED_OVER_BYTES
        if self._blocking or at_once:
            self._copy(writing, pairs, result)
        writing.blocked_ns = time.perf_counter_ns() - started
        if at_once:
            self._publish(writing, pairs, result)
        else:
            self._thread.submit(self._publish, writing, pairs, result)
        return result

    def wait(self) -> None:
        """Return when the state may be changed: the copy of the last save is complete, and where the agent
        asks for it (`checkpoint.lag_steps`) peers are no further behind than that. Never raises."""
        if self._last is not None:
            if not self._last._copied.is_set():
                self._last._awaited_ns = time.perf_counter_ns()
                self._last._copied.wait()
            self._stay_close(self._last)

    def _stay_close(self, last: SaveResult) -> None:
        """Wait for peers that lag, at most `LAG_TIMEOUT_S`; once that was in vain, no more until they are
        back."""
        lag, deadline = self._arena.lag_steps, 0.0
        while lag and last and self._arena.replicated_step < last.step - lag + 1:
            if not deadline:
                deadline = time.monotonic() + (0.0 if self._behind else LAG_TIMEOUT_S)
            elif time.monotonic() > deadline:
                self._behind = True
                return
            time.sleep(0.0002)
            lag = self._arena.lag_steps
        self._behind = False

    def restore(self, step: int | None = None) -> int | None:
        """Bring `state` back to `step`, by default the one the agent names (PULSETRAIN_RESTORE_STEP).

        Returns the step, or None where there is nothing to restore; the arena is emptied then. Later
        checkpoints in the arena are forgotten. Raises `CheckpointError` where the checkpoint is not there or
        does not fit the state, `CorruptData` where its bytes do not have its checksum.
        """
        wanted = int(self._environ.get("PULSETRAIN_RESTORE_STEP", "-1")) if step is None else step
        self._settle()
        if wanted < 0:
            self._arena.clear()
            self._make_room()
            return None
        info = self._arena.find(self._who.rank, wanted)
        if info is None:
            have = ", ".join(str(i.step) for i in self._arena.published()) or "none"
            raise CheckpointError(
                f"step {wanted} of rank {self._who.rank} is not in the arena; it has: {have}"
            )
        if not self._arena.verified(info) and not self._arena.verify(info):
            self._arena.invalidate(info)
            raise CorruptData(f"checkpoint of step {wanted}: its bytes do not have its checksum")
        put_back(self._whole(), self._read(info))
        self._arena.forget_after(wanted)
        self._make_room()
        return wanted

    def close(self) -> None:
        """Finish the last save and let go of the optimizer hook."""
        self._hook.remove()
        self._thread.shutdown(wait=True)
        if self._room is not None:
            self._room.join()

    def _make_room(self) -> None:
        """Fault in (on CUDA: pin) the arena's pages beside the steps before the first save."""
        if self._room is None:
            with contextlib.suppress(CheckpointError):  # a state that cannot be saved: `save` says so
                size = expected_bytes(self._whole())
                self._room = Thread(target=self._prepare, args=(size,), name="pulsetrain-arena")
                self._room.start()

    def _prepare(self, size: int) -> None:
        try:
            for region in self._arena.prepare(size):
                self._copier.adopt(region)
        except Exception as error:  # noqa: BLE001 - a thread's edge: the first save then makes the room itself
            log.warning("checkpoint_room_not_prepared", error=str(error))

    def _whole(self) -> Mapping[str, Any]:
        return self.state if self._rng is None else _WithRng(self.state, self._rng)

    def _settle(self) -> None:
        """The save before this one is published, or has failed."""
        if self._last is not None and not self._last._published.done():
            with contextlib.suppress(Exception):
                self._last._published.result()

    def _layout(self, leaves: Leaves) -> tuple[bytes, layouts.Layout]:
        """Layout and its JSON, kept while the structure of the state stays."""
        signature = leaves.signature
        if self._known is None or self._known[0] != signature:
            layout = layout_of(self._whole(), leaves)
            self._known = (signature, layout.encode(), layout)
        return self._known[1], self._known[2]

    def _header(self, step: int, head: int, values: int, layout: layouts.Layout, durable: bool) -> Header:
        every, who = self._arena.persist_every, self._who
        return Header(
            step=step,
            attempt=who.attempt,
            rank=who.rank,
            world=who.world,
            layout_bytes=head,
            values_bytes=values,
            payload_bytes=layout.payload_bytes,
            pinned=who.has_agent and (durable or (every > 0 and step % every == 0)),
            durable=who.has_agent and durable,
        )

    def _pairs(self, writing: SlotWriter, leaves: Leaves, layout: layouts.Layout) -> Pairs:
        """Each tensor and its place in the slot; the places are kept while slot and layout stay."""
        h, known = writing.header, self._places.get(writing.slot)
        offset = payload_offset(h.layout_bytes, h.values_bytes)
        if known is None or not known.fits(writing.region, layout, offset, leaves.late):
            targets = views(writing.bytes[offset:], layout)
            known = _Places(writing.region, layout, offset, leaves.late, *_parted(targets, leaves.late))
            self._places[writing.slot] = known
            self._copier.adopt(writing.region)
        early, late = _parted(leaves.locals, leaves.late)
        return Pairs((early, known.early), (late, known.late))

    def _copy(self, writing: SlotWriter, pairs: Pairs, result: SaveResult) -> None:
        """Copy what is left and let the optimizer go; `copy_ns` is this part alone."""
        try:
            writing.prefault()
            started = time.perf_counter_ns()
            self._copier.finish(pairs)
            ended = time.perf_counter_ns()
            writing.copy_ns = ended - started
            writing.blocked_ns += ended - result._awaited_ns if result._awaited_ns else 0
        except Exception as error:  # noqa: BLE001 - the loop goes on, the result tells
            self._fail(result, error)
        finally:
            result._copied.set()

    def _publish(self, writing: SlotWriter, pairs: Pairs, result: SaveResult) -> None:
        """On the checkpoint thread: seal and publish what is copied."""
        if not result._copied.is_set():
            self._copy(writing, pairs, result)
        try:
            if not result._published.done():
                result._published.set_result(writing.commit())
        except Exception as error:  # noqa: BLE001 - a thread's edge: the loop goes on, the result tells
            self._fail(result, error)

    def _fail(self, result: SaveResult, error: Exception) -> None:
        result._published.set_exception(CheckpointError(f"step {result.step}: {error}"))
        self._arena.skip(result.step, str(error))
        log.warning("checkpoint_failed", step=result.step, error=str(error))

    def _skip(self, step: int, reason: str) -> SaveResult:
        self._arena.skip(step, reason)
        return SaveResult(step, skipped=reason)

    def _read(self, info: SlotInfo) -> dict[str, Any]:
        """The saved state as nested mappings of tensors over the arena's memory."""
        data = self._arena.view(info)
        layout = layouts.decode(data[: info.layout_bytes])
        values = layouts.decode_values(data[info.layout_bytes : info.layout_bytes + info.values_bytes])
        payload = data[payload_offset(info.layout_bytes, info.values_bytes) :]
        tree: dict[str, Any] = layouts.rebuild(layout.tree, views(payload, layout), values)
        return tree


class _Who(NamedTuple):
    """Whose checkpoints they are."""

    rank: int
    world: int
    attempt: int
    has_agent: bool

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> _Who:
        names = ("RANK", "WORLD_SIZE", "PULSETRAIN_ATTEMPT")
        rank, world, attempt = (int(environ.get(name, "0")) for name in names)
        return cls(rank, max(1, world), attempt, "PULSETRAIN_ARENA_FD" in environ)


@dataclass(frozen=True)
class _Places:
    """Tensors over one slot's memory, and what they were made for."""

    region: mmap.mmap
    layout: layouts.Layout
    offset: int
    is_late: list[bool]
    early: Tensors
    late: Tensors

    def fits(self, region: mmap.mmap, layout: layouts.Layout, offset: int, is_late: list[bool]) -> bool:
        same = self.region is region and self.layout is layout and self.offset == offset
        return same and self.is_late == is_late


def _parted(tensors: Tensors, is_late: list[bool]) -> tuple[Tensors, Tensors]:
    """Those that are not late, and those that are."""
    return list(compress(tensors, map(not_, is_late))), list(compress(tensors, is_late))


class _WithRng(dict[str, Any]):
    """The user's state and the generators as one mapping; numbers that are restored reach the user's."""

    def __init__(self, state: Mapping[str, Any], rng: RngState) -> None:
        super().__init__(state, **{_RNG: rng})
        self._state = state

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        self._state[key] = value  # type: ignore[index]  # put_back only sets numbers, in a mapping that has them


def _waiter(checkpointer: weakref.ref[Checkpointer]) -> Any:
    """A hook before any optimizer's step; it keeps no checkpointer alive."""

    def before_step(*_: Any) -> None:
        alive = checkpointer()
        if alive is not None:
            alive.wait()

    return before_step
