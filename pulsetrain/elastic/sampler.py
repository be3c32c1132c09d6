"""Deals the samples of an epoch to a number of ranks that may change: each sample is used exactly once.

The order of an epoch depends on seed and epoch alone. How far it has come is a number of samples, not of
batches of some rank. So a job of any size goes on where one of another size has ended. A sample is an
index. Data sets without one have `ElasticStream`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from pulsetrain.core.errors import UsageError


class SamplerState(TypedDict):
    """`consumed` samples of the epoch are done. `samples` is the size of the data set."""

    seed: int
    epoch: int
    consumed: int
    samples: int


@dataclass(frozen=True, kw_only=True)
class Share:
    """One rank's part of one global batch, which begins at `position` of its epoch.

    `microbatches` hold indices of samples. `total` is the number of samples of all ranks. Sum the loss over
    samples, divide by `total`, and add the gradients of all ranks. Then each sample counts the same, also
    where ranks have unequal numbers of them.
    """

    position: int
    total: int
    microbatches: tuple[tuple[int, ...], ...]

    @property
    def samples(self) -> int:
        """Number of samples of this rank. It may be 0 in the last batch of an epoch."""
        return sum(len(micro) for micro in self.microbatches)


def accumulation_steps(batch: int, world: int, microbatch: int) -> int:
    """How many microbatches the busiest rank does for a global batch that stays the same.

    Raises `UsageError`.

    >>> [accumulation_steps(64, world, 8) for world in (8, 7, 4, 1)]
    [1, 2, 2, 8]
    """
    if min(batch, world, microbatch) < 1:
        raise UsageError(f"batch {batch}, world {world}, microbatch {microbatch}: allowed: from 1")
    return math.ceil(math.ceil(batch / world) / microbatch)


class ElasticSampler:
    """The global batches of an epoch, and this rank's share of each.

    >>> sampler = ElasticSampler(10, batch=4, microbatch=1, rank=1, world=2, shuffle=False)
    >>> for share in sampler:
    ...     print(share.position, share.microbatches)
    ...     sampler.advance(share)
    0 ((1,), (3,))
    4 ((5,), (7,))
    8 ((9,),)
    >>> sampler.epoch, sampler.consumed
    (1, 0)
    """

    def __init__(
        self,
        samples: int,
        *,
        batch: int,
        microbatch: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        even: bool = False,
        rank: int | None = None,
        world: int | None = None,
    ) -> None:
        """`batch` is that of all ranks together. A rank takes `microbatch` samples at once, all by default.

        `even`: every share has `accumulation` microbatches, of which the last may be empty. Wrappers that
        communicate in each pass, such as DDP and FSDP, need as many passes on all ranks. Rank and number of
        ranks are those of the environment by default. Raises `UsageError`.
        """
        self.rank = int(os.environ.get("RANK", "0")) if rank is None else rank
        self.world = int(os.environ.get("WORLD_SIZE", "1")) if world is None else world
        if samples < 1 or batch < 1 or not 0 <= self.rank < self.world:
            raise UsageError(
                f"samples {samples}, batch {batch}, rank {self.rank} of {self.world}: allowed: from 1, "
                "and a rank below the number of ranks"
            )
        self.samples, self.batch = samples, batch
        self.microbatch = batch if microbatch is None else microbatch
        self.accumulation = accumulation_steps(batch, self.world, self.microbatch)
        self.seed, self.epoch, self.consumed = seed, 0, 0
        self._shuffle, self._even = shuffle, even

    def __iter__(self) -> Iterator[Share]:
        """The shares of this epoch's batches, from the first that is not consumed.

        Iterating consumes nothing, so that a loader may read ahead. `advance` does.
        """
        order = self._order()
        for position in range(self.consumed, self.samples, self.batch):
            mine = order[position : position + self.batch]
            yield Share(
                position=position,
                total=len(mine),
                microbatches=_microbatches(
                    mine[self.rank :: self.world], self.microbatch, self.accumulation if self._even else 0
                ),
            )

    def microbatches(self) -> Microbatches:
        """Indices of this rank's microbatches until the end of the epoch, as `batch_sampler` of a loader.

        A loader that is made once yields those of the present epoch each time that it is iterated.
        """
        return Microbatches(self)

    def microbatches_left(self) -> int:
        """How many microbatches this rank has until the end of the epoch."""
        whole, rest = divmod(self.samples - self.consumed, self.batch)
        return whole * self._passes(self.batch) + (self._passes(rest) if rest else 0)

    def _passes(self, total: int) -> int:
        """How many microbatches this rank has of a batch of so many samples."""
        mine = max(0, -(-(total - self.rank) // self.world))
        return max(-(-mine // self.microbatch), self.accumulation if self._even else 0)

    def advance(self, share: Share | None = None) -> None:
        """A batch was used: call it after the optimizer's step. The last one of an epoch begins the next.

        Without `share` it is the next one. Raises `UsageError` for a batch that is not the next one.
        """
        if share is not None and share.position != self.consumed:
            raise UsageError(f"batch at sample {share.position}: the next one is at {self.consumed}")
        self.consumed += self.batch
        if self.consumed >= self.samples:
            self.epoch, self.consumed = self.epoch + 1, 0

    def state_dict(self) -> SamplerState:
        """Where it stands. It is the same on every rank and for every number of ranks."""
        return {
            "seed": self.seed,
            "epoch": self.epoch,
            "consumed": self.consumed,
            "samples": self.samples,
        }

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on from there, with this sampler's own number of ranks and batch. Raises `UsageError`."""
        if state["samples"] != self.samples:
            raise UsageError(f"the state is of {state['samples']} samples, the data set has {self.samples}")
        self.seed, self.epoch, self.consumed = state["seed"], state["epoch"], state["consumed"]

    def _order(self) -> npt.NDArray[np.int64]:
        """The samples of this epoch in order. numpy keeps the numbers of this generator for good."""
        if not self._shuffle:
            return np.arange(self.samples, dtype=np.int64)
        words = [self.seed & 0xFFFFFFFF, self.seed >> 32 & 0xFFFFFFFF, self.epoch]
        return np.random.RandomState(words).permutation(self.samples)


class Microbatches:
    """This rank's microbatches of the epoch in which the sampler is when they are iterated."""

    def __init__(self, sampler: ElasticSampler) -> None:
        self._sampler = sampler

    def __iter__(self) -> Iterator[list[int]]:
        return (list(micro) for share in self._sampler for micro in share.microbatches)

    def __len__(self) -> int:
        return self._sampler.microbatches_left()


def _microbatches(
    indices: Sequence[int] | npt.NDArray[np.int64], size: int, least: int
) -> tuple[tuple[int, ...], ...]:
    """Up to `size` each, and empty ones until there are `least`."""
    full = [tuple(int(index) for index in indices[at : at + size]) for at in range(0, len(indices), size)]
    return (*full, *[()] * (least - len(full)))
