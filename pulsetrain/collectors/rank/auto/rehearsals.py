"""Runs of a framework that train only to learn something, and then put everything back as it was.

Their steps are none of the training. Lightning looks for a learning rate or a batch size so, before it trains
or before it goes on from a checkpoint.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple, TypeVar

from pulsetrain.collectors.rank.auto.context import Auto

T = TypeVar("T")


class Search(NamedTuple):
    """A function `name` of `module` that trains for a while. Other modules take it from there."""

    module: str
    name: str


SEARCHES = tuple(
    Search(f"{package}.tuner.{module}", name)
    for package in ("lightning.pytorch", "pytorch_lightning")
    for module, name in (("lr_finder", "_lr_find"), ("batch_size_scaling", "_scale_batch_size"))
)


def install(auto: Auto) -> None:
    """Watch for every search. No framework is imported for it."""
    for search in SEARCHES:
        auto.imports.when_imported(search.module, _watching(search, auto))


def _watching(search: Search, auto: Auto) -> Callable[[ModuleType], None]:
    def imported(module: ModuleType) -> None:
        if hasattr(module, search.name):  # it is the framework's own, and may get another name
            setattr(module, search.name, unheard(getattr(module, search.name), auto))

    return imported


def unheard(original: Callable[..., T], auto: Auto) -> Callable[..., T]:
    """Return `original`, in which no backward pass and no step counts."""

    @functools.wraps(original)
    def rehearse(*args: object, **kwargs: object) -> T:
        before, auto.loop.rehearses = auto.loop.rehearses, True
        try:
            return original(*args, **kwargs)
        finally:
            auto.loop.rehearses = before

    return rehearse
