"""Batches of `torch.utils.data.DataLoader`: how long the script waits for each, and what it holds."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch.utils.data import dataloader

from pulsetrain.collectors.rank.auto import batches, untraced
from pulsetrain.collectors.rank.auto.context import Auto

STATEFUL = "torchdata.stateful_dataloader.stateful_dataloader"
_SOURCES = {batches.TOKENS: "batch", batches.SAMPLES: "samples"}


def install(auto: Auto) -> None:
    """Wrap `__next__` of torch's iterators, and of torchdata's once it is imported."""
    _wrap(dataloader._BaseDataLoaderIter, auto)

    def stateful(module: ModuleType) -> None:
        iterator = module._BaseDataLoaderIter
        if iterator is not dataloader._BaseDataLoaderIter and "__next__" in vars(iterator):
            _wrap(iterator, auto)

    auto.imports.when_imported(STATEFUL, stateful)


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
