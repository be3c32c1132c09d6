"""Files and folders that only their owner may read. Files are replaced as a whole."""

from __future__ import annotations

import os
from pathlib import Path


def replace_private(path: Path, text: str, *, give: bool = False) -> None:
    """Write a file beside `path`, flush it to the disk, and rename it.

    A crash at any moment leaves the file as it was or as it is to be. Its mode is 0600. With `give`, what
    root writes belongs to the owner of the folder. One writer at a time. Raises `OSError`.
    """
    temporary = path.with_name(f".{path.name}.new")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        if give:
            give_to_owner_of(path.parent, file.fileno())
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def make_private_folder(folder: Path) -> None:
    """Make `folder` and what is missing above it, all with mode 0700. What exists stays as it is.

    Raises `OSError`.
    """
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except FileNotFoundError:
        if folder.parent == folder:
            raise
        make_private_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def give_to_owner_of(folder: Path, file: int) -> None:
    """Leave an open file that root made to the owner of the folder."""
    if os.geteuid() == 0:
        owner = folder.stat()
        os.fchown(file, owner.st_uid, owner.st_gid)
