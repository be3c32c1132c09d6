"""Where ranks stand: they train together, and one that is held up stops all of them in the right place."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsetrain.simulate.live.training import BACKWARD, NORM, PHASES, REDUCE, Attempt
from tests.simulate.live.fleets import FLEET

SPEC = FLEET.spec()
ALL = np.arange(FLEET.ranks)


def attempt():
    return Attempt(SPEC, first_step=1, begins_s=100.0)


def advance(to_s, slow=None, held=(), of=None):
    a = of or attempt()
    done = []
    for now_s in np.arange(100.0, to_s + 1e-9, 0.1):
        done += a.advance(float(now_s), slow or {}, held)
    return a, done


def test_steps_follow_each_other_and_take_as_long_as_asked_for():
    _, done = advance(109.9)
    assert [step.number for step in done] == [1, 2, 3, 4]
    assert [s.ends_s for s in done[:-1]] == [s.begins_s for s in done[1:]]
    assert done[-1].ends_s == pytest.approx(108.0, abs=0.5)


def test_the_same_seed_is_the_same_fleet_and_another_is_not():
    ours, again = (advance(105.0)[0].positions(105.0, ALL) for _ in range(2))
    assert np.array_equal(ours.since_s, again.since_s)
    other = Attempt(FLEET.spec().__class__(**{**vars(SPEC), "seed": 7}), first_step=1, begins_s=100.0)
    advance(105.0, of=other)
    assert not np.array_equal(other.positions(105.0, ALL).since_s, ours.since_s)


@settings(max_examples=20)
@given(st.floats(100.0, 110.0), st.floats(0.0, 3.0))
def test_progress_never_goes_back(first_s, later_s):
    a, _ = advance(first_s)
    before = a.positions(first_s, ALL)
    advance(first_s + later_s, of=a)
    after = a.positions(first_s + later_s, ALL)
    assert (after.done >= before.done).all()
    assert (after.since_s <= first_s + later_s).all()


def test_a_slow_rank_makes_the_step_of_all_longer():
    _, usual = advance(120.0)
    _, slow = advance(120.0, slow={5: 2.0})
    assert slow[2].times.length > 1.4 * usual[2].times.length
    own = slow[2].times.backward_own.reshape(FLEET.ranks)
    assert own.argmax() == 5


@pytest.mark.parametrize("held", [0, 5, 15])
def test_a_held_ranks_peers_wait_in_their_all_reduce_and_all_others_in_that_of_all_ranks(held):
    a, done = advance(110.0, held=[held])
    assert done == []
    phase = a.positions(110.0, ALL).phase
    peers = set(SPEC.dp_peers(held)) - {held}
    assert phase[held] == BACKWARD
    assert {int(phase[rank]) for rank in peers} == {REDUCE}
    assert {int(phase[r]) for r in ALL if r != held and r not in peers} == {NORM}


def test_a_rank_that_has_joined_the_all_reduce_holds_up_the_next_step():
    a = attempt()
    joined_s = 100.0 + a.step.bounds[3, REDUCE - 1] + 1e-6
    assert a.advance(joined_s, {}, ()) == []
    assert a.advance(joined_s, {}, [3]) == []
    assert [step.number for step in a.advance(110.0, {}, [3])] == [1]
    assert a.step.number == 2
    assert a.advance(120.0, {}, [3]) == []


def test_when_nobody_is_held_any_more_the_step_is_completed_soon():
    a, _ = advance(120.0, held=[3])
    done = []
    for now_s in np.arange(120.0, 121.5, 0.1):
        done += a.advance(float(now_s), {}, ())
    assert [step.number for step in done] == [1]
    assert 120.0 < done[0].ends_s < 121.5


def test_every_phase_is_passed_in_order():
    a = attempt()
    seen = []
    for now_s in np.arange(100.0, 102.3, 0.002):
        a.advance(float(now_s), {}, ())
        seen.append(int(a.positions(float(now_s), np.array([15])).done[0]))
    assert seen == sorted(seen)
    assert set(range(len(PHASES) - 1)) <= set(seen)
