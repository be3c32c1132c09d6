"""Sees the checkpoints that the script writes by itself: `torch.save`, distributed checkpoints, safetensors.

Each write is a `checkpoint` phase while it runs. What is saved is passed on untouched, and what a write
raises passes without a frame of ours. Only what holds half an update is not written (`UpdateLostError`).
"""

from __future__ import annotations

import atexit
import io
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import ModuleType
from typing import TYPE_CHECKING, cast

import torch

from pulsetrain.collectors.rank.auto.context import Auto
from pulsetrain.collectors.rank.auto.memory_saves import MemorySaves
from pulsetrain.collectors.rank.auto.own_saves import OpenFile, OwnSaves, Write
from pulsetrain.collectors.rank.auto.segments import Segments
from pulsetrain.collectors.rank.auto.trained import TrainedState
from pulsetrain.collectors.rank.auto.wrapping import Begin, Call, argument, wrap
from pulsetrain.collectors.rank.handle import Handle
from pulsetrain.collectors.rank.lost_update import UNSAVED, UpdateLostError
from pulsetrain.collectors.rank.phases import NO_SPAN, RankState

if TYPE_CHECKING:
    from concurrent.futures import Future

    import torch

PHASE = "checkpoint"
SAVER = "torch.distributed.checkpoint.state_dict_saver"
SAFETENSORS = "safetensors.torch"

Arguments = tuple[object, ...]
Named = Mapping[str, object]


def install(auto: Auto) -> None:
    """Hook all writers that are imported, and those that will be."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    if auto.handle.state is None:
        return
    saves = OwnSaves(auto.handle.state, lambda: int(os.environ.get("RANK", "0")))
    watch = SaveWatch(auto.handle, auto.segments, saves)
    register_optimizer_step_post_hook(watch.stepped)
    atexit.register(watch.ended)
    wrap(torch.serialization, "save", watch.torch_save)
    torch.save = torch.serialization.save
    auto.imports.when_imported(SAFETENSORS, lambda module: wrap(module, "save_file", watch.save_file))
    auto.imports.when_imported(SAVER, watch.hook_saver)
    watch.in_memory.install(auto.imports)


class SaveWatch:
    """Makes a phase of each write, and tells `saves` what was written."""

    def __init__(self, handle: Handle, segments: Segments, saves: OwnSaves) -> None:
        self._handle, self._segments, self._saves = handle, segments, saves
        self.in_memory = MemorySaves(self._landed, handle.fault)
        self._trained = TrainedState()
        self._in_background: set[str] = set()  # what asynchronous saves write now
        self._folders: set[Write] = set()  # distributed checkpoints that are written now

    def stepped(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """An optimizer has stepped."""
        if torch.compiler.is_compiling():
            return
        try:
            self._trained.add(optimizer)
            self._saves.settle()
        except Exception:  # noqa: BLE001 - training must not see our faults
            self._handle.fault()

    def ended(self) -> None:
        """The script ends. No step follows that would show the name of its last checkpoint."""
        try:
            self._saves.settle()
        except Exception:  # noqa: BLE001 - the script's exit must not fail because of us
            self._handle.fault()

    def hook_saver(self, module: ModuleType) -> None:
        """Hook torch.distributed.checkpoint."""
        hook_package(module, {"save": self.dcp_save, "async_save": self.dcp_async_save})

    def torch_save(self, args: Arguments, kwargs: Named) -> Call | None:
        """Begin `torch.save(obj, f)`."""
        return self._begin(argument(args, kwargs, 0, "obj"), argument(args, kwargs, 1, "f"))

    def save_file(self, args: Arguments, kwargs: Named) -> Call | None:
        """Begin `safetensors.torch.save_file(tensors, filename)`. `save_model` calls it too."""
        return self._begin(argument(args, kwargs, 0, "tensors"), argument(args, kwargs, 1, "filename"))

    def dcp_save(self, args: Arguments, kwargs: Named) -> Call | None:
        """Begin `torch.distributed.checkpoint.save(state_dict, checkpoint_id=, storage_writer=)`.

        It calls `torch.save` for each tensor, also in threads of its own. These calls are a part of it.
        """
        call = self._begin(argument(args, kwargs, 0, "state_dict"), folder_of(kwargs))
        if call is not None:
            self._folders.add(call.write)
            call.release = lambda: self._folders.discard(call.write)
        return call

    def dcp_async_save(self, args: Arguments, kwargs: Named) -> Call | None:
        """Begin `async_save`. What it returns says later that the write has ended."""
        call = self._begin(argument(args, kwargs, 0, "state_dict"), folder_of(kwargs))
        path = path_of(folder_of(kwargs))
        return (
            call if call is None or path is None else _AsyncCall(call, self._in_background, os.fspath(path))
        )

    def _begin(self, saved: object, target: object) -> _Call | None:
        handle = self._handle
        if handle.state is None or (self._folders and path_of(target) is None):
            return None
        try:
            share = self._trained.share(saved)
            _refuse_half_update(handle.state, share)
            if share <= 0 and path_of(target) is None:
                return None  # bytes in memory that are no training state
            return _Call(self._span(), self._saves.begin(share), self._counted(target), handle.fault)
        except UpdateLostError:
            raise
        except Exception:  # noqa: BLE001 - the script's own call must go on
            handle.fault()
            return None

    def _span(self) -> AbstractContextManager[None]:
        """The inferred phase. Where the script marks its checkpoints itself, none."""
        return NO_SPAN if self._segments.is_off(PHASE) else self._segments.interrupt(PHASE)

    def _counted(self, target: object) -> Callable[[Write], None]:
        """Return what to do with a write once it has ended."""
        path = path_of(target)
        if path is not None and os.fspath(path) not in self._in_background:
            return lambda write: self._saves.ended(write, path)
        file = opened_file(target)
        if file is not None:
            return lambda write: self._saves.closes_later(file, write)
        if isinstance(target, io.BytesIO):
            return lambda write: self.in_memory.remember(target, write)
        # An asynchronous save around this one counts, or nobody knows where it goes.
        return lambda write: None

    def _landed(self, write: Write, target: object) -> None:
        """What was saved into memory is in a file now. One of fsspec may get its name behind its end."""
        path = path_of(target)
        if path is not None:
            self._saves.ended(write, path)
            return
        file = opened_file(target)
        if file is not None:
            self._saves.closes_later(file, write, path_of(getattr(target, "path", None)))


class _Call:
    """One write that ends with the call."""

    def __init__(
        self,
        span: AbstractContextManager[None],
        write: Write,
        ended: Callable[[Write], None],
        fault: Callable[[], None],
    ) -> None:
        self.span, self.write, self.fault = span, write, fault
        self.release: Callable[[], None] = lambda: None
        self._ended = ended

    def returned(self, result: object) -> None:
        """See `Call`."""
        self.release()
        try:
            self._ended(self.write)
        except Exception:  # noqa: BLE001 - the script has saved, whatever we make of it
            self.fault()

    def raised(self) -> None:
        """See `Call`."""
        self.release()


class _AsyncCall:
    """One write that goes on after the call has returned. `writing` holds the paths of all such writes."""

    def __init__(self, call: _Call, writing: set[str], path: str) -> None:
        self.span = call.span
        self._call, self._writing, self._path = call, writing, path
        writing.add(path)

    def returned(self, result: object) -> None:
        """See `Call`. `result` is a future, or holds one."""
        try:
            future = getattr(result, "upload_completion", result)
            cast("Future[object]", future).add_done_callback(self._done)
        except Exception:  # noqa: BLE001 - another kind of answer: the end of the write stays unknown
            self.raised()
            self._call.fault()

    def raised(self) -> None:
        """See `Call`."""
        self._writing.discard(self._path)

    def _done(self, future: Future[object]) -> None:
        self.raised()
        if not future.cancelled() and future.exception() is None:
            self._call.returned(None)


def _refuse_half_update(state: RankState, share: float) -> None:
    if share > 0 and state.update_lost():
        raise UpdateLostError(UNSAVED)


def hook_package(module: ModuleType, begins: Mapping[str, Begin]) -> None:
    """Wrap functions of a module of torch.distributed.checkpoint, also in its package."""
    package = sys.modules.get("torch.distributed.checkpoint")
    for name, begin in begins.items():
        wrap(module, name, begin)
        if package is not None and hasattr(package, name):
            setattr(package, name, getattr(module, name))


def path_of(target: object) -> str | os.PathLike[str] | None:
    """Return where a write goes on disk, None for anything else than a path."""
    if isinstance(target, str):
        return target
    return target if isinstance(target, os.PathLike) else None


def opened_file(target: object) -> OpenFile | None:
    """Return the file of the system that `target` is, or that it wraps as those of tempfile and fsspec do.

    That of an archive is where the member of a `zipfile.ZipFile` is written, as by Stable-Baselines3.
    """
    inside = getattr(target, "__dict__", {})
    archive = getattr(inside.get("_zipfile"), "fp", None)
    files = (target, inside.get("file"), inside.get("f"), archive)
    return next((file for file in files if isinstance(file, OpenFile)), None)


def folder_of(named: Named) -> object:
    """Return where a distributed checkpoint goes or comes from, None if that is not said."""
    for name in ("checkpoint_id", "storage_writer", "storage_reader"):
        given = named.get(name)
        if given is not None:
            return given if name == "checkpoint_id" else getattr(given, "path", None)
    return None
