"""A folder that one process at a time may use: a spool, a store."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from pulsetrain.core.errors import FolderInUse, UsageError
from pulsetrain.core.private_file import make_private_folder

_NAME = "pulsetrain.lock"


class FolderLock:
    """Holds a folder until `release` or the end of the process. The lock file names its holder's pid."""

    def __init__(self, folder: Path, file: int) -> None:
        self.folder = folder
        self._file: int | None = file

    @classmethod
    def take(cls, folder: Path, what: str) -> FolderLock:
        """Create `folder` where it is missing, for its owner alone, and hold it.

        `what` says what it is for, as in "spool".
        Raises `FolderInUse` where another process holds it. Raises `UsageError` naming the folder where it
        cannot be made, written or locked.
        """
        try:
            make_private_folder(folder)
            file = os.open(folder / _NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UsageError(f"{what} folder {folder}: {error.strerror}") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = _holder(file)
            os.close(file)
            if isinstance(error, BlockingIOError):
                raise FolderInUse(f"{what} folder {folder} is in use by process {holder}") from error
            raise UsageError(
                f"{what} folder {folder} cannot be locked: {error.strerror}. "
                "Its file system must support flock, as local disks do"
            ) from error
        with contextlib.suppress(OSError):  # on a full disk the file does not name its holder
            os.ftruncate(file, 0)
            os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        return cls(folder, file)

    def release(self) -> None:
        """Release the folder. Idempotent."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _holder(file: int) -> str:
    try:
        return os.pread(file, 32, 0).decode(errors="replace").strip() or "unknown"
    except OSError:
        return "unknown"
