"""Whose arithmetic is suspected, and for how long."""

from pulsetrain.recovery.arithmetic_checks import ArithmeticReport
from pulsetrain.recovery.arithmetic_suspicion import ArithmeticSuspicions

KEY, OTHER = (0, "rank", "3"), (1, "rank", "3")


def test_a_suspicion_is_new_once_and_again_in_another_attempt():
    doubts = ArithmeticSuspicions()
    assert doubts.suspect(KEY, ["b"], "the loss is not finite")
    assert not doubts.suspect(KEY, ["b"], "the loss is not finite")
    doubts.checked(ArithmeticReport(right=["b"]), 5)
    assert not doubts.suspect(KEY, ["b"], "again")
    assert (doubts.reasons(), doubts.nodes()) == ([], set())
    assert doubts.suspect(OTHER, ["b"], "again")


def test_nodes_are_those_that_are_named_or_all():
    doubts = ArithmeticSuspicions()
    doubts.suspect(KEY, ["b"], "x")
    doubts.suspect(OTHER, ["c"], "y")
    assert doubts.nodes() == {"b", "c"}
    doubts.suspect((2, "job", "j"), [], "z")
    assert doubts.nodes() == set()


def test_a_node_is_wrong_until_it_was_right():
    doubts = ArithmeticSuspicions()
    doubts.checked(ArithmeticReport(wrong={"b": "1 element"}), 5)
    doubts.checked(ArithmeticReport(right=["a"]), 6)
    assert (doubts.wrong["b"].reason, doubts.wrong["b"].at_ns) == ("1 element", 5)
    doubts.checked(ArithmeticReport(right=["b"]), 7)
    assert doubts.wrong == {}
