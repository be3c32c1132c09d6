from __future__ import annotations

import os

import pytest

from pulsetrain.collectors.rank import renewal
from pulsetrain.collectors.rank.handle import Handle
from pulsetrain.collectors.rank.ring import create_ring
from pulsetrain.collectors.reading.ring_reader import RingReader
from pulsetrain.integrations.phase_switch import PhaseSwitch
from tests.collectors.rank.watched import Watched


@pytest.fixture
def watched():
    return Watched()


def test_one_phase_ends_where_the_next_begins(watched):
    phase = PhaseSwitch(watched.handle)
    for name in ("data", "optimizer", None, None, "data"):
        phase.to(name)
    assert watched.spans() == [("data", ""), ("optimizer", "")]
    assert watched.open() == ["data"]
    assert watched.errors == 0


def test_without_an_agent_nothing_happens():
    phase = PhaseSwitch(Handle(None))
    phase.to("data")
    phase.to(None)


def test_a_phase_that_an_error_left_open_ends_with_the_next_trainer(watched):
    PhaseSwitch(watched.handle).to("data")
    after = PhaseSwitch(watched.handle)
    after.to("optimizer")
    assert watched.open() == ["optimizer"]
    after.to(None)
    assert (watched.open(), watched.errors) == ([], 0)


def test_a_new_attempt_in_the_process_begins_without_a_phase(watched):
    PhaseSwitch(watched.handle).to("data")
    fd = create_ring(1024)
    renewal.renew(watched.handle, fd, -1)
    reader = RingReader(fd)
    os.close(fd)
    PhaseSwitch(watched.handle).to("optimizer")
    assert [phase.name for phase in reader.status().stack] == ["optimizer"]
    assert reader.status().errors == 0
