"""A job as a frozen value."""

import dataclasses

import pytest

from pulsetrain.protocol.messages import Held
from pulsetrain.recovery.nodes import NodeState
from tests.recovery.builders import heartbeat, job_snapshot, node_snapshot, status
from tests.recovery.fakes import Fleet, run


def test_a_snapshot_does_not_change_when_the_job_does():
    async def scenario():
        fleet = Fleet("ab")
        await fleet.form()
        before = fleet.job
        fleet.agents["b"].rank_exits(3, -9)
        fleet.agents["a"].drop()
        await fleet.settle(0.2)
        assert (before.attempt, before.exits, len(before.active())) == (0, (), 2)
        with pytest.raises(dataclasses.FrozenInstanceError):
            before.attempt = 3

    run(scenario)


def test_a_node_between_a_closed_connection_and_its_loss_is_unsettled():
    async def scenario():
        fleet = Fleet("ab")
        await fleet.form()
        fleet.agents["b"].drop()
        assert fleet.node("b").unsettled
        await fleet.settle(0.9)
        await fleet.settle(0.2)
        assert not fleet.node("b").unsettled
        assert fleet.job.lost_nodes() == ("b",)

    run(scenario)


def test_ages_are_those_of_the_moment():
    async def scenario():
        fleet = Fleet("ab")
        await fleet.form()
        fleet.agents["a"].send_heartbeat()
        fleet.clock.now_s += 2
        assert (fleet.node("a").heartbeat_age_s, fleet.node("a").heard_age_s) == (2, 2)
        assert fleet.job.silent_s == 2

    run(scenario)


def test_reports_of_another_attempt_do_not_count():
    old = node_snapshot("a", heartbeat=heartbeat("a", status(0, last_step=99), attempt=3))
    job = job_snapshot(nodes=(old, node_snapshot("b", status(2, last_step=7))))
    assert ([s.rank for s in job.statuses()], job.last_step) == ([2], 7)


def test_a_job_without_reports_has_no_step_and_no_silence():
    job = job_snapshot(nodes=(node_snapshot("a", heartbeat=None),))
    assert (job.last_step, job.silent_s, job.world_size) == (-1, 0.0, 4)


def test_nodes_are_told_apart_by_what_they_are_to_the_job():
    nodes = (
        node_snapshot("a"),
        node_snapshot("b", state=NodeState.LOST, connected=False),
        node_snapshot("z", state=NodeState.STANDBY),
    )
    job = job_snapshot(nodes=nodes)
    assert [n.name for n in job.active()] == ["a"]
    assert [n.name for n in job.standbys()] == ["z"]
    assert job.lost_nodes() == ("b",)
    assert [job.node_of(rank) for rank in (0, 3, 4)] == ["a", "b", ""]


def test_held_leaves_out_a_node_and_those_that_cannot_be_reached():
    item = (Held(rank=0, step=1, tier="memory"),)
    nodes = [
        node_snapshot(name, heartbeat=heartbeat(name, held=item), connected=name != "c") for name in "abc"
    ]
    assert job_snapshot(nodes=tuple(nodes)).held(without="b") == {"a": item}
