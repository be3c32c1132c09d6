"""Groups on their way into the store, kept on disk until it is known that they arrived.

Many small batches are stored by one insert. A hub that is killed during the insert cannot know whether it
happened, and after a restart the same rows come again beside other rows. So each group is written here first.
At the next start it is inserted again, under the same deduplication token.

The journal protects against a killed hub, not against a power cut: neither it nor the store calls fsync.
"""

from __future__ import annotations

import os
from pathlib import Path

import structlog

from pulsetrain.core.errors import CorruptData, UsageError
from pulsetrain.core.private_file import make_private_folder
from pulsetrain.stream.store.insert_group import InsertGroup, decode_group

log = structlog.get_logger()


class Journal:
    """A folder of groups. A file is whole or not there: it is written under another name and renamed.

    The folder is made if it is missing. Raises `UsageError` where it cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            make_private_folder(folder)
        except OSError as error:
            raise UsageError(f"journal folder {folder}: {error.strerror}") from error

    def write(self, group: InsertGroup) -> None:
        """Keep `group`. Writing it again changes nothing. Raises `OSError` where the disk does not take
        it."""
        partial = self._folder / f"{group.token}.part"
        try:
            partial.write_bytes(group.data)
            os.replace(partial, self._path(group.token))
        except OSError:
            partial.unlink(missing_ok=True)
            raise

    def forget(self, token: str) -> None:
        """Delete the group, because its rows and their ranges are in the store or were refused."""
        self._path(token).unlink(missing_ok=True)

    def read_all(self, since_ns: int = 0) -> list[InsertGroup]:
        """What an earlier hub left since a time (UTC), oldest first.

        Deletes what is older, and half-written files, which were never inserted.
        """
        for partial in self._folder.glob("*.part"):
            partial.unlink(missing_ok=True)
        paths = sorted(self._folder.glob("*.arrow"), key=_written_ns)
        for path in [p for p in paths if _written_ns(p) < since_ns]:
            log.warning("journal_too_old", path=str(path))
            path.unlink(missing_ok=True)
            paths.remove(path)
        return [group for path in paths if (group := _read(path)) is not None]

    def _path(self, token: str) -> Path:
        return self._folder / f"{token}.arrow"


def _written_ns(path: Path) -> int:
    return path.stat().st_mtime_ns


def _read(path: Path) -> InsertGroup | None:
    try:
        return decode_group(path.read_bytes())
    except CorruptData as error:
        log.warning("journal_unreadable", path=str(path), error=str(error))
        return None
