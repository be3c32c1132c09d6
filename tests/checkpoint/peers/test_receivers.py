"""Who is sent whose checkpoints."""

from pulsetrain.checkpoint.peers.receivers import home_of, receivers
from tests.recovery.builders import world


def test_pairs_of_nodes_hold_each_others_ranks():
    assert receivers(world(*"abcd"), 2, "mixed", copies=1, shape=(0, 0, 0)) == {"d": None}


def test_a_node_that_is_left_alone_sends_nothing():
    assert receivers(world("a"), 0, "mixed", copies=1, shape=(0, 0, 0)) == {}


def test_across_groups_each_rank_has_a_receiver_of_its_own():
    members = world(*"abcd", nproc=1)
    assert receivers(members, 0, "across", copies=1, shape=(1, 2, 2)) == {"d": frozenset({0})}
    assert home_of(members) == {0: "a", 1: "b", 2: "c", 3: "d"}
