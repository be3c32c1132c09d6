"""Reading each distinct stored shard once, however many nodes need it.

Ranks of several nodes share content: data-parallel replicas have most of it in common. The shared content is
divided evenly among those nodes. Each reads its part from storage and sends it to the others on request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from threading import Condition

import xxhash

from pulsetrain.checkpoint.storage.manifest import Checkpoints, Manifest, Segment, Table
from pulsetrain.core.errors import CheckpointError

READ_TIMEOUT_S = 120.0


def readers(tables: Iterable[Table], home: Mapping[int, str]) -> dict[str, str]:
    """The node that reads each content hash: of those that need it, the one with least to read so far.

    `home` maps ranks to nodes. Every node computes the same.
    """
    needed: dict[str, set[str]] = {}
    size: dict[str, int] = {}
    for table in tables:
        for segment in table.segments:
            if table.rank in home:
                needed.setdefault(segment.hash, set()).add(home[table.rank])
                size[segment.hash] = segment.bytes
    load: dict[str, int] = {}
    chosen = {}
    for content in sorted(needed, key=lambda h: (len(needed[h]), -size[h], h)):
        node = min(needed[content], key=lambda n: (load.get(n, 0), n))
        load[node] = load.get(node, 0) + size[content]
        chosen[content] = node
    return chosen


@dataclass
class Reads:
    """Bytes of one rank's restore, by where they came from."""

    storage: int = 0
    peers: int = 0
    here: int = 0
    """Content that another rank of this node had read."""


class Shards:
    """Content of one step that this node has read, for its own ranks and for peers. Thread-safe.

    The first to ask reads it. The others wait for that read.
    """

    def __init__(self, checkpoints: Checkpoints | None) -> None:
        self._checkpoints = checkpoints
        self._changed = Condition()
        self._contents: dict[tuple[int, str], memoryview | None] = {}  # None: being read
        self._manifests: dict[int, Manifest] = {}
        self.bytes_read = 0

    def clear(self) -> None:
        """Forget everything: another attempt begins."""
        with self._changed:
            self._contents.clear()
            self._manifests.clear()

    def get(self, step: int, content: str) -> memoryview:
        """The content, from memory or else from storage. Raises `CheckpointError` or `CorruptData`."""
        manifest = self._manifest(step)
        blob = manifest.blobs.get(content)
        if blob is None:
            raise CheckpointError(f"step {step}: content {content} is not stored")
        data = self._claim(step, content)
        if data is not None:
            return data
        target = memoryview(bytearray(blob.bytes))
        self._read(manifest, Segment(offset=0, bytes=blob.bytes, hash=content), target)
        return target

    def fill(self, manifest: Manifest, segment: Segment, target: memoryview) -> int:
        """Copy the content into `target`, which must not change afterwards. Returns the bytes read."""
        with self._changed:
            self._manifests.setdefault(manifest.step, manifest)
        data = self._claim(manifest.step, segment.hash)
        if data is None:
            self._read(manifest, segment, target)
            return segment.bytes
        target[:] = data
        if xxhash.xxh3_128_hexdigest(target) == segment.hash:
            return 0
        assert self._checkpoints is not None, "a manifest came from somewhere"
        return self._checkpoints.read_segment(
            manifest, segment, target
        )  # its memory was overwritten meanwhile

    def offer(self, step: int, content: str, data: memoryview) -> None:
        """Keep content that a peer sent, so that the node's other ranks need not fetch it again."""
        with self._changed:
            self._contents[step, content] = data
            self._changed.notify_all()

    def here(self, step: int, content: str) -> memoryview | None:
        """The content, if it is in memory already."""
        with self._changed:
            return self._contents.get((step, content))

    def _claim(self, step: int, content: str) -> memoryview | None:
        """The content. None: the caller has to read it, and nobody else will."""
        with self._changed:
            while (step, content) in self._contents:
                data = self._contents[step, content]
                if data is not None:
                    return data
                if not self._changed.wait(READ_TIMEOUT_S):
                    raise CheckpointError(f"content {content} is not read after {READ_TIMEOUT_S:g} s")
            self._contents[step, content] = None
            return None

    def _read(self, manifest: Manifest, segment: Segment, target: memoryview) -> None:
        assert self._checkpoints is not None, "a manifest came from somewhere"
        try:
            read = self._checkpoints.read_segment(manifest, segment, target)
        except BaseException:
            with self._changed:
                self._contents.pop((manifest.step, segment.hash), None)
                self._changed.notify_all()
            raise
        with self._changed:
            self.bytes_read += read
        self.offer(manifest.step, segment.hash, target)

    def _manifest(self, step: int) -> Manifest:
        with self._changed:
            manifest = self._manifests.get(step)
        if manifest is None:
            manifest = self._checkpoints.manifest(step) if self._checkpoints else None
            if manifest is None:
                raise CheckpointError(f"step {step} is not in storage")
            with self._changed:
                self._manifests[step] = manifest
        return manifest
