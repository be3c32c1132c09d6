"""Which saved rank has which part of which tensor, and from which of them another part is put together. Pure.

A tensor is identified by its global name, as in a reshard from storage. Ranks that have the same box of it
are copies of one another.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pulsetrain.checkpoint.memory.layout import Entry, Layout, of_one_rank
from pulsetrain.checkpoint.storage.tensor_index import Shape, Slices, intersection
from pulsetrain.core.errors import CorruptData, NotReshardable
from pulsetrain.core.json import JsonObject


@dataclass(frozen=True, kw_only=True)
class Place:
    """Saved rank, and the number of the tensor in its layout."""

    rank: int
    entry: int


@dataclass(frozen=True, kw_only=True)
class SavedBox:
    """`size` elements from `start` of a tensor, and who has them."""

    start: Shape
    size: Shape
    places: tuple[Place, ...]


@dataclass(frozen=True, kw_only=True)
class SavedTensor:
    """One tensor over all saved ranks. `shape` is that of the whole."""

    dtype: str
    shape: Shape
    boxes: tuple[SavedBox, ...]


@dataclass(frozen=True, kw_only=True)
class Piece:
    """What one box gives of a wanted part: `inside` the box, to `outside` in the part."""

    box: SavedBox
    inside: Slices
    outside: Slices


class SavedTensors:
    """Every tensor that ranks of the old world have saved. State of random generators is left out."""

    def __init__(self, layouts: Mapping[int, Layout]) -> None:
        """From the layout of each saved rank. Raises `NotReshardable` where ranks disagree on a tensor."""
        kinds: dict[str, tuple[str, Shape]] = {}
        places: dict[str, dict[tuple[Shape, Shape], list[Place]]] = {}
        for rank, layout in sorted(layouts.items()):
            for number, entry in enumerate(layout.entries):
                if of_one_rank(entry.name):
                    continue
                start, size, whole = entry.box
                if kinds.setdefault(entry.name, (entry.dtype, whole)) != (entry.dtype, whole):
                    raise NotReshardable(f"{entry.name}: ranks differ in its type or in its global shape")
                place = Place(rank=rank, entry=number)
                places.setdefault(entry.name, {}).setdefault((start, size), []).append(place)
        self.tensors = {
            name: SavedTensor(dtype=kinds[name][0], shape=kinds[name][1], boxes=_boxes(by_box))
            for name, by_box in places.items()
        }

    def copies(self) -> dict[int, list[tuple[str, SavedBox]]]:
        """Boxes that several ranks have, under the first of them, each with its tensor's name."""
        found: dict[int, list[tuple[str, SavedBox]]] = {}
        for name, tensor in self.tensors.items():
            for box in tensor.boxes:
                if len(box.places) > 1 and 0 not in box.size:
                    found.setdefault(box.places[0].rank, []).append((name, box))
        return found

    def check_whole(self) -> None:
        """Raises `NotReshardable` where the boxes do not cover a tensor."""
        for name, tensor in self.tensors.items():
            if not _covered((0,) * len(tensor.shape), tensor.shape, tensor.boxes):
                raise NotReshardable(f"{name}: ranks have saved only a part of its {tensor.shape}")

    def pieces(self, entry: Entry) -> list[Piece]:
        """From what the part of a new rank is put together. Raises `NotReshardable` where that cannot be."""
        start, size, whole = entry.box
        saved = self.tensors.get(entry.name)
        if saved is None:
            raise NotReshardable(f"{entry.name}: no rank has saved it")
        if (saved.dtype, saved.shape) != (entry.dtype, whole):
            raise NotReshardable(
                f"{entry.name}: saved as {saved.dtype} {saved.shape}, wanted as {entry.dtype} {whole}"
            )
        found = [
            Piece(box=box, inside=overlap[0], outside=overlap[1])
            for box in saved.boxes
            if (overlap := intersection(start, size, box.start, box.size)) is not None
        ]
        enough = next((p for p in found if _volume(p.outside) == math.prod(size)), None)
        if enough is not None:
            return [enough]
        if not _covered(start, size, [piece.box for piece in found]):
            raise NotReshardable(f"{entry.name}: shards do not cover {size} at {start} of {whole}")
        return found


def naming_ranks(layouts: Mapping[int, Layout]) -> list[int]:
    """The first saved rank, and each that names something which none before it does."""
    known: set[object] = set()
    chosen: list[int] = []
    for rank, layout in sorted(layouts.items()):
        new = {e.name for e in layout.entries if not of_one_rank(e.name)}.union(
            layout.without_tensors
        ) - known
        if new or not chosen:
            chosen.append(rank)
            known |= new
    return chosen


@dataclass(frozen=True, kw_only=True)
class Offer:
    """What a new rank is told of a saved step before it asks for its parts.

    `tensors` maps names to type and global shape. `layout` and `values` are those of one saved rank, for what
    is no tensor. `others` are those of more ranks, where no single one has a part of every tensor.
    """

    step: int
    tensors: Mapping[str, tuple[str, Shape]]
    layout: bytes
    values: bytes
    others: Sequence[tuple[bytes, bytes]] = ()

    def encode(self) -> bytes:
        """As JSON."""
        head: JsonObject = {"layout": self.layout.decode(), "values": self.values.decode()}
        head["others"] = [(layout.decode(), values.decode()) for layout, values in self.others]
        return json.dumps({"step": self.step, "tensors": self.tensors, **head}).encode()

    @classmethod
    def parse(cls, data: bytes) -> Offer:
        """What `encode` gave. Raises `CorruptData`."""
        try:
            raw = json.loads(data)
            return cls(
                step=raw["step"],
                tensors={name: (dtype, tuple(shape)) for name, (dtype, shape) in raw["tensors"].items()},
                layout=raw["layout"].encode(),
                values=raw["values"].encode(),
                others=tuple((layout.encode(), values.encode()) for layout, values in raw.get("others", ())),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptData(f"not an offer of a saved step: {error!r}") from error


def _boxes(by_box: Mapping[tuple[Shape, Shape], list[Place]]) -> tuple[SavedBox, ...]:
    return tuple(
        SavedBox(start=start, size=size, places=tuple(places)) for (start, size), places in by_box.items()
    )


def _volume(slices: Slices) -> int:
    return math.prod(one.stop - one.start for one in slices)


def _covered(start: Shape, size: Shape, boxes: Iterable[SavedBox]) -> bool:
    """Whether boxes cover a part. Only the cells between their edges are looked at, not the elements."""
    overlaps = [
        overlap[1] for box in boxes if (overlap := intersection(start, size, box.start, box.size)) is not None
    ]
    if not math.prod(size) or any(_volume(o) == math.prod(size) for o in overlaps):
        return True
    edges = [_edges(length, [o[axis] for o in overlaps]) for axis, length in enumerate(size)]
    cells = np.zeros([len(along) - 1 for along in edges], dtype=bool)
    for slices in overlaps:
        inner = zip(edges, slices, strict=True)
        cells[tuple(slice(along.index(one.start), along.index(one.stop)) for along, one in inner)] = True
    return bool(cells.all())


def _edges(length: int, slices: Sequence[slice]) -> list[int]:
    return sorted({0, length, *(one.start for one in slices), *(one.stop for one in slices)})
