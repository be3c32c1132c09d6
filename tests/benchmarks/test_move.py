"""The benchmark of moves: what it gathers, and what its parts compare."""

import sys
from types import ModuleType

import move
import pytest
from moving import barrier

from pulsetrain.collectors.layout import W_LAST_STEP
from pulsetrain.collectors.rank.handle import Handle
from tests.collectors.rank.watched import Watched


def part(monkeypatch, run):
    module = ModuleType("moving.made_up")
    module.run = run
    monkeypatch.setitem(sys.modules, "moving.made_up", module)


def test_fields_of_parts_that_were_not_run_are_null():
    found = move.gather((), quick=True, seed=0)
    assert set(found.values()) == {None}
    assert {"moves", "identical", "steps_redone", "barrier_ratio", "preempt_s"} <= set(found)
    assert {"image_ratio_8", "slicing_ratio", "premium_share", "standard_share"} <= set(found)


def test_a_part_that_is_not_there_is_left_out_and_said(capsys):
    assert set(move.gather(("nosuch",), quick=True, seed=0).values()) == {None}
    assert "nosuch: left out" in capsys.readouterr().err


@pytest.mark.parametrize("takes_seed", [True, False])
def test_a_part_gets_the_seed_if_it_takes_one(monkeypatch, takes_seed):
    def seeded(*, quick, seed):
        return {"moves": (quick, seed)}

    def plain(*, quick):
        return {"moves": (quick, None)}

    part(monkeypatch, seeded if takes_seed else plain)
    assert move.gather(("made_up",), quick=True, seed=7)["moves"] == (True, 7 if takes_seed else None)


def test_the_step_it_is_compared_with_does_the_same_but_never_stands():
    watched = Watched()
    stood = []
    watched.handle.hold.at_step = lambda state: stood.append(state.step) or 0
    watched.reader.hold(1, 0, 1 << 62)
    plain = barrier.without_check()
    plain(watched.handle, watched.handle.state.words[0] + 1)
    assert (watched.handle.state.words[W_LAST_STEP], stood) == (0, [])
    Handle.end_step(watched.handle, 5)
    assert (watched.handle.state.words[W_LAST_STEP], stood) == (1, [2])


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(600)
def test_jobs_that_are_moved_end_as_they_would_have():
    found = barrier.run(quick=True, seed=3)
    assert found["moves"] == found["identical"] == 4
    assert found["by_job"]["example"]["redone"] == [0, 0]
    assert found["by_job"]["example"]["missed"] == 0
