"""Reads any part of any tensor of a committed checkpoint, however it was sharded when it was saved.

A tensor is identified by its global name. Its shards are boxes in it. A part is assembled from the boxes that
overlap it, one box in memory at a time, so that no process holds the whole model. Nothing here imports torch.
"""

from __future__ import annotations

import contextlib
import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import xxhash

from pulsetrain.checkpoint.memory.layout import Layout, element_bytes, of_one_rank
from pulsetrain.checkpoint.memory.slots import payload_offset
from pulsetrain.checkpoint.storage.manifest import Checkpoints, Manifest, Segment
from pulsetrain.core.errors import CheckpointError, CorruptData, UsageError
from pulsetrain.core.progress import Report, unseen

Shape = tuple[int, ...]
_OF_BATCH_NORMS = (".running_mean", ".running_var")  # each data-parallel rank has seen other samples


@dataclass(frozen=True, kw_only=True)
class Box:
    """One stored shard: `size` elements from `start`, of `itemsize` bytes each. Empty: `segment` is None."""

    start: Shape
    size: Shape
    itemsize: int
    segment: Segment | None


@dataclass(frozen=True, kw_only=True)
class Stored:
    """One tensor of the checkpoint, over all ranks. Replicas of a box are counted once."""

    name: str
    dtype: str
    shape: Shape
    boxes: tuple[Box, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


class TensorIndex:
    """Every tensor of a committed step. `bytes_read` counts what came from storage.

    `report` takes the bytes that came, from storage or from another rank. Where ranks have saved different
    values of the same part, a tensor is not read. Of names that begin as one of `may_differ` says, and of
    what batch norms, extra state and random generators keep, the first rank's part is.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        manifest: Manifest,
        *,
        cached_boxes: int = 2,
        may_differ: Sequence[str] = (),
    ) -> None:
        """Reads the layouts of all ranks. Raises `CorruptData`, and `CheckpointError` where ranks
        disagree. Raises as `beginnings` does."""
        self._checkpoints, self.manifest = checkpoints, manifest
        self._cache: OrderedDict[str, bytes] = OrderedDict()
        self._cached_boxes, self._may_differ = cached_boxes, beginnings(may_differ)
        self._differing: dict[str, int] = {}  # by name, a rank that has saved other values than one before it
        self._ambiguous: set[str] = set()  # names that one rank has given to several tensors
        self.bytes_read = self._bytes_given = 0
        self.report: Report = unseen
        self._wanted: dict[str, Segment] | None = None  # while reads are only planned
        self._given: dict[str, bytes] = {}
        self.layouts: dict[int, tuple[Layout, bytes]] = {}
        boxes_by_name: dict[str, dict[tuple[Shape, Shape], Box]] = {}
        kinds: dict[str, tuple[str, Shape]] = {}
        for rank, table in sorted(manifest.tables.items()):
            self.layouts[rank] = checkpoints.layout(manifest, rank)
            layout = self.layouts[rank][0]
            begin = payload_offset(table.layout_bytes, table.values_bytes)
            segments = {s.offset - begin: s for s in table.segments[1:]}
            here: set[tuple[str, Shape, Shape]] = set()
            for entry in layout.entries:
                start, size, whole = entry.box
                if kinds.setdefault(entry.name, (entry.dtype, whole)) != (entry.dtype, whole):
                    if of_one_rank(entry.name):
                        continue
                    raise CheckpointError(f"{entry.name}: ranks differ in type or global shape")
                box = Box(
                    start=start,
                    size=size,
                    itemsize=element_bytes(entry),
                    segment=segments[entry.offset] if entry.bytes else None,
                )
                first = boxes_by_name.setdefault(entry.name, {}).setdefault((start, size), box)
                if _hash(first) != _hash(box):
                    self._differing.setdefault(entry.name, rank)
                    if (entry.name, start, size) in here:
                        self._ambiguous.add(entry.name)
                here.add((entry.name, start, size))
        self.tensors: Mapping[str, Stored] = {
            name: Stored(name=name, dtype=kinds[name][0], shape=kinds[name][1], boxes=tuple(boxes.values()))
            for name, boxes in boxes_by_name.items()
        }

    @property
    def step(self) -> int:
        """The committed step."""
        return self.manifest.step

    def read(self, name: str, start: Shape = (), size: Shape | None = None) -> bytes:
        """The raw elements of a part in row-major order, by default of the whole tensor.

        Raises `CheckpointError` for an unknown name, one of several tensors of a rank, a part that the shards
        do not cover, or one of which ranks have saved different values.
        """
        stored = self.tensors.get(name)
        if stored is None:
            raise CheckpointError(f"checkpoint of step {self.manifest.step} has no tensor {name}")
        if name in self._ambiguous:
            raise CheckpointError(
                f"{name}: several tensors of one rank have this name and cannot be told apart, such as those "
                "of the keys 1 and '1', or of 'a.b' beside 'b' in 'a'"
            )
        if name in self._differing and not self._differs_rightly(name):
            raise CheckpointError(
                f"{name}: rank {self._differing[name]} has saved other values of the same part than a rank "
                "before it. Shards that are no DTensors cannot be put together. If the first rank's part is "
                "right, name it in may_differ (export: --may-differ)"
            )
        start = start or (0,) * len(stored.shape)
        size = stored.shape if size is None else size
        if not math.prod(size):
            return b""
        if self._wanted is not None:
            self._note(stored, start, size, self._wanted)
            return b""
        exact = next((b for b in stored.boxes if (b.start, b.size) == (start, size)), None)
        if exact is not None and exact.segment is not None:
            return self._content(exact.segment)
        return self._assemble(stored, start, size)

    def _differs_rightly(self, name: str) -> bool:
        of_each = of_one_rank(name) or name.endswith(_OF_BATCH_NORMS) or "_extra_state" in name.split(".")
        return of_each or name.startswith(self._may_differ)

    def _assemble(self, stored: Stored, start: Shape, size: Shape) -> bytes:
        itemsize = max(b.itemsize for b in stored.boxes)
        out = np.zeros(size, dtype=f"V{itemsize}")
        covered = np.zeros(size, dtype=bool)
        for box in stored.boxes:
            overlap = intersection(start, size, box.start, box.size)
            if overlap is None or box.segment is None:
                continue
            inside, outside = overlap
            if covered[outside].all():
                continue
            data = np.frombuffer(self._content(box.segment), dtype=out.dtype).reshape(box.size)
            out[outside] = data[inside]
            covered[outside] = True
        if not covered.all():
            raise CheckpointError(f"{stored.name}: shards do not cover {size} at {start} of {stored.shape}")
        return out.tobytes()

    @contextlib.contextmanager
    def planning(self) -> Iterator[dict[str, Segment]]:
        """Inside, `read` reads nothing and returns nothing. Yields the segments that it would have read."""
        wanted: dict[str, Segment] = {}
        self._wanted = wanted
        try:
            yield wanted
        finally:
            self._wanted = None

    def fetch(self, segment: Segment) -> bytes:
        """Read one segment and check it. Raises `CorruptData`."""
        data = bytearray(segment.bytes)
        self.bytes_read += self._checkpoints.read_segment(self.manifest, segment, memoryview(data))
        self.report(self.bytes_read + self._bytes_given)
        return bytes(data)

    def give(self, content: str, data: bytes, *, came: bool = True) -> None:
        """Use this content instead of reading it. Raises `CorruptData` where it does not have its hash.

        `came`: from another rank. Else this one has read it.
        """
        if xxhash.xxh3_128_hexdigest(data) != content:
            raise CorruptData(f"content {content} arrived damaged")
        self._given[content] = data
        self._bytes_given += len(data) if came else 0
        self.report(self.bytes_read + self._bytes_given)

    @staticmethod
    def _note(stored: Stored, start: Shape, size: Shape, wanted: dict[str, Segment]) -> None:
        """Note the segments of a part. One that has all of it is read alone."""
        exact = [b for b in stored.boxes if (b.start, b.size) == (start, size)]
        for box in exact[:1] or stored.boxes:
            if box.segment is not None and intersection(start, size, box.start, box.size) is not None:
                wanted[box.segment.hash] = box.segment

    def _content(self, segment: Segment) -> bytes:
        given = self._given.get(segment.hash)
        if given is not None:
            return given
        cached = self._cache.get(segment.hash)
        if cached is not None:
            self._cache.move_to_end(segment.hash)
            return cached
        self._cache[segment.hash] = content = self.fetch(segment)
        while len(self._cache) > self._cached_boxes:
            self._cache.popitem(last=False)
        return content


def beginnings(names: Sequence[str]) -> tuple[str, ...]:
    """What names may begin with. A text alone is one of them. Raises `UsageError` for an empty one.

    >>> beginnings("ema."), beginnings(["a.", "b."])
    (('ema.',), ('a.', 'b.'))
    """
    texts = (names,) if isinstance(names, str) else tuple(names)
    if "" in texts:
        raise UsageError('may_differ (export: --may-differ) has "", with which every name begins')
    return texts


def _hash(box: Box) -> str:
    return box.segment.hash if box.segment else ""


Slices = tuple[slice, ...]


def intersection(
    start: Sequence[int], size: Sequence[int], box_start: Sequence[int], box_size: Sequence[int]
) -> tuple[Slices, Slices] | None:
    """Where a part and a box overlap, as slices of the box and of the part. None where they do not.

    >>> intersection((2,), (4,), (4,), (4,))
    ((slice(0, 2, None),), (slice(2, 4, None),))
    """
    inside, outside = [], []
    for a, n, b, m in zip(start, size, box_start, box_size, strict=True):
        low, high = max(a, b), min(a + n, b + m)
        if low >= high:
            return None
        inside.append(slice(low - b, high - b))
        outside.append(slice(low - a, high - a))
    return tuple(inside), tuple(outside)
