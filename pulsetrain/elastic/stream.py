"""Deals the items of an iterable data set to a number of ranks that may change: each is used exactly once.

Every rank reads the same sequence and keeps its own items by their global position. So a rank pays for
reading all of them. How far the epoch has come is a number of items. So a job of any size goes on where one
of another size has ended. An iterable that keeps its own state is not read again from its beginning.
"""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypedDict, TypeVar, runtime_checkable

from pulsetrain.core.errors import UsageError
from pulsetrain.elastic.sampler import accumulation_steps

Item = TypeVar("Item")


@runtime_checkable
class Stateful(Protocol):
    """A source that says where it stands, and goes on from there."""

    def state_dict(self) -> Mapping[str, Any]: ...

    def load_state_dict(self, state: Any) -> None: ...


class StreamState(TypedDict):
    """`consumed` items of the epoch are used. `source` is the source's own state there, None without one."""

    epoch: int
    consumed: int
    source: Mapping[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class StreamShare(Generic[Item]):
    """One rank's part of one global batch, which begins at item `position` of its epoch.

    `total` is the number of items of all ranks. Divide the sum of the loss by it. `source` is the state of a
    source that keeps its own, behind the batch. `last`: the epoch ends with it.
    """

    position: int
    total: int
    microbatches: tuple[tuple[Item, ...], ...]
    last: bool
    source: Mapping[str, Any] | None = None


class ElasticStream(Generic[Item]):
    """The global batches of an iterable data set, and this rank's share of each.

    >>> stream = ElasticStream(lambda epoch: "abcdefghij", batch=4, microbatch=1, rank=1, world=2)
    >>> for share in stream:
    ...     print(share.position, share.microbatches, share.last)
    ...     stream.advance(share)
    0 (('b',), ('d',)) False
    4 (('f',), ('h',)) False
    8 (('j',),) True
    >>> stream.epoch, stream.consumed
    (1, 0)
    """

    def __init__(
        self,
        source: Callable[[int], Iterable[Item]],
        *,
        batch: int,
        microbatch: int | None = None,
        even: bool = False,
        rank: int | None = None,
        world: int | None = None,
    ) -> None:
        """`source` makes the items of an epoch, in the same order on every rank and at every call.

        It must not deal the items to ranks by itself. `batch` is that of all ranks together. `even`: every
        share has `accumulation` microbatches, of which the last may be empty. Rank and number of ranks are
        those of the environment by default. Raises `UsageError`.
        """
        self.rank = int(os.environ.get("RANK", "0")) if rank is None else rank
        self.world = int(os.environ.get("WORLD_SIZE", "1")) if world is None else world
        if batch < 1 or not 0 <= self.rank < self.world:
            raise UsageError(
                f"batch {batch}, rank {self.rank} of {self.world}: allowed: from 1, "
                "and a rank below the number of ranks"
            )
        self.batch, self.microbatch = batch, batch if microbatch is None else microbatch
        self.accumulation = accumulation_steps(batch, self.world, self.microbatch)
        self.epoch = self.consumed = 0
        self._make, self._even = source, even
        self._source_state: Mapping[str, Any] | None = None

    def __iter__(self) -> Iterator[StreamShare[Item]]:
        """The shares of this epoch's batches, from the first that is not consumed.

        Iterating consumes nothing, so that a loader may read ahead. `advance` does. An epoch without items
        raises `UsageError`, as does a source that ends before the items that are consumed.
        """
        source, position = self._make(self.epoch), self.consumed
        items = self._at(source, position)
        batch = list(itertools.islice(items, self.batch))
        if not batch:
            raise UsageError(f"the data set has no item {position} in epoch {self.epoch}")
        state = _state(source)
        while batch:
            following = list(itertools.islice(items, self.batch)) if len(batch) == self.batch else []
            yield StreamShare(
                position=position,
                total=len(batch),
                microbatches=_microbatches(
                    batch[self.rank :: self.world], self.microbatch, self.accumulation if self._even else 0
                ),
                last=not following,
                source=state,
            )
            position, batch, state = position + len(batch), following, _state(source)

    def advance(self, share: StreamShare[Item]) -> None:
        """A batch was used: call it after the optimizer's step. The last one of an epoch begins the next.

        Raises `UsageError` for a batch that is not the next one.
        """
        if share.position != self.consumed:
            raise UsageError(f"batch at item {share.position}: the next one is at {self.consumed}")
        self.consumed, self._source_state = share.position + share.total, share.source
        if share.last:
            self.epoch, self.consumed, self._source_state = self.epoch + 1, 0, None

    def state_dict(self) -> StreamState:
        """Where it stands. It is the same for every number of ranks."""
        return {"epoch": self.epoch, "consumed": self.consumed, "source": self._source_state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there, with this stream's own number of ranks and batch."""
        self.epoch, self.consumed = state["epoch"], state["consumed"]
        self._source_state = state.get("source")

    def _at(self, source: Iterable[Item], position: int) -> Iterator[Item]:
        """The items from a position on. A source without a state of its own is read from its beginning."""
        if isinstance(source, Stateful) and self._source_state is not None:
            source.load_state_dict(self._source_state)
            return iter(source)
        return itertools.islice(iter(source), position, None)


def _state(source: object) -> Mapping[str, Any] | None:
    """Where a source stands now, None for one that does not say it. It may tell by what it changes later."""
    return copy.deepcopy(dict(source.state_dict())) if isinstance(source, Stateful) else None


def _microbatches(items: Sequence[Item], size: int, least: int) -> tuple[tuple[Item, ...], ...]:
    """Up to `size` each, and empty ones until there are `least`."""
    full = [tuple(items[at : at + size]) for at in range(0, len(items), size)]
    return (*full, *[()] * (least - len(full)))
