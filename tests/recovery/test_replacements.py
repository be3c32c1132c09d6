"""Which replacements count as on their way."""

from collections import deque
from dataclasses import replace

from pulsetrain.recovery.replacements import Replacements


def test_a_node_that_joins_is_the_one_that_was_asked_for_first():
    asked = Replacements()
    asked.asked(10.0, 0)
    asked.asked(20.0, 0)
    assert asked.joined()
    assert (list(asked.pending_s), list(asked.hour_s)) == ([20.0], [10.0, 20.0])


def test_a_node_that_joins_by_itself_changes_nothing():
    asked = Replacements()
    assert not asked.joined()


def test_what_is_old_is_forgotten():
    asked = Replacements()
    asked.asked(10.0, 0)
    asked.asked(3000.0, 0)
    asked.expire(3605.0, patience_s=600.0)
    assert (list(asked.pending_s), list(asked.hour_s)) == ([], [10.0, 3000.0])
    asked.expire(3611.0, patience_s=600.0)
    assert list(asked.hour_s) == [3000.0]


def test_a_request_that_failed_does_not_count():
    asked = Replacements()
    asked.failed(asked.asked(10.0, 0), 70.0)
    assert (len(asked.pending_s), len(asked.hour_s), asked.not_before_s) == (0, 0, 70.0)


def test_a_new_hub_knows_what_is_on_its_way():
    asked = Replacements()
    asked.asked(10.0, 0)
    asked.asked(20.0, 0)
    asked.joined()
    kept = asked.kept(now_s=30.0, now_ns=int(5000e9))
    again = Replacements.recalled(kept, now_s=100.0, now_ns=int(5005e9))
    assert (list(again.pending_s), list(again.hour_s)) == ([85.0], [75.0, 85.0])


def test_a_request_that_may_have_been_taken_counts_and_is_made_again_under_its_number():
    asked = Replacements()
    number = asked.asked(10.0, int(5000e9))
    asked.unanswered(number, 70.0)
    assert (list(asked.pending_s), list(asked.hour_s)) == ([10.0], [10.0])
    assert asked.again(69.0, 1) == []
    assert asked.again(70.0, 0) == []  # its node is there by now
    assert replace(asked, pending_s=deque()).again(70.0, 0) == []  # and has joined
    assert asked.again(70.0, 1) == [number]
    assert asked.again(70.0, 1) == []  # that one is not answered yet
    asked.done(number)
    assert asked.again(200.0, 1) == []
    assert list(asked.pending_s) == [10.0]


def test_a_request_that_is_refused_in_the_end_does_not_count_and_another_one_does():
    asked = Replacements()
    first, second = asked.asked(10.0, 0), asked.asked(20.0, 0)
    asked.unanswered(first, 70.0)
    asked.done(second)
    assert asked.again(80.0, 2) == [first]
    asked.failed(first, 140.0)
    assert (list(asked.pending_s), list(asked.hour_s)) == ([20.0], [20.0])


def test_a_new_hub_asks_again_under_the_same_number_and_gives_none_twice():
    asked = Replacements()
    number = asked.asked(10.0, int(5000e9))
    kept = asked.kept(now_s=30.0, now_ns=int(5020e9))
    again = Replacements.recalled(kept, now_s=100.0, now_ns=int(5025e9))
    assert again.again(100.0, 1) == [number]
    again.failed(number, 160.0)
    assert list(again.pending_s) == []
    assert again.asked(170.0, int(4000e9)) > number
