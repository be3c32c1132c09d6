"""Links that several nodes of one switch have lost."""

from pulsetrain.recovery.shared_links import shared
from tests.recovery.fakes import Observed

SWITCH_OF = {"a": "s0", "b": "s0", "c": "s1", "d": "", "e": ""}


def flap(node, response="evict_at_step"):
    return Observed(kind="link_flap", subject=f"{node}/eth0", details={"node": node, "response": response})


def test_two_nodes_of_a_switch_share_their_trouble_and_one_has_its_own():
    assert set(shared([flap("a"), flap("b", "inform"), flap("c")], SWITCH_OF)) == {"a", "b"}
    assert shared([flap("a"), flap("a"), flap("c")], SWITCH_OF) == {}


def test_a_switch_that_starts_anew_excuses_all_its_nodes():
    nodes = [f"n{i}" for i in range(8)]
    switch_of = dict.fromkeys(nodes, "s0")
    excused = shared(map(flap, nodes), switch_of)
    assert set(excused) == set(nodes)
    assert shared(map(flap, nodes[:2]), switch_of).items() <= excused.items()  # so it is told once


def test_nodes_without_a_known_switch_share_nothing():
    assert shared([flap("d"), flap("e"), flap("gone")], SWITCH_OF) == {}


def test_a_switch_that_is_suspected_excuses_its_nodes():
    fault = Observed(kind="switch_fault", subject="switch s1", details={"nodes": ["c"]})
    assert set(shared([fault, flap("c")], SWITCH_OF)) == {"c"}
