"""The nodes of a job and the world they form."""

from contextlib import nullcontext

import pytest

from pulsetrain.core.errors import UsageError
from pulsetrain.protocol.messages import Held, Leaving
from pulsetrain.recovery.membership import Membership, Promotion
from pulsetrain.recovery.memory import WorldMemory
from pulsetrain.recovery.nodes import Node, NodeState
from pulsetrain.recovery.world_sizes import WorldSizes
from tests.recovery.builders import heartbeat, hello, status


async def send(text):
    """Nobody listens."""


def joined(*names, standby=(), **hello_changes):
    members = Membership()
    for name in names:
        members.nodes[name] = Node(hello(name, standby=name in standby, **hello_changes), send, 0.0)
    return members


def fixed(size):
    return WorldSizes(least=size, most=size)


def formed(*names, count=2, **hello_changes):
    members = joined(*names, **hello_changes)
    members.fill_world(count, fixed(count))
    return members


def test_forming_a_world_makes_its_nodes_active_and_promotes_nobody():
    members = joined("b", "a", "z")
    assert members.fill_world(2, fixed(2)) == []
    assert [m.node for m in members.world] == ["a", "b"]
    assert {n.name: str(n.state) for n in members.nodes.values()} == {
        "a": "active", "b": "active", "z": "standby",
    }  # fmt: skip


def test_a_standby_replaces_a_lost_node_at_its_rank():
    members = formed("a", "b", "z")
    members.nodes["a"].state = NodeState.LOST
    assert members.fill_world(2, fixed(2)) == [Promotion(node="z", node_rank=0, replaces="a")]
    assert [m.node for m in members.world] == ["z", "b"]


def test_a_standby_that_ends_replaces_nobody():
    """As in a drain of several nodes: its launch would fail, and stop the job once more."""
    members = formed("a", "b", "y", "z")
    members.nodes["y"].leaves(Leaving(node="y", reason="ended by SIGTERM", signal="SIGTERM"), 0.0)
    members.nodes["a"].state = NodeState.LOST
    assert members.available(forming=False) == 2
    assert members.fill_world(2, fixed(2)) == [Promotion(node="z", node_rank=0, replaces="a")]


@pytest.mark.parametrize(
    ("changes", "refused"), [({}, True), ({"standby": True}, True), ({"attempt": 0}, False)]
)
def test_a_node_with_another_number_of_ranks_is_refused_unless_it_runs_some_already(changes, refused):
    members = joined("a")
    with pytest.raises(UsageError, match="'b' has 7 ranks, its job 'j' has 2") if refused else nullcontext():
        members.check_ranks(hello("b", nproc_per_node=7, **changes))
    members.check_ranks(hello("b"))
    members.check_ranks(hello("a", nproc_per_node=7))  # nobody else is there
    members.nodes["a"].state = NodeState.LOST
    members.check_ranks(hello("b", nproc_per_node=7))


def test_so_it_is_where_the_other_nodes_of_the_world_are_gone_and_nobody_else_is_refused():
    members = formed("a", count=1)
    members.nodes["a"].state = NodeState.LOST
    for name in "ab":
        with pytest.raises(UsageError, match=r"has 4 ranks, its job 'j' has 2 a node.*=2"):
            members.check_ranks(hello(name, nproc_per_node=4))
        members.check_ranks(hello(name))


def test_a_standby_with_another_number_of_ranks_takes_nobodys_place():
    members = formed("a", "b")
    members.nodes["y"] = Node(hello("y", nproc_per_node=7), send, 0.0)
    members.nodes["z"] = Node(hello("z"), send, 0.0)
    members.nodes["b"].state = NodeState.LOST
    assert [p.node for p in members.fill_world(2, fixed(2))] == ["z"]


def test_a_declared_standby_helps_a_running_job_but_not_to_form_one():
    members = joined("a", "b", standby=("b",))
    assert not members.enough(2, forming=True)
    assert members.enough(2, forming=False)


def test_a_declared_standby_that_had_replaced_a_node_helps_to_form_the_world_again():
    members = joined("a", "b", "z", standby=("b", "z"))
    members.before = WorldMemory(attempt=3, nodes=["a", "b"], pids=[ord("a"), ord("b")])
    assert members.available(forming=True) == 2


def test_nodes_that_failed_the_check_do_not_count():
    members = formed("a", "b")
    members.failed["b"] = "self-check"
    assert not members.enough(2, forming=False)


def test_a_disconnected_node_cannot_be_given_commands_but_still_reports():
    members = formed("a", "b")
    members.nodes["b"].take_heartbeat(heartbeat("b", status(2), status(3)), 0.0)
    members.nodes["b"].disconnect(1.0)
    assert [n.name for n in members.active()] == ["a"]
    assert [s.rank for s in members.statuses(0)] == [2, 3]
    assert members.statuses(1) == []


def test_silence_counts_the_age_of_the_report_too():
    members = formed("a", "b")
    members.nodes["a"].take_heartbeat(heartbeat("a", status(0, progress_age_ns=10**9), status(1)), 10.0)
    members.nodes["b"].take_heartbeat(heartbeat("b", status(2), status(3)), 8.0)
    assert members.silence_ns(0, 0, 10.5) == 1_500_000_000
    assert members.silence_ns(-1, 0, 10.5) == 2_500_000_000
    assert members.silence_ns(0, 1, 10.5) == 0


def test_what_unreachable_nodes_hold_cannot_be_restored():
    members = formed("a", "b")
    item = Held(rank=0, step=1, tier="memory")
    for node in members.nodes.values():
        node.take_heartbeat(heartbeat(node.name, held=(item,)), 0.0)
    members.nodes["b"].disconnect(1.0)
    assert members.held() == {"a": (item,)}


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        ({"a": "SIGINT", "b": "SIGINT"}, "SIGINT"),
        ({"a": "SIGINT"}, ""),
        ({"a": "SIGINT", "b": ""}, ""),
        ({"z": "SIGINT"}, ""),
        ({}, ""),
    ],
)
def test_a_job_is_ended_by_a_signal_when_all_nodes_of_its_world_are(signals, expected):
    members = formed("a", "b", "z")
    for name, signal in signals.items():
        members.nodes[name].leaves(Leaving(node=name, reason="r", signal=signal), 0.0)
    assert members.leaving_by() == expected
    assert members.any_leaving() == bool(signals.keys() & {"a", "b"})


def test_lost_nodes_do_not_keep_a_job_from_being_ended():
    members = formed("a", "b")
    members.nodes["b"].state = NodeState.LOST
    members.nodes["a"].leaves(Leaving(node="a", reason="r", signal="SIGTERM"), 0.0)
    assert members.leaving_by() == "SIGTERM"
    members.nodes["a"].state = NodeState.LOST
    assert members.leaving_by() == ""


def test_adoption_takes_the_newest_attempt_and_leaves_a_gap_for_who_did_not_report():
    members = joined("a")
    members.nodes["a"] = Node(hello("a", attempt=5, node_rank=0), send, 0.0)
    members.nodes["c"] = Node(hello("c", attempt=4, node_rank=1), send, 0.0)
    assert members.adopt(2) == 5
    assert [m.node for m in members.world] == ["a", "unknown-1"]
    assert members.world_size == 4


def test_a_world_is_refreshed_with_the_latest_addresses():
    members = formed("a", "b")
    members.nodes["a"].reconnect(hello("a", address="10.0.0.9", peer_port=7), send, 1.0)
    members.refresh_world()
    assert [(m.address, m.peer_port) for m in members.world] == [("10.0.0.9", 7), ("127.0.0.1", 1)]


def test_one_field_of_every_rank_of_an_attempt_is_that_of_its_statuses():
    members = formed("a", "b")
    members.nodes["a"].take_heartbeat(heartbeat("a", status(0, last_step=4), status(1, last_step=6)), 1.0)
    members.nodes["b"].take_heartbeat(heartbeat("b", status(2, last_step=9), attempt=1), 1.0)
    for attempt in (0, 1, 2):
        assert members.values(attempt, "last_step") == [s.last_step for s in members.statuses(attempt)]
    assert members.values(0, "last_step") == [4, 6]
