"""In which order jobs change: none takes what another one still holds, and circles are found."""

from __future__ import annotations

import doctest

from pulsetrain.recovery.pool import order as module
from pulsetrain.recovery.pool.order import Change, fits, tied


def devices(host):
    return 2


def change(name, held, after):
    return Change(job=name, held=held, after=after)


def names(changes):
    return sorted(each.job for each in changes)


def test_examples():
    assert doctest.testmod(module).failed == 0


def test_a_job_that_only_gives_always_fits():
    assert fits(change("j", {"x": 2}, {"x": 1}), {"x": 3}, devices)


def test_a_job_that_takes_fits_beside_what_others_use():
    assert fits(change("j", {"x": 1}, {"x": 1, "y": 1}), {"x": 2, "y": 1}, devices)
    assert not fits(change("j", {"x": 1}, {"x": 2}), {"x": 2}, devices)


def test_a_circle_is_found_and_who_only_waits_for_it_is_not_in_it():
    circle = [change("a", {"x": 2}, {"y": 2}), change("b", {"y": 2}, {"x": 1})]
    waits = change("c", {"z": 1}, {"z": 1, "x": 1})
    assert names(tied([*circle, waits], {"x": 2, "y": 2, "z": 1}, devices)) == ["a", "b"]


def test_jobs_that_wait_for_ranks_that_end_are_not_in_a_circle():
    moves = [change("a", {"x": 2}, {"y": 2}), change("b", {}, {"x": 2})]
    assert tied(moves, {"x": 2, "y": 1}, devices) == []
