"""Batches of `torch.utils.data.DataLoader`: how long the script waits for each, and what it holds.

The loaders of accelerate ask torch's for one batch more than they have handed out. So theirs are watched.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from torch.utils.data import dataloader

from pulsetrain.collectors.rank.auto import batches, untraced
from pulsetrain.collectors.rank.auto.context import Auto

STATEFUL = "torchdata.stateful_dataloader.stateful_dataloader"
ACCELERATE = "accelerate.data_loader"
LOOK_AHEAD = ("DataLoaderShard", "DataLoaderDispatcher")
_SOURCES = {batches.TOKENS: "batch", batches.SAMPLES: "samples"}


def install(auto: Auto) -> None:
    """Wrap `__next__` of torch's iterators, and of torchdata's once it is imported."""
    _wrap(dataloader._BaseDataLoaderIter, auto)

    def stateful(module: ModuleType) -> None:
        iterator = module._BaseDataLoaderIter
        if iterator is not dataloader._BaseDataLoaderIter and "__next__" in vars(iterator):
            _wrap(iterator, auto)

    def accelerate(module: ModuleType) -> None:
        for name in LOOK_AHEAD:
            owner = getattr(module, name, None)
            if owner is not None and "__iter__" in vars(owner):  # other versions may have other names
                owner.__iter__ = watched_iter(owner.__iter__, auto)

    auto.imports.when_imported(STATEFUL, stateful)
    auto.imports.when_imported(ACCELERATE, accelerate)


def _wrap(iterator: type, auto: Auto) -> None:
    iterator.__next__ = watched_next(iterator.__next__, auto)  # type: ignore[attr-defined]


def watched_next(original: Callable[[Any], Any], auto: Auto) -> Callable[[Any], Any]:
    """Return `original`, timed as phase `data`. Its errors and its end pass untouched."""
    loop, fault = auto.loop, auto.handle.fault

    @untraced.hook
    def begin(iterator: object) -> None:
        try:
            loop.begin_fetch(iterator)
        except Exception:  # noqa: BLE001 - the script must not see our faults
            fault()

    @untraced.hook
    def end(batch: object) -> None:
        try:
            tokens, what = batches.size(batch)
            if tokens:
                loop.count_tokens(_SOURCES[what])
            loop.end_fetch(tokens)
        except Exception:  # noqa: BLE001 - as above
            fault()

    @untraced.hook
    def fail(iterator: object) -> None:
        try:
            loop.fail_fetch(iterator)
        except Exception:  # noqa: BLE001 - as above
            fault()

    @functools.wraps(original)
    @untraced.wrapper
    def fetch(iterator: Any) -> Any:
        if loop.is_fetching or not loop.listens:  # a loader inside another one's dataset is a part of that
            return original(iterator)
        try:
            loop.is_fetching = True
            begin(iterator)
            batch = original(iterator)
        except BaseException:
            loop.is_fetching = False
            fail(iterator)
            raise
        loop.is_fetching = False
        end(batch)
        return batch

    return fetch


def watched_iter(original: Callable[[Any], Iterator[Any]], auto: Auto) -> Callable[[Any], Iterator[Any]]:
    """Return `__iter__` of a loader that looks ahead: each batch is fetched when the script gets it."""
    fetch = watched_next(_Batches.advance, auto)

    @functools.wraps(original)
    @untraced.wrapper
    def iterate(loader: Any) -> Iterator[Any]:
        return _Batches(original(loader), loader, fetch)

    return iterate


class _Batches:
    """Hands out what an iterator yields. `_index_sampler` is the loader's, as torch's iterators have it."""

    def __init__(self, iterator: Iterator[Any], loader: object, fetch: Callable[[Any], Any]) -> None:
        self._iterator, self._fetch = iterator, fetch
        self._index_sampler = getattr(loader, "_index_sampler", None)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._fetch(self)

    def advance(self) -> Any:
        """Return the next batch."""
        return next(self._iterator)
