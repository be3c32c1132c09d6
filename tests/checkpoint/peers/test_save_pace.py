"""Arenas are looked at seldom while no save can be there, and often when one may."""

import pytest

from pulsetrain.checkpoint.peers.save_pace import QUIET_POLL_S, QUIET_S, SavePace

POLL_S = 0.025


def after_rounds(*times_s, ranks=(0, 1)):
    """Every rank has saved at each of these times."""
    pace = SavePace(POLL_S)
    for now_s in times_s:
        pace.saved(ranks, ranks, now_s)
    return pace


def test_without_a_save_the_arenas_are_looked_at_seldom():
    assert SavePace(POLL_S).wait_s(5.0) == QUIET_POLL_S
    assert after_rounds(1.0).wait_s(1.1 + QUIET_S) == QUIET_POLL_S


def test_when_ranks_start_the_arenas_are_looked_at_often_whatever_was_known_of_earlier_ones():
    pace = after_rounds(0.0, 1.0, 2.0, 3.0, 4.0)
    assert pace.wait_s(4.0) == QUIET_POLL_S
    pace.begun(4.1)
    assert pace.wait_s(4.1) == POLL_S
    assert pace.wait_s(4.2 + QUIET_S) == QUIET_POLL_S


def test_before_the_time_between_saves_is_known_they_are_looked_at_often():
    assert after_rounds(0.0, 1.0, 2.0).wait_s(2.1) == POLL_S


def test_after_a_round_nothing_is_expected_for_most_of_the_shortest_time_between_saves():
    pace = after_rounds(0.0, 1.0, 1.4, 2.4, 3.4)
    assert pace.wait_s(3.4) == QUIET_POLL_S
    assert pace.wait_s(3.6) == pytest.approx(0.08)
    assert pace.wait_s(3.7) == POLL_S


def test_a_round_is_not_over_before_every_rank_has_saved():
    pace = after_rounds(0.0, 1.0, 2.0, 3.0)
    pace.saved([1], [0, 1], 4.0)
    assert pace.wait_s(4.0) == POLL_S
    pace.saved([0], [0, 1], 4.1)
    assert pace.wait_s(4.1) == QUIET_POLL_S


def test_where_training_waits_for_replicas_every_save_is_looked_for():
    pace = SavePace(POLL_S, eager=True)
    for now_s in (0.0, 1.0, 2.0, 3.0):
        pace.saved([0], [0], now_s)
    assert pace.wait_s(3.0) == POLL_S


def test_saves_a_long_time_apart_are_still_looked_for_four_times_a_second():
    assert after_rounds(0.0, 8.0, 16.0, 24.0).wait_s(24.0) == QUIET_POLL_S


def test_quick_saves_are_never_waited_for_longer_than_asked():
    assert after_rounds(0.0, 0.01, 0.02, 0.03).wait_s(0.03) == POLL_S
