"""The benchmark of moves: what it gathers, and what its parts compare."""

import dataclasses
import sys
from types import ModuleType

import move
import pytest
from moving import barrier, barrier_idle

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
    plain = barrier_idle.without(barrier_idle.PARTS[0])
    plain(watched.handle, watched.handle.state.words[0] + 1)
    assert (watched.handle.state.words[W_LAST_STEP], stood) == (0, [])
    Handle.end_step(watched.handle, 5)
    assert (watched.handle.state.words[W_LAST_STEP], stood) == (1, [2])


def test_the_barriers_code_is_taken_out_of_three_places_and_put_back():
    before = [getattr(part.owner, part.method) for part in barrier_idle.PARTS]
    with barrier_idle.switched() as switch:
        switch(False)
        out = [getattr(part.owner, part.method) for part in barrier_idle.PARTS]
        for part, plain, whole in zip(barrier_idle.PARTS, out, before, strict=True):
            gone = set(whole.__code__.co_names) - set(plain.__code__.co_names)
            assert gone & {"W_HOLD", "hold_at_backward", "_show_count"}, part.method
            assert plain.__globals__ is whole.__globals__
    assert [getattr(part.owner, part.method) for part in barrier_idle.PARTS] == before


def test_a_statement_that_is_not_there_any_more_is_an_error():
    part = dataclasses.replace(barrier_idle.PARTS[0], begins="if nothing:")
    with pytest.raises(LookupError, match="end_step has no statement 'if nothing:'"):
        barrier_idle.without(part)


def test_medians_of_stages_are_null_for_what_a_job_has_not():
    found = barrier.Found(save_s=[1.0, 2.0, 9.0], restore_s=[4.0])
    assert found.stages_s() == {"save": 2.0, "barrier": None, "stop": None, "transfer": None, "restore": 4.0}


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(600)
def test_jobs_that_are_moved_end_as_they_would_have():
    found = barrier.run(quick=True, seed=3)
    assert found["moves"] == found["identical"] == found["moved"] == 4
    assert [job["redone"] for job in found["by_job"].values()] == [[0, 0], [0, 0]]
    assert found["by_job"]["example"]["missed"] == 0
    assert all(size > 0 for size in found["by_job"]["example"]["transfer_bytes"])
