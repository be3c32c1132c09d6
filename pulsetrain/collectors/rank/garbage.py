"""Pauses of Python's garbage collector as spans of phase ``gc``, inside whatever phase they struck."""

from __future__ import annotations

import gc
from collections.abc import Callable
from threading import get_ident
from time import perf_counter_ns

from pulsetrain.collectors.layout import span_head
from pulsetrain.collectors.rank.handle import Handle
from pulsetrain.collectors.rank.phases import RankState
from pulsetrain.records.schema import CATEGORIES

LEAST_NS = 1_000_000  # young generations are collected in microseconds, hundreds of times a step


def install(handle: Handle) -> None:
    """Record every collection of 1 ms or more from now on; call it once."""
    if handle.state is not None:
        gc.callbacks.append(recorder(handle, handle.state, get_ident()))


def recorder(handle: Handle, state: RankState, main: int) -> Callable[[str, dict[str, int]], None]:
    """The callback that `gc` calls before and after each collection, in the thread that set it off.

    In a forked child, whose handle is muted, it does nothing. A collection in another thread than `main` has
    no phase around it.
    """
    head = span_head(state.ring.intern("gc"), CATEGORIES.index("other"))
    began_ns: dict[int, int] = {}

    def collected(phase: str, _: dict[str, int]) -> None:
        me = get_ident()
        if phase == "start":
            began_ns[me] = perf_counter_ns()
            return
        start, end = began_ns.pop(me, 0), perf_counter_ns()
        if start and end - start >= LEAST_NS and handle.state is not None:
            parent = state.parent if me == main else 0
            state.ring.span(head | parent, state.context, start, end)

    return collected
