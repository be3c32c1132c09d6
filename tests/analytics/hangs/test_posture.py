"""What several readings of one rank's stack say together."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.analytics.hangs.posture import Postures, StackSample, begin

S = 10**9


def sample(at_s, *frames, rank=0, gil="", **fields):
    frames = frames or ("main (train.py:9)", "wait (a.py:3)")
    return StackSample(rank=rank, at_ns=at_s * S, frames=frames, gil=gil, **fields)


def posture(*samples):
    result = begin(samples[0])
    for one in samples[1:]:
        result = result.then(one)
    return result


def test_a_rank_in_one_place_stands_since_the_first_reading():
    result = posture(sample(1), sample(2), sample(5))
    assert (result.same_ns, result.samples) == (4 * S, 3)


def test_a_rank_that_goes_to_another_line_of_a_caller_moved():
    result = posture(sample(1), sample(2, "main (train.py:10)", "wait (a.py:3)"), sample(5))
    assert (result.same_ns, result.samples) == (0, 1)


def test_the_lines_of_the_innermost_function_are_kept_and_are_one_place():
    turns = [sample(t, "main (train.py:9)", f"spin (a.py:{3 + t % 2})") for t in range(6)]
    result = posture(*turns)
    assert result.same_ns == 5 * S
    assert result.leaves == {"spin (a.py:3)", "spin (a.py:4)"}


def test_a_held_gil_counts_while_one_thread_holds_it_in_one_place():
    held = [sample(t, gil="Thread-N", gil_frames=("read (b.py:1)",)) for t in range(4)]
    assert (posture(*held).gil_held_ns, posture(*held).gil_samples) == (3 * S, 4)
    free = posture(*held, sample(4))
    assert (free.gil_held_ns, free.gil_samples) == (0, 0)
    moved = posture(*held, replace(held[0], at_ns=4 * S, gil_frames=("parse (b.py:7)",)))
    assert (moved.gil_held_ns, moved.gil_samples) == (0, 1)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=12))
def test_a_rank_never_stands_longer_than_it_was_read(places):
    samples = [sample(t, f"f (a.py:{p})", "g (b.py:1)") for t, p in enumerate(places)]
    result = posture(*samples)
    assert 0 <= result.same_ns <= (len(places) - 1) * S
    assert result.samples <= len(places)


def test_ranks_are_kept_apart_and_forgotten_together():
    postures = Postures()
    for one in (sample(1), sample(1, rank=3), sample(2)):
        postures.note(one)
    assert {r: p.samples for r, p in postures.by_rank.items()} == {0: 2, 3: 1}
    postures.forget()
    assert postures.by_rank == {}
