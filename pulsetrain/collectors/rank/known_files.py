"""The checkpoint files that the script wrote in earlier attempts, as the agent tells them to a new rank.

They travel in one environment variable. A rank that reads one of them goes on behind the step that it holds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pulsetrain.collectors.checkpoint_cell import shown_path
from pulsetrain.protocol.messages import OwnCheckpoint

OWN_CHECKPOINTS = "PULSETRAIN_OWN_CHECKPOINTS"
METADATA = ".metadata"  # the file that torch.distributed.checkpoint writes last into a folder


@dataclass(frozen=True, kw_only=True, slots=True)
class FileMark:
    """What tells a file even after it was renamed or moved: its size, and its time of change."""

    bytes: int
    mtime_ns: int


def mark_of(path: str | os.PathLike[str]) -> FileMark | None:
    """Return the mark of a file, for a folder that of its `.metadata`. None where it cannot be read."""
    try:
        facts = os.stat(path)
        if Path(path).is_dir() and (Path(path) / METADATA).exists():
            facts = os.stat(Path(path) / METADATA)
    except OSError:
        return None
    return FileMark(bytes=facts.st_size, mtime_ns=facts.st_mtime_ns)


class KnownFiles:
    """The files of earlier attempts, newest first. A file that has changed since is not known."""

    def __init__(self, files: Iterable[tuple[str, int, FileMark]] = ()) -> None:
        self._files = tuple(files)

    def step_of(self, path: str | os.PathLike[str]) -> int:
        """Return the last step that the file holds, -1 if it is not known.

        A file without a mark, such as one that no file system of this machine has, is known by its path.
        """
        mark = mark_of(path)
        name = shown_path(path)
        for known, step, its_mark in self._files:
            if its_mark.mtime_ns:
                if its_mark == mark:
                    return step
            elif mark is None and known == name:
                return step
        return -1


class FilesOfEnvironment(KnownFiles):
    """Those that the environment names at the time of the question. It changes with the attempt."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def step_of(self, path: str | os.PathLike[str]) -> int:
        """See `KnownFiles`. Raises `ValueError` as `decode` does."""
        return decode(self._environ).step_of(path)


def encode(files: Iterable[OwnCheckpoint]) -> str:
    """Return the files as the value of `OWN_CHECKPOINTS`."""
    rows = [[own.path, own.step, own.file_bytes, own.file_mtime_ns] for own in files if own.step >= 0]
    return json.dumps(rows, separators=(",", ":")) if rows else ""


def decode(environ: Mapping[str, str]) -> KnownFiles:
    """Return what the environment says. Raises `ValueError` if that is not what `encode` makes."""
    rows = json.loads(environ.get(OWN_CHECKPOINTS) or "[]")
    return KnownFiles(
        (str(path), int(step), FileMark(bytes=int(size), mtime_ns=int(mtime)))
        for path, step, size, mtime in rows
    )
