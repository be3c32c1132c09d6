"""Reading each distinct stored shard once, however many nodes need it.

Ranks of several nodes share content: data-parallel replicas have most of it in common. The shared content is
divided evenly among those nodes. Each reads its part from storage and sends it to the others on request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from threading import Condition

import xxhash

from pulsetrain.checkpoint.storage.manifest import Checkpoints, Manifest, Segment, Table
from pulsetrain.core.errors import CheckpointError

UNUSED_S = 180.0
READ_TIMEOUT_S = 120.0  # without a byte that arrives anywhere here, or another read that ends


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

    The first to ask reads it. The others wait for that read while anything is read here at all. Then they
    read it themselves. What nobody asks for any more is forgotten.
    """

    def __init__(
        self, checkpoints: Checkpoints | None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._checkpoints, self._clock = checkpoints, clock
        self._asked_s = clock()
        self._changed = Condition()
        self._contents: dict[tuple[int, str], memoryview | None] = {}  # None: being read
        self._manifests: dict[int, Manifest] = {}
        self._moved = 0  # rises while anything is read
        self.bytes_read = 0

    def clear(self) -> None:
        """Forget everything: another attempt begins."""
        with self._changed:
            self._contents.clear()
            self._manifests.clear()

    def forget_unused(self) -> None:
        """Give the memory back, once nobody has asked for anything for `UNUSED_S`. Call it now and then."""
        with self._changed:
            if self._contents and self._clock() - self._asked_s > UNUSED_S:
                self._contents = {key: data for key, data in self._contents.items() if data is None}

    def get(self, step: int, content: str) -> memoryview:
        """The content, from memory or else from storage.

        Raises `CheckpointError`, `CorruptData`, or `Unavailable` for a storage that refuses.
        """
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
            self._contents[step, content], self._asked_s = data, self._clock()
            self._changed.notify_all()

    def here(self, step: int, content: str) -> memoryview | None:
        """The content, if it is in memory already."""
        with self._changed:
            return self._contents.get((step, content))

    def _claim(self, step: int, content: str) -> memoryview | None:
        """The content. None: the caller has to read it. Others wait for that."""
        with self._changed:
            self._asked_s = self._clock()
            while (step, content) in self._contents:
                data, moved = self._contents[step, content], self._moved
                if data is not None:
                    return data
                if not self._changed.wait(READ_TIMEOUT_S) and moved == self._moved:
                    break  # whoever reads it hangs
            self._contents[step, content] = None
            self._moved += 1
            return None

    def _move(self) -> None:
        """Something was read."""
        with self._changed:
            self._moved += 1
            self._changed.notify_all()

    def _read(self, manifest: Manifest, segment: Segment, target: memoryview) -> None:
        assert self._checkpoints is not None, "a manifest came from somewhere"
        try:
            read = self._checkpoints.read_segment(manifest, segment, target, self._move)
        except BaseException:
            with self._changed:
                if self._contents.get((manifest.step, segment.hash)) is None:  # nobody else has read it
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
