"""The files of one rank in a step's folder: table, pack and receipt.

A table says what the rank's bytes are, by content hash. A pack holds the bytes that this rank writes. A
receipt says where each content hash is.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypedDict, TypeVar

import xxhash

from pulsetrain.checkpoint.memory.arena import ArenaReader
from pulsetrain.checkpoint.memory.layout import decode
from pulsetrain.checkpoint.memory.slots import SlotInfo, payload_offset
from pulsetrain.checkpoint.storage.backend import RateLimit
from pulsetrain.checkpoint.storage.manifest import (
    Blob,
    BlobJson,
    Checkpoints,
    Manifest,
    Segment,
    Table,
    folder_of,
    stem_of,
)
from pulsetrain.checkpoint.storage.polling import Poller
from pulsetrain.core.errors import CheckpointError, CorruptData

T = TypeVar("T")
READERS = 4  # files that one rank reads at the same time: most of the time goes into waiting for storage


class ReceiptJson(TypedDict):
    """A receipt as its file has it."""

    written: int
    blobs: dict[str, BlobJson]


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """What one rank has written: how many bytes, and where each content hash is."""

    written_bytes: int
    blobs: Mapping[str, Blob]

    def encode(self) -> bytes:
        """As JSON."""
        blobs = {content: blob.as_json() for content, blob in self.blobs.items()}
        return json.dumps(ReceiptJson(written=self.written_bytes, blobs=blobs)).encode()

    @classmethod
    def parse(cls, data: bytes) -> Receipt:
        """What `encode` gave."""
        raw: ReceiptJson = json.loads(data)
        blobs = {content: Blob.parse(row) for content, row in raw["blobs"].items()}
        return cls(written_bytes=raw["written"], blobs=blobs)


class RankWriter:
    """Writes table, pack and receipt of one rank."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        arena: ArenaReader,
        info: SlotInfo,
        *,
        rate_limit: RateLimit,
        poller: Poller,
    ) -> None:
        self._checkpoints, self._arena, self._info = checkpoints, arena, info
        self._rate_limit, self._poller = rate_limit, poller
        self._data = arena.view(info)

    def write(self, stored: Iterable[Manifest], gather_s: float) -> int:
        """Write what is in none of the `stored` checkpoints and return its bytes.

        Waits `gather_s` for the tables of all ranks. Raises `CorruptData` where memory no longer has its
        checksum, `CheckpointError` where the step was rolled back, `OSError` from storage.
        """
        info = self._info
        if not self._arena.verify(info):
            raise CorruptData(f"step {info.step}: the arena's bytes do not have their checksum")
        table = table_of(info, self._data)
        self._put("table.json", [table.encode()])
        mine = self._own_segments(table, gather_s)
        known = {content: blob for manifest in stored for content, blob in manifest.blobs.items()}
        fresh = {s.hash: s for s in mine if s.hash not in known}
        blobs = {s.hash: known[s.hash] for s in mine if s.hash in known}
        pack = self._file("pack")
        offset = 0
        for segment in fresh.values():
            blobs[segment.hash] = Blob(file=pack, offset=offset, bytes=segment.bytes)
            offset += segment.bytes
        if fresh:
            self._put("pack", self._pieces(fresh.values()))
        if not self._arena.still(info):
            raise CheckpointError(f"step {info.step} was rolled back while it was persisted")
        self._put("receipt.json", [Receipt(written_bytes=offset, blobs=blobs).encode()])
        return offset

    def _own_segments(self, table: Table, gather_s: float) -> list[Segment]:
        """The segments that this rank writes. Of equal content, one rank each writes it, spread evenly.

        All of its segments where some rank's table does not come in time. Then others may write the same
        content again, which only wastes room.
        """
        info = self._info
        try:
            tables = self._poller.wait(tables_of(self._checkpoints, info, gather_s).look, gather_s, "tables")
        except CheckpointError:
            return list(table.segments)
        return assigned(info.rank, tables)

    def _pieces(self, segments: Iterable[Segment]) -> Iterable[memoryview]:
        for segment in segments:
            yield from self._rate_limit(self._data[segment.offset : segment.offset + segment.bytes])

    def _put(self, suffix: str, chunks: Iterable[memoryview | bytes]) -> None:
        self._checkpoints.storage.put(self._checkpoints.path(self._file(suffix)), chunks)

    def _file(self, suffix: str) -> str:
        stem = file_stem(self._info, self._info.rank, self._checkpoints.run)
        return f"{folder_of(self._info.step)}/{stem}.{suffix}"


def file_stem(info: SlotInfo, rank: int, run: str = "") -> str:
    """What the names of a rank's files of this step begin with."""
    return stem_of(info.attempt, rank, info.edition, run)


def table_of(info: SlotInfo, data: memoryview) -> Table:
    """The hash of layout and values together, and of each tensor."""
    layout = decode(data[: info.layout_bytes])
    start = payload_offset(info.layout_bytes, info.values_bytes)
    spans = [(0, info.layout_bytes + info.values_bytes)]
    spans += [(start + e.offset, e.bytes) for e in layout.entries if e.bytes]
    return Table(
        rank=info.rank,
        layout_bytes=info.layout_bytes,
        values_bytes=info.values_bytes,
        payload_bytes=info.payload_bytes,
        segments=tuple(
            Segment(offset=at, bytes=size, hash=xxhash.xxh3_128_hexdigest(data[at : at + size]))
            for at, size in spans
        ),
        replicated=info.replicated,
        shard=info.shard,
    )


def assigned(rank: int, tables: Iterable[Table]) -> list[Segment]:
    """What `rank` writes when each distinct content is written once, by the rank with least to write so far.

    Every rank computes the same from the same tables.
    """
    holders: dict[str, list[int]] = {}
    size: dict[str, int] = {}
    mine: dict[str, Segment] = {}
    for table in sorted(tables, key=lambda t: t.rank):
        for segment in table.segments:
            owners = holders.setdefault(segment.hash, [])
            if table.rank not in owners:
                owners.append(table.rank)
            size[segment.hash] = segment.bytes
            if table.rank == rank:
                mine.setdefault(segment.hash, segment)
    load: dict[int, int] = {}
    chosen = []
    for content in sorted(holders, key=lambda h: (-size[h], h)):
        writer = min(holders[content], key=lambda r: (load.get(r, 0), r))
        load[writer] = load.get(writer, 0) + size[content]
        if writer == rank:
            chosen.append(mine[content])
    return sorted(chosen, key=lambda s: s.offset)


def tables_of(checkpoints: Checkpoints, info: SlotInfo, timeout_s: float) -> FilesOfRanks[Table]:
    """The tables of all ranks of the step."""
    return FilesOfRanks(checkpoints, info, "table", _table, timeout_s=timeout_s)


def receipts_of(checkpoints: Checkpoints, info: SlotInfo, timeout_s: float) -> FilesOfRanks[Receipt]:
    """The receipts of all ranks of the step. None is read before all are there: a rank that tries its save
    again may replace pack and receipt."""
    return FilesOfRanks(checkpoints, info, "receipt", Receipt.parse, timeout_s=timeout_s, early=False)


def _table(data: bytes) -> Table:
    return Table.parse(json.loads(data))


class FilesOfRanks(Generic[T]):
    """One file of each rank of a step. Each is read once, when it has appeared."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        info: SlotInfo,
        kind: str,
        parse: Callable[[bytes], T],
        *,
        timeout_s: float,
        early: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """No file is read later than `timeout_s` from now. Without `early`, none before all are there."""
        self._checkpoints, self._parse, self._clock, self._early = checkpoints, parse, clock, early
        self._folder, self._deadline_s = folder_of(info.step), clock() + timeout_s
        ranks = range(info.world)
        self._missing = {f"{file_stem(info, rank, checkpoints.run)}.{kind}.json": rank for rank in ranks}
        self._read: dict[int, T] = {}

    def look(self) -> list[T] | None:
        """Those of all ranks, in their order. None while one is missing.

        Raises what storage or parsing raises. What was read before that is not read again.
        """
        there = self._checkpoints.storage.list(self._checkpoints.path(self._folder))
        new = sorted(self._missing.keys() & set(there))
        if new and (self._early or len(new) == len(self._missing)):
            with ThreadPoolExecutor(min(READERS, len(new)), thread_name_prefix="pulsetrain-read") as pool:
                errors = [error for error in pool.map(self._take, new) if error is not None]
            if errors:
                raise errors[0]
        return None if self._missing else [self._read[rank] for rank in sorted(self._read)]

    def _take(self, name: str) -> Exception | None:
        """Read one, unless it is too late. Returns why that failed."""
        if self._clock() > self._deadline_s:
            return None
        try:
            read = self._parse(
                self._checkpoints.storage.read(self._checkpoints.path(f"{self._folder}/{name}"))
            )
        except Exception as error:  # noqa: BLE001 - whatever a storage backend raises. The others are read
            return error
        self._read[self._missing.pop(name)] = read
        return None
