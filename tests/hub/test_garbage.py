"""Heartbeats that come and go do not make Python look for garbage."""

import gc

import pytest

from pulsetrain.hub.garbage import collect_seldom
from pulsetrain.protocol.messages import decode, encode
from tests.recovery.builders import heartbeat, status


@pytest.fixture(autouse=True)
def _as_before():
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


@pytest.fixture
def looks():
    """The generations that were looked at."""
    seen = []

    def note(phase, info):
        if phase == "start":
            seen.append(info["generation"])

    gc.callbacks.append(note)
    yield seen
    gc.callbacks.remove(note)


def test_a_thousand_heartbeats_are_read_without_a_look_for_garbage(looks):
    text = encode(heartbeat("a", *(status(rank) for rank in range(8))))
    gc.collect()
    collect_seldom()
    looks.clear()
    held = [decode(text) for _ in range(200)]
    for at in range(1000):
        held[at % 200] = decode(text)
    assert 2 not in looks
    assert len(looks) <= 1


def test_garbage_that_refers_to_itself_is_found_in_the_end(looks):
    collect_seldom()
    looks.clear()
    for _ in range(60_000):
        ring = []
        ring.append(ring)
    assert looks
