"""Files that are there as a whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write beside `path`, which takes its name when the block ends.

    Where the block or the disk fails, nothing new is left and an old file stays as it was. Written in place
    are: what is no regular file, a link such as /dev/stdout, and a file whose folder this user cannot write.
    Raises `OSError`.
    """
    if path.is_symlink() or (path.exists() and not (path.is_file() and os.access(path.parent, os.W_OK))):
        with path.open("wb") as file:
            yield file
        return
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            yield file
        if path.exists():
            shutil.copymode(path, partial)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_whole(path: Path, content: bytes) -> int:
    """Write a file as `whole_file` does, and return its bytes. Raises `OSError`."""
    with whole_file(path) as file:
        return file.write(content)
