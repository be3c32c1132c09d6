"""Replaces a function of a library by one of ours that calls it. It leaves no trace in tracebacks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import ParamSpec, Protocol, TypeVar

from pulsetrain.collectors.rank.auto import untraced

P = ParamSpec("P")
T = TypeVar("T")


class Call(Protocol):
    """One call of a wrapped function. None of its methods raises."""

    @property
    def span(self) -> AbstractContextManager[None]:
        """What is open while the function runs."""
        ...

    def returned(self, result: object) -> None:
        """The function has returned `result`."""
        ...

    def raised(self) -> None:
        """The function has raised, or was interrupted."""
        ...


class CallThen:
    """One call after which something is done, unless it raised. `fault` is told where that fails."""

    def __init__(
        self, span: AbstractContextManager[None], then: Callable[[], None], fault: Callable[[], None]
    ) -> None:
        self.span = span
        self._then, self._fault = then, fault

    def returned(self, result: object) -> None:
        """See `Call`."""
        try:
            self._then()
        except Exception:  # noqa: BLE001 - the script's call has succeeded, whatever we make of it
            self._fault()

    def raised(self) -> None:
        """See `Call`."""


Begin = Callable[[tuple[object, ...], Mapping[str, object]], Call | None]
"""Looks at the arguments of a call. None: the call is nothing to us. It raises only to refuse the call."""


def wrap(owner: object, name: str, begin: Begin) -> None:
    """Replace `owner.name`. One that is missing, or replaced already, stays as it is."""
    original = getattr(owner, name, None)
    if original is not None and not hasattr(original, "_pulsetrain"):
        setattr(owner, name, wrapped(original, begin))


def wrapped(original: Callable[P, T], begin: Begin) -> Callable[P, T]:
    """Return a function that does what `original` does. What it raises passes without a frame of ours."""

    untraced.hook(begin)

    @functools.wraps(original)
    @untraced.wrapper
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        seen = begin(args, kwargs)
        try:
            if seen is None:
                return original(*args, **kwargs)
            with seen.span:
                result = original(*args, **kwargs)
        except BaseException as error:
            if seen is not None:
                seen.raised()
            if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
                error.__traceback__ = error.__traceback__.tb_next
            raise
        seen.returned(result)
        return result

    call._pulsetrain = True  # type: ignore[attr-defined]  # so that nobody wraps it twice
    return call


def argument(
    args: tuple[object, ...], kwargs: Mapping[str, object], position: int, name: str
) -> object | None:
    """Return an argument that may be given by position or by name, None if it is not given."""
    return args[position] if position < len(args) else kwargs.get(name)
