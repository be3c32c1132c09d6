"""Sees the checkpoints that the script reads: a rank that reads one works, and it goes on from its step.

Reads before the first step are a `load` phase. Later ones may be data, which is a phase already. A file that
an earlier attempt of the job wrote says where this attempt goes on, unless the script has said it. A script
may make some steps before it reads that file, to warm up.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from time import perf_counter_ns
from types import ModuleType

from pulsetrain.collectors.checkpoint_cell import CheckpointCell, read_cell, shown_path, write_cell
from pulsetrain.collectors.layout import LOADED_AT, W_LAST_STEP, W_RESUMED
from pulsetrain.collectors.rank.auto.context import Auto
from pulsetrain.collectors.rank.auto.saves import Arguments, Named, folder_of, hook_package, path_of
from pulsetrain.collectors.rank.auto.segments import Segments
from pulsetrain.collectors.rank.auto.wrapping import Call, CallThen, argument, wrap
from pulsetrain.collectors.rank.handle import Handle
from pulsetrain.collectors.rank.known_files import FilesOfEnvironment, KnownFiles, mark_of

PHASE = "load"
NAMELESS = "(a file without a name)"
LOADER = "torch.distributed.checkpoint.state_dict_loader"
SAFETENSORS = "safetensors.torch"


def install(auto: Auto) -> None:
    """Hook all readers that are imported, and those that will be."""
    import torch

    if auto.handle.state is None:
        return
    watch = LoadWatch(auto.handle, auto.segments, FilesOfEnvironment(os.environ))
    wrap(torch.serialization, "load", watch.torch_load)
    torch.load = torch.serialization.load
    auto.imports.when_imported(SAFETENSORS, lambda module: wrap(module, "load_file", watch.load_file))
    auto.imports.when_imported(LOADER, watch.hook_loader)


class LoadWatch:
    """Makes a phase of each read before the first step, and notes what was read."""

    def __init__(self, handle: Handle, segments: Segments, known: KnownFiles) -> None:
        self._handle, self._segments, self._known = handle, segments, known

    def hook_loader(self, module: ModuleType) -> None:
        """Hook torch.distributed.checkpoint."""
        hook_package(module, {"load": self.dcp_load})

    def torch_load(self, args: Arguments, kwargs: Named) -> Call | None:
        """Begin `torch.load(f)`."""
        target = argument(args, kwargs, 0, "f")
        return self._begin(target if path_of(target) is not None else getattr(target, "name", None))

    def load_file(self, args: Arguments, kwargs: Named) -> Call | None:
        """Begin `safetensors.torch.load_file(filename)`. `load_model` calls it too."""
        return self._begin(argument(args, kwargs, 0, "filename"))

    def dcp_load(self, args: Arguments, kwargs: Named) -> Call | None:
        """Begin `torch.distributed.checkpoint.load(state_dict, checkpoint_id=, storage_reader=)`."""
        return self._begin(folder_of(kwargs))

    def _begin(self, source: object) -> Call | None:
        handle = self._handle
        state = handle.state
        try:
            if state is None:
                return None
            path = path_of(source)
            began_ns = perf_counter_ns()
            if state.words[W_LAST_STEP] > state.words[W_RESUMED]:  # a step is done
                return CallThen(nullcontext(), lambda: self._note_late(path, began_ns), handle.fault)
            return CallThen(self._segments.interrupt(PHASE), lambda: self._note(path, began_ns), handle.fault)
        except Exception:  # noqa: BLE001 - the script's own call must go on
            handle.fault()
            return None

    def _note_late(self, path: str | os.PathLike[str] | None, began_ns: int) -> None:
        """A file was read after steps. It is a start if it leads further, and nothing else was a start."""
        state = self._handle.state
        if state is None or path is None or state.words[W_RESUMED] >= 0:
            return
        if self._known.step_of(path) > state.words[W_LAST_STEP]:
            self._note(path, began_ns)

    def _note(self, path: str | os.PathLike[str] | None, began_ns: int) -> None:
        """A file was read. If it is known, the attempt goes on behind its step. Else it may: step -1."""
        handle = self._handle
        step = self._known.step_of(path) if path is not None else -1
        if handle.state is None or (step < 0 and read_cell(handle.state.ring.memory, LOADED_AT)):
            return
        mark = mark_of(path) if path is not None else None
        cell = CheckpointCell(
            step=step,
            bytes=mark.bytes if mark else 0,
            files=1,
            start_ns=began_ns,
            end_ns=perf_counter_ns(),
            path=shown_path(path) if path is not None else NAMELESS,
            file_bytes=mark.bytes if mark else 0,
            file_mtime_ns=mark.mtime_ns if mark else 0,
        )
        write_cell(handle.state.ring.memory, LOADED_AT, cell)
        if step >= 0:
            handle.continue_behind(step)
