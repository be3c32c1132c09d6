from __future__ import annotations

import pytest

from pulsetrain.collectors.rank.handle import Handle
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
