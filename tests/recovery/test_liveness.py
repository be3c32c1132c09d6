"""When a node counts as lost, and when a job has enough nodes."""

from types import SimpleNamespace

import pytest

from pulsetrain.protocol.messages import NOT_READ, Leaving
from pulsetrain.recovery.attempt import Attempt
from pulsetrain.recovery.liveness import SPREAD_S, STORAGE_WAIT_S, gathered, is_starting, overdue
from pulsetrain.recovery.memory import WorldMemory
from pulsetrain.recovery.nodes import Node, NodeState
from pulsetrain.recovery.policy import Policy
from pulsetrain.recovery.resizing import Resizing
from pulsetrain.recovery.transitions import Event, Phase
from pulsetrain.recovery.world_sizes import WorldSizes
from tests.recovery.builders import heartbeat, hello
from tests.recovery.test_membership import formed, joined, send

POLICY = Policy(reconnect_grace_s=1.0, heartbeat_timeout_s=2.5, settle_s=0.5, adopt_timeout_s=10.0)


def lost(members, now_s):
    return {node.name: reason for node, reason in overdue(members, POLICY, now_s)}


def test_a_closed_connection_is_a_loss_after_the_grace_period():
    members = formed("a", "b")
    members.nodes["b"].disconnect(1.0)
    members.nodes["a"].heard_s = 2.0
    assert lost(members, 2.0) == {}
    assert lost(members, 2.1) == {"b": "connection closed and not back in 1 s"}


def test_a_node_that_said_why_it_ends_is_lost_with_that_reason():
    members = formed("a")
    members.nodes["a"].leaves(Leaving(node="a", reason="ended by SIGINT", signal="SIGINT"), 0.0)
    assert lost(members, SPREAD_S) == {}
    assert lost(members, SPREAD_S + 0.1) == {"a": "its agent ended: ended by SIGINT"}


def test_a_node_that_is_gone_is_not_lost_again():
    members = formed("a")
    members.nodes["a"].state = NodeState.EVICTED
    assert lost(members, 99.0) == {}


def job(members, phase=Phase.FORMING):
    return SimpleNamespace(
        members=members,
        phase=phase,
        recovery=None,
        nnodes=2,
        in_phase_s=lambda: 0.0,
        resizing=Resizing.of(WorldSizes(least=2, most=2)),
        services=SimpleNamespace(policy=POLICY),
    )


@pytest.mark.parametrize(
    ("nodes", "quiet_s", "phase", "expected"),
    [
        ("ab", 0.6, Phase.FORMING, Event.QUORUM),
        ("ab", 0.4, Phase.FORMING, None),
        ("a", 9.0, Phase.FORMING, None),
        ("ab", 0.6, Phase.WAITING, Event.QUORUM),
        ("ab", 0.6, Phase.RUNNING, None),
    ],
)
def test_a_job_begins_once_enough_nodes_have_settled(nodes, quiet_s, phase, expected):
    assert gathered(job(joined(*nodes), phase), quiet_s=quiet_s) is expected


@pytest.mark.parametrize(
    ("nodes", "quiet_s", "expected"),
    [("ab", 0.0, Event.ADOPTED), ("a", 9.9, None), ("a", 10.1, Event.ADOPTED)],
)
def test_a_running_attempt_is_adopted_when_all_reported_or_waiting_was_in_vain(nodes, quiet_s, expected):
    members = joined()
    for rank, name in enumerate(nodes):
        members.nodes[name] = Node(hello(name, attempt=3, node_rank=rank), send, 0.0)
    assert gathered(job(members), quiet_s=quiet_s) is expected


@pytest.mark.parametrize(
    ("before", "quiet_s", "expected"),
    [
        ("ab", 0.6, Event.ADOPTED),
        ("ab", 0.4, None),
        ("ac", 0.6, None),  # c has not come back yet
        ("", 0.6, None),
    ],
)
def test_a_launch_that_an_earlier_hub_began_is_not_waited_for_once_all_its_nodes_are_back(
    before, quiet_s, expected
):
    members = joined("a", "b")
    members.nodes["a"] = Node(hello("a", attempt=3, node_rank=0), send, 0.0)
    if before:
        members.before = WorldMemory(attempt=3, nodes=list(before), pids=[1, 2])
    assert gathered(job(members), quiet_s=quiet_s) is expected


def test_a_job_begins_once_storage_was_read_or_was_waited_for_long_enough():
    members = joined("a", "b")
    forming = job(members)
    members.nodes["b"].take_heartbeat(heartbeat("b", stored_attempt=NOT_READ), 0.0)
    assert gathered(forming, quiet_s=1.0) is None
    forming.in_phase_s = lambda: STORAGE_WAIT_S + 1
    assert gathered(forming, quiet_s=1.0) is Event.QUORUM
    forming.in_phase_s = lambda: 0.0
    members.nodes["b"].take_heartbeat(heartbeat("b", stored_attempt=3), 0.0)
    assert gathered(forming, quiet_s=1.0) is Event.QUORUM


def test_what_an_earlier_hub_kept_of_another_attempt_says_nothing_of_this_one():
    members = joined("a", "b")
    members.nodes["a"] = Node(hello("a", attempt=4, node_rank=0), send, 0.0)
    members.before = WorldMemory(attempt=3, nodes=["a", "b"], pids=[1, 2])
    assert gathered(job(members), quiet_s=0.6) is None


@pytest.mark.parametrize(
    ("phase", "stepped", "expected"),
    [
        (Phase.FORMING, False, True),
        (Phase.STARTING, False, True),
        (Phase.RUNNING, False, True),
        (Phase.RUNNING, True, False),
        (Phase.CHECKING, True, False),
    ],
)
def test_a_job_starts_until_its_first_step(phase, stepped, expected):
    state = job(joined("a"), phase)
    state.attempt = Attempt(number=0, first_step_done=stepped)
    assert is_starting(state) is expected
