"""Groups of batches on their way into the store, kept on disk until it is known that they arrived.

Many small batches are stored by one insert. A hub that is killed in mid-insert cannot know whether it
happened, and after a restart the same rows come again in other company; so each group is written here first,
with its deduplication token, and inserted again under that token at the next start.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import structlog

from pulsetrain.core.errors import UsageError

_META = b"pulsetrain.group"
_log = structlog.get_logger()


@dataclass(frozen=True, kw_only=True)
class Share:
    """Rows [first, end) of one source in a group."""

    source: str
    first: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Group:
    """Rows that are inserted together: `data` is their uncompressed Arrow IPC stream."""

    record: str
    token: str
    columns: tuple[str, ...]
    shares: tuple[Share, ...]
    rows: int
    data: bytes = field(repr=False)


def make_group(record: str, token: str, shares: Sequence[Share], table: pa.Table) -> Group:
    """The group of `table`'s rows; the identity travels in the stream's schema metadata."""
    said: dict[str, Any] = {
        "record": record,
        "token": token,
        "shares": [(s.source, s.first, s.end) for s in shares],
    }
    said["rows"] = table.num_rows
    sink = pa.BufferOutputStream()
    table = table.unify_dictionaries().combine_chunks()
    with pa.ipc.new_stream(sink, table.schema.with_metadata({_META: json.dumps(said)})) as writer:
        writer.write_table(table.replace_schema_metadata({_META: json.dumps(said)}))
    return Group(
        record=record,
        token=token,
        columns=tuple(table.column_names),
        shares=tuple(shares),
        rows=table.num_rows,
        data=sink.getvalue().to_pybytes(),
    )


class Journal:
    """A folder of groups. A file is whole or not there: it is written aside and renamed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"journal folder {folder}: {error.strerror}") from error

    def write(self, group: Group) -> None:
        """Keep `group`. Raises `OSError` where the disk does not take it."""
        aside = self._folder / f"{group.token}.part"
        try:
            aside.write_bytes(group.data)
            os.replace(aside, self._path(group.token))
        except OSError:
            aside.unlink(missing_ok=True)
            raise

    def forget(self, token: str) -> None:
        """The group's rows and their ranges are in the store."""
        self._path(token).unlink(missing_ok=True)

    def kept(self) -> list[Group]:
        """What an earlier hub left, oldest first. Half-written files were never inserted and are deleted."""
        for aside in self._folder.glob("*.part"):
            aside.unlink(missing_ok=True)
        paths = sorted(self._folder.glob("*.arrow"), key=lambda p: p.stat().st_mtime_ns)
        return [group for path in paths if (group := _read(path)) is not None]

    def _path(self, token: str) -> Path:
        return self._folder / f"{token}.arrow"


def _read(path: Path) -> Group | None:
    data = path.read_bytes()
    try:
        schema = pa.ipc.open_stream(data).schema
        said = json.loads(schema.metadata[_META])
        shares = tuple(Share(source=s, first=f, end=e) for s, f, e in said["shares"])
        record, token, rows = said["record"], said["token"], int(said["rows"])
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        _log.warning("journal_unreadable", path=str(path), error=str(error))
        return None
    columns = tuple(schema.names)
    return Group(record=record, token=token, columns=columns, shares=shares, rows=rows, data=data)
