"""Files that commands write: what cannot be written is told before the work begins."""

from __future__ import annotations

import os
from pathlib import Path

from pulsetrain.core.errors import PulsetrainError, UsageError
from pulsetrain.core.whole_file import write_whole


def check_output(file: Path, flag: str = "--output") -> None:
    """Raise `UsageError` where `file` cannot be written."""
    folder = file.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"{flag} {file}: there is no folder {file.parent}")
    if file.is_dir():
        raise UsageError(f"{flag} {file}: is a folder; give a file")
    if not os.access(file if file.exists() else folder, os.W_OK):
        raise UsageError(f"{flag} {file}: cannot be written by this user; give another file")


def write_output(file: Path, content: bytes, flag: str = "--output") -> None:
    """Write `file`, as a whole or not at all. Raises `PulsetrainError` where it fails, as on a full disk."""
    try:
        write_whole(file, content)
    except OSError as error:
        raise PulsetrainError(f"{flag} {file}: {error.strerror}") from error
