"""Lets an insert be repeated whose part was lost when its process was killed.

The engine notes the token of an insert in `deduplication_logs` before it gives the part its name. A process
that is killed between the two leaves a token without rows, and drops the same insert when it is repeated. It
never looks whether the part is there. So that is looked at here, before the engine opens the folder.

A table's inserts end one after the other, so only the newest line of its log can be such a one. So it is in
chDB 26.9. An engine that notes the token after the part has its name would not leave such a line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import structlog

log = structlog.get_logger()

_LOGS = "deduplication_logs"
_ADDED = "1"
_LINE = re.compile(rb"(\d+)\t([^\t\n]+)\t([^\t\n]+)\n")
_PART = re.compile(r"(.+?)_(\d+)_(\d+)_\d+(?:_\d+)?")


def forget_lost_parts(folder: Path) -> list[str]:
    """Remove the newest token of each table whose part is not there. Returns the names of these parts.

    Call it while no engine has the folder open. A log that is not understood stays as it is, and so does one
    where the disk refuses.
    """
    lost: list[str] = []
    for table in _tables(folder):
        try:
            part = _forget(table, folder)
        except OSError as error:
            log.warning("lost_inserts_not_looked_for", table=str(table), error=str(error))
        else:
            lost += [part] if part else []
    return lost


def _tables(folder: Path) -> Iterator[Path]:
    """Folders of tables that have a log."""
    for path in sorted(folder.glob(f"store/*/*/{_LOGS}")):
        yield path.parent


def _forget(table: Path, folder: Path) -> str:
    """Remove the newest line of a table's log where its part is not there. Returns that part, "" for none."""
    newest = _newest(table / _LOGS)
    if newest is None:
        return ""
    file, text = newest
    lines = list(_LINE.finditer(text))
    if not lines or sum(len(line[0]) for line in lines) != len(text):
        return ""
    operation, part, _ = (field.decode() for field in lines[-1].groups())
    if operation != _ADDED or _is_there(table, part):
        return ""
    _replace(file, text[: lines[-1].start()], folder / ".deduplication_log.new")
    log.warning(
        "insert_was_lost", part=part, table=str(table), what="its rows are stored when they are repeated"
    )
    return part


def _newest(logs: Path) -> tuple[Path, bytes] | None:
    """The newest log file that has a line."""
    numbered = [(int(m[1]), p) for p in logs.iterdir() if (m := re.fullmatch(r".*_(\d+)\.txt", p.name))]
    for _, file in sorted(numbered, reverse=True):
        if text := file.read_bytes():
            return file, text
    return None


def _is_there(table: Path, part: str) -> bool:
    """Whether the part, or one that it was merged into, is in the table's folder."""
    wanted = _PART.fullmatch(part)
    if wanted is None:
        return True
    parts = (m for path in table.iterdir() if (m := _PART.fullmatch(path.name)))
    return any(m[1] == wanted[1] and int(m[2]) <= int(wanted[2]) <= int(m[3]) for m in parts)


def _replace(file: Path, text: bytes, part: Path) -> None:
    """Write a file anew, as a whole or not at all. `part` is beside no log: the engine reads their names."""
    try:
        with part.open("wb") as sink:
            sink.write(text)
            sink.flush()
            os.fsync(sink.fileno())
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)
