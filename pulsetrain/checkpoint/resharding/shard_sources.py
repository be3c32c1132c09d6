"""Where the saved shards are: in this node's memory, in a peer's, or in storage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pulsetrain.checkpoint.memory.layout import Layout, decode
from pulsetrain.checkpoint.memory.slots import payload_offset
from pulsetrain.checkpoint.peers.client import PeerClient
from pulsetrain.checkpoint.resharding.saved_shards import SavedKey, SavedShards, part_of
from pulsetrain.checkpoint.storage.manifest import Checkpoints, Manifest, Segment
from pulsetrain.checkpoint.storage.tensor_index import Slices
from pulsetrain.core.errors import CheckpointError

HEAD, DIGESTS, PART = "shard_head", "shard_digests", "shard_part"
DIGESTS_AT_ONCE = 10_000  # fit into the header of a frame


@dataclass(frozen=True, kw_only=True)
class Head:
    """The layout and the values of a saved rank, as it saved them."""

    layout: bytes
    values: bytes

    @property
    def decoded(self) -> Layout:
        """Raises `CorruptData`."""
        return decode(self.layout)


class ShardSource(Protocol):
    """Gives what saved ranks have. Each call raises a `PulsetrainError` where it cannot."""

    def head(self, key: SavedKey) -> Head:
        """Layout and values."""
        ...

    def digests(self, key: SavedKey, entries: Sequence[int]) -> list[str]:
        """A hash of the content of each of these tensors."""
        ...

    def part(self, key: SavedKey, entry: int, inside: Slices) -> bytes:
        """Elements of one tensor in row-major order."""
        ...

    def close(self) -> None:
        """It is needed no more."""
        ...


class LocalSource:
    """This node's memory."""

    def __init__(self, shards: SavedShards) -> None:
        self._shards = shards

    def head(self, key: SavedKey) -> Head:
        """Layout and values."""
        with self._shards.reading(key) as saved:
            head = bytes(saved.head)
            return Head(layout=head[: saved.layout_bytes], values=head[saved.layout_bytes :])

    def digests(self, key: SavedKey, entries: Sequence[int]) -> list[str]:
        """A hash of the content of each of these tensors."""
        return self._shards.digests(key, entries)

    def part(self, key: SavedKey, entry: int, inside: Slices) -> bytes:
        """Elements of one tensor."""
        with self._shards.reading(key) as saved:
            return saved.part(entry, inside)

    def close(self) -> None:
        """Nothing is open."""


class PeerSource:
    """Another node's memory."""

    def __init__(self, client: PeerClient) -> None:
        self._client = client

    def head(self, key: SavedKey) -> Head:
        """Layout and values."""
        answer, data = self._client.ask({"op": HEAD, **vars(key)})
        size = int(answer["layout_bytes"])
        return Head(layout=data[:size], values=data[size:])

    def digests(self, key: SavedKey, entries: Sequence[int]) -> list[str]:
        """A hash of the content of each of these tensors."""
        found: list[str] = []
        for first in range(0, len(entries), DIGESTS_AT_ONCE):
            some = list(entries[first : first + DIGESTS_AT_ONCE])
            answer, _ = self._client.ask({"op": DIGESTS, **vars(key), "entries": some})
            found += answer["digests"]
        return found

    def part(self, key: SavedKey, entry: int, inside: Slices) -> bytes:
        """Elements of one tensor. Only those travel."""
        where = [(one.start, one.stop) for one in inside]
        return self._client.ask({"op": PART, **vars(key), "entry": entry, "inside": where})[1]

    def close(self) -> None:
        """End the connection."""
        self._client.close()


class StoredSource:
    """A committed checkpoint in storage."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self._checkpoints = checkpoints
        self._manifest: Manifest | None = None
        self._layouts: dict[int, tuple[Layout, bytes]] = {}
        self._of_entry: dict[int, dict[int, Segment]] = {}

    def head(self, key: SavedKey) -> Head:
        """Layout and values."""
        layout, values = self._layout(key)
        return Head(layout=layout.encode(), values=values)

    def digests(self, key: SavedKey, entries: Sequence[int]) -> list[str]:
        """A hash of the content of each of these tensors. Nothing is read for that."""
        layout, segments = self._segments(key)
        return [segments[layout.entries[number].offset].hash for number in entries]

    def part(self, key: SavedKey, entry: int, inside: Slices) -> bytes:
        """Elements of one tensor."""
        layout, segments = self._segments(key)
        wanted = layout.entries[entry]
        data = bytearray(wanted.bytes)
        self._checkpoints.read_segment(self._of(key), segments[wanted.offset], memoryview(data))
        return part_of(memoryview(data), wanted, inside)

    def close(self) -> None:
        """Nothing is open."""

    def _segments(self, key: SavedKey) -> tuple[Layout, dict[int, Segment]]:
        """The layout, and the segment of each tensor by its offset."""
        layout, _ = self._layout(key)
        if key.rank not in self._of_entry:
            table = self._of(key).tables[key.rank]
            begin = payload_offset(table.layout_bytes, table.values_bytes)
            self._of_entry[key.rank] = {s.offset - begin: s for s in table.segments[1:]}
        return layout, self._of_entry[key.rank]

    def _layout(self, key: SavedKey) -> tuple[Layout, bytes]:
        """Layout and values. They are read once."""
        manifest = self._of(key)
        if key.rank not in self._layouts:
            self._layouts[key.rank] = self._checkpoints.layout(manifest, key.rank)
        return self._layouts[key.rank]

    def _of(self, key: SavedKey) -> Manifest:
        if self._manifest is None or self._manifest.step != key.step:
            self._manifest = self._checkpoints.manifest(key.step)
            self._layouts.clear()
            self._of_entry.clear()
        manifest = self._manifest
        if manifest is None or (manifest.attempt, manifest.world) != (key.attempt, key.world):
            raise CheckpointError(f"step {key.step} of attempt {key.attempt} is not in storage")
        if key.rank not in manifest.tables:
            raise CheckpointError(f"step {key.step} in storage has no rank {key.rank}")
        return manifest
