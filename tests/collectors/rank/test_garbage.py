"""Pauses of the garbage collector: long ones become spans inside the phase they struck."""

from __future__ import annotations

import gc
import os
import threading
import time

import pytest

from pulsetrain.collectors.rank import garbage
from pulsetrain.collectors.rank.handle import Handle
from pulsetrain.collectors.rank.ring import RingWriter, create_ring
from pulsetrain.collectors.reading.ring_reader import RingReader


@pytest.fixture
def watched():
    fd = create_ring(1024)
    handle, reader = Handle(RingWriter(fd)), RingReader(fd)
    os.close(fd)
    garbage.install(handle)
    callback = gc.callbacks[-1]
    yield handle, reader
    gc.callbacks.remove(callback)


def spans(reader):
    names = reader.names
    return [(names[s["name"]], names[s["parent"]], s["end"] - s["start"]) for s in reader.drain()[0]]


def knots(count=300_000):
    """Cycles enough that collecting them takes milliseconds."""
    for _ in range(count):
        knot = []
        knot.append(knot)


def test_a_long_collection_is_a_span_inside_its_phase(watched):
    handle, reader = watched
    gc.disable()
    try:
        with handle.phase("forward"):
            knots()
            gc.collect()
    finally:
        gc.enable()
    (pause, phase) = spans(reader)
    assert pause[:2] == ("gc", "forward")
    assert garbage.LEAST_NS <= pause[2] <= phase[2]


def test_short_collections_leave_no_trace(watched, monkeypatch):
    monkeypatch.setattr(
        garbage, "perf_counter_ns", time.thread_time_ns
    )  # a turn of another process is no pause
    _, reader = watched
    gc.disable()
    try:
        for _ in range(50):
            gc.collect(0)
    finally:
        gc.enable()
    assert spans(reader) == []


def test_a_collection_in_another_thread_has_no_phase_around_it(watched):
    handle, reader = watched

    def collect():
        gc.collect()

    gc.disable()
    try:
        with handle.phase("forward"):
            knots()
            thread = threading.Thread(target=collect)
            thread.start()
            thread.join()
    finally:
        gc.enable()
    assert [s[:2] for s in spans(reader) if s[0] == "gc"] == [("gc", "")]


def test_without_an_agent_nothing_is_installed():
    before = list(gc.callbacks)
    garbage.install(Handle(None))
    assert gc.callbacks == before
