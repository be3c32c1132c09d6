"""What a rank's script has written as checkpoints, and the cell of the ring that shows the newest.

Files of one step are one checkpoint: model and optimizer, the shards of a large model, a folder. It counts
once its files hold enough of the training state together (`trained`). A file counts only when it is complete,
so a write that raises or that is killed never does.
"""

from __future__ import annotations

import io
import itertools
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter_ns

from pulsetrain.collectors.checkpoint_cell import CheckpointCell, shown_path, write_cell
from pulsetrain.collectors.layout import SAVED_AT, W_LAST_STEP
from pulsetrain.collectors.rank.known_files import METADATA, FileMark, mark_of
from pulsetrain.collectors.rank.phases import RankState

ENOUGH = 0.5  # a checkpoint holds at least so many elements for each one that this rank trains
BESIDE = 200  # files of a folder that are looked at for one that was renamed
UNCLOSED = 16  # files that are remembered until the script closes them
OpenFile = io.BufferedWriter | io.BufferedRandom | io.FileIO
"""What `open`, `os.fdopen` and `tempfile` give for writing bytes."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Write:
    """One write: what it holds (`TrainedState.share`), and the step that it contains."""

    step: int
    share: float
    start_ns: int


@dataclass(kw_only=True, slots=True)
class _Step:
    """All files of one step."""

    step: int
    start_ns: int
    share: float = 0.0
    sizes: dict[str, int] = field(default_factory=dict)  # bytes by path


@dataclass(frozen=True, kw_only=True, slots=True)
class _Unclosed:
    """A file that the script has written into. `key`: device and inode, which a rename does not change."""

    file: weakref.ref[OpenFile]
    path: str
    key: tuple[int, int]
    write: Write

    def is_closed(self) -> bool:
        """Whether nobody can write into it any more."""
        file = self.file()
        return file is None or file.closed

    def path_now(self) -> str:
        """Where it lies now: scripts often rename a temporary file as soon as they have closed it."""
        if _key_of(self.path) == self.key:
            return self.path
        return _beside(self.path, lambda entry: entry.inode() == self.key[1]) or self.path


class OwnSaves:
    """Takes the writes that are complete. Any thread may call it, also inside a signal handler."""

    def __init__(self, state: RankState, rank: Callable[[], int]) -> None:
        self._state, self._rank = state, rank
        self._lock = threading.RLock()
        self._step: _Step | None = None
        self._shown: CheckpointCell | None = None
        self._unclosed: list[_Unclosed] = []

    def begin(self, share: float) -> Write:
        """A write begins now."""
        return Write(step=self._state.words[W_LAST_STEP], share=share, start_ns=perf_counter_ns())

    def closes_later(self, file: OpenFile, write: Write, final: str | os.PathLike[str] | None = None) -> None:
        """A write into a file that the script opened has ended. It counts once the script has closed it.

        `final`: where it will lie then, if that is known.

        A file that the script leaves to Python is closed by its release, so nothing here may hold it. One
        that has no name, as a pipe, is left out. Raises `OSError` for a file that is closed already.
        """
        path = name_of(file) if final is None else os.fspath(final)
        if path and len(self._unclosed) < UNCLOSED:
            facts = os.fstat(file.fileno())
            key = facts.st_dev, facts.st_ino
            self._unclosed.append(_Unclosed(file=weakref.ref(file), path=path, key=key, write=write))

    def settle(self) -> None:
        """Count the writes whose files are closed by now, and follow a rename. Call it after each step."""
        if self._shown is None and not self._unclosed:
            return
        with self._lock:
            shown, self._shown = self._shown, None
            if shown is not None:
                self._follow(shown)
            files, self._unclosed = self._unclosed, []
            for file in files:
                if file.is_closed():
                    self.ended(file.write, file.path_now())
                else:
                    self._unclosed.append(file)

    def ended(self, write: Write, path: str | os.PathLike[str]) -> None:
        """A write is complete. Nothing is shown of one before the first step, or without training state."""
        if write.step < 0 or write.share <= 0:
            return
        with self._lock:
            step = self._step
            if step is None or step.step != write.step:
                step = self._step = _Step(step=write.step, start_ns=write.start_ns)
            name = shown_path(path)
            mark = mark_of(path) or FileMark(bytes=0, mtime_ns=0)
            step.share += write.share
            step.sizes[name] = written_bytes(Path(path), self._rank())
            if step.share >= ENOUGH:
                self._show(step, name, mark)

    def _show(self, step: _Step, name: str, mark: FileMark) -> None:
        cell = CheckpointCell(
            step=step.step,
            bytes=sum(step.sizes.values()),
            files=len(step.sizes),
            start_ns=step.start_ns,
            end_ns=perf_counter_ns(),
            path=name,
            file_bytes=mark.bytes,
            file_mtime_ns=mark.mtime_ns,
        )
        write_cell(self._state.ring.memory, SAVED_AT, cell)
        self._shown = cell

    def _follow(self, cell: CheckpointCell) -> None:
        """Show the name that the newest file has now: many scripts write beside the file and then rename."""
        mark = FileMark(bytes=cell.file_bytes, mtime_ns=cell.file_mtime_ns)
        if mark.mtime_ns and mark_of(cell.path) is None:
            name = renamed(cell.path, mark)
            if name:
                write_cell(self._state.ring.memory, SAVED_AT, replace(cell, path=shown_path(name)))


def renamed(path: str, mark: FileMark) -> str:
    """Return the file or folder beside `path` that has this mark, "" for none."""
    return _beside(path, lambda entry: mark_of(entry.path) == mark)


def _beside(path: str, wanted: Callable[[os.DirEntry[str]], bool]) -> str:
    """Return the first wanted entry of the folder of `path`, "" for none."""
    try:
        with os.scandir(Path(path).parent) as entries:
            return next((entry.path for entry in itertools.islice(entries, BESIDE) if wanted(entry)), "")
    except OSError:
        return ""


def name_of(file: OpenFile) -> str:
    """Return the path of an open file, "" for one that no folder has. `os.fdopen` knows its number only."""
    name: object = file.name
    if isinstance(name, str):
        return name
    path = os.readlink(f"/proc/self/fd/{file.fileno()}")
    return path if Path(path).is_file() else ""


def _key_of(path: str) -> tuple[int, int] | None:
    try:
        facts = os.stat(path)
    except OSError:
        return None
    return facts.st_dev, facts.st_ino


def written_bytes(path: Path, rank: int) -> int:
    """Return what this rank has written there, in bytes. 0 where it cannot be known.

    In a folder of torch.distributed.checkpoint the files of rank 3 begin with `__3_`. The first rank writes
    the metadata too.
    """
    try:
        if not path.is_dir():
            return path.stat().st_size
        return sum(file.stat().st_size for file in os.scandir(path) if _is_own(file.name, rank))
    except OSError:
        return 0


def _is_own(name: str, rank: int) -> bool:
    return name.startswith(f"__{rank}_") or (name == METADATA and rank == 0)
