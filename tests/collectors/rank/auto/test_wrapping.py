"""A wrapped function does what it did, and its tracebacks show only what they showed."""

from __future__ import annotations

import contextlib
import inspect
import traceback
from types import SimpleNamespace

import pytest

from pulsetrain.collectors.rank.auto.wrapping import argument, wrap, wrapped


class Seen:
    """A call that writes down what it is told."""

    def __init__(self, log):
        self.log = log

    @property
    @contextlib.contextmanager
    def span(self):
        self.log.append("in")
        try:
            yield
        finally:
            self.log.append("out")

    def returned(self, result):
        self.log.append(result)

    def raised(self):
        self.log.append("raised")


def divide(over, under=1):
    return over / under


def test_it_returns_what_the_function_returns_and_tells_of_it():
    log = []
    call = wrapped(divide, lambda args, kwargs: Seen([*log]) if args is None else Seen(log))
    assert call(6, under=3) == 2
    assert log == ["in", "out", 2]
    assert inspect.signature(call) == inspect.signature(divide)
    assert call.__name__ == "divide"


@pytest.mark.parametrize("seen", [Seen([]), None])
def test_what_it_raises_passes_without_a_frame_of_ours(seen):
    call = wrapped(divide, lambda args, kwargs: seen)
    with pytest.raises(ZeroDivisionError) as raised:
        call(1, 0)
    names = [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert names == ["test_what_it_raises_passes_without_a_frame_of_ours", "divide"]
    assert raised.value.__context__ is None
    assert seen is None or seen.log == ["in", "out", "raised"]


def test_an_exit_passes_too():
    def leave():
        raise SystemExit(3)

    with pytest.raises(SystemExit, match="3"):
        wrapped(leave, lambda args, kwargs: Seen([]))()


def test_nothing_is_wrapped_twice_and_what_is_missing_stays_missing():
    log = []
    owner = SimpleNamespace(divide=divide)
    for _ in range(2):
        wrap(owner, "divide", lambda args, kwargs: Seen(log))
        wrap(owner, "multiply", lambda args, kwargs: Seen(log))
    assert owner.divide(4, 2) == 2
    assert log == ["in", "out", 2]
    assert not hasattr(owner, "multiply")


def test_an_argument_may_come_by_position_or_by_name():
    assert argument((1, 2), {}, 1, "f") == 2
    assert argument((1,), {"f": 2}, 1, "f") == 2
    assert argument((), {}, 1, "f") is None
