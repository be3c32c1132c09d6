"""Ranks of a group that read one checkpoint together: who reads for others, and how a failure is told."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import psutil
import torch
import torch.distributed as dist

from pulsetrain.checkpoint.storage.manifest import Segment, Table
from pulsetrain.checkpoint.storage.shards import readers
from pulsetrain.checkpoint.storage.tensor_index import TensorIndex
from pulsetrain.core.errors import CheckpointError, CorruptData, PulsetrainError

T = TypeVar("T")
K = TypeVar("K")
HELD_SHARE = 0.5  # of the free memory of a host, that content may take which was sent to its ranks


class ReadingRanks:
    """The ranks of a process group of backend gloo. Without a group this process is alone."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self.group = group
        self.this_rank = 0 if group is None else dist.get_rank(group)
        self.count = 1 if group is None else dist.get_world_size(group)

    def each(self, work: Callable[[], T]) -> T:
        """What `work` gives. Where it fails on one rank, all raise: nobody waits for that one in vain."""
        result: list[T] = []
        error: Exception | None = None
        try:
            result.append(work())
        except Exception as raised:  # noqa: BLE001 - raised below, once the others know
            error = raised
        self.agree(error)
        return result[0]

    def one(self, choose: Callable[[], T], tell: Callable[[T], K], follow: Callable[[K], T]) -> T:
        """What rank 0 chooses, as each of the others finds it by what it is told. Raises as `each` does."""
        chosen = self.each(lambda: choose() if self.this_rank == 0 else None)
        if self.group is None:
            assert chosen is not None
            return chosen
        told: list[K | None] = [tell(chosen) if chosen is not None else None]
        dist.broadcast_object_list(told, group=self.group, group_src=0)
        key = told[0]
        assert key is not None
        return self.each(lambda: chosen if chosen is not None else follow(key))

    def agree(self, error: Exception | None) -> None:
        """Raise this rank's own error, else `CheckpointError` with that of another rank."""
        texts = [""] if error is None else [f"{type(error).__name__}: {error}"]
        of_all: list[list[str]] = [texts] * self.count
        if self.group is not None:
            dist.all_gather_object(of_all, texts, group=self.group)
        if error is not None:
            raise error
        failed = [(rank, text[0]) for rank, text in enumerate(of_all) if text[0]]
        if failed:
            raise CheckpointError(f"rank {failed[0][0]} cannot read the checkpoint: {failed[0][1]}")


def exchange(index: TensorIndex, wanted: Mapping[str, Segment], ranks: ReadingRanks) -> None:
    """Give `index` the content that other ranks of the group need too.

    Of those that need it, the rank with least to read so far reads it and sends it to the others. The order
    is the same for all ranks. What a rank has no memory for is read by each rank that needs it. Where a
    rank cannot read, all raise.
    """
    needs: list[dict[str, int]] = [{} for _ in range(ranks.count)]
    dist.all_gather_object(needs, {h: s.bytes for h, s in wanted.items()}, group=ranks.group)
    chosen = readers(_tables(needs), {rank: str(rank) for rank in range(ranks.count)})
    room, error = _room(ranks), None
    for content in sorted(chosen):
        needing = [rank for rank, need in enumerate(needs) if content in need]
        size = needs[needing[0]][content]
        if len(needing) < 2 or any(room[rank] < size for rank in needing):
            continue
        for rank in needing:
            room[rank] -= size
        if ranks.this_rank in needing:
            error = _share(index, wanted[content], needing, int(chosen[content]), ranks) or error
    ranks.agree(error)


def _share(
    index: TensorIndex, segment: Segment, needing: Sequence[int], reader: int, ranks: ReadingRanks
) -> Exception | None:
    """Read a segment and send it, or take it. What cannot be read is sent as zeros, so that nobody waits."""
    if ranks.this_rank != reader:
        target = torch.empty(segment.bytes, dtype=torch.uint8)
        dist.recv(target, group=ranks.group, group_src=reader)
        try:
            index.give(segment.hash, target.numpy().tobytes())
        except CorruptData as error:
            return error
        return None
    failed: Exception | None = None
    try:
        data = index.fetch(segment)
        index.give(segment.hash, data, came=False)
    except (PulsetrainError, OSError) as error:
        failed, data = error, bytes(segment.bytes)
    payload = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    for other in needing:
        if other != reader:
            dist.send(payload, group=ranks.group, group_dst=other)
    return failed


def _tables(needs: Sequence[Mapping[str, int]]) -> list[Table]:
    return [
        Table(
            rank=rank,
            layout_bytes=0,
            values_bytes=0,
            payload_bytes=0,
            segments=tuple(Segment(offset=0, bytes=n, hash=h) for h, n in need.items()),
        )
        for rank, need in enumerate(needs)
    ]


def _room(ranks: ReadingRanks) -> list[int]:
    """How many bytes each rank may hold for others' sake. Ranks of one host share its memory."""
    told: list[tuple[str, int]] = [("", 0)] * ranks.count
    here = (socket.gethostname(), psutil.virtual_memory().available)
    dist.all_gather_object(told, here, group=ranks.group)
    on_host = Counter(host for host, _ in told)
    return [int(HELD_SHARE * free / on_host[host]) for host, free in told]
