"""What evicting a node would cost."""

import dataclasses

from pulsetrain.protocol.messages import Held
from pulsetrain.recovery.eviction import NO_STANDBY, preview
from pulsetrain.recovery.nodes import NodeState
from pulsetrain.recovery.own_checkpoints import JobCheckpoint
from tests.recovery.builders import heartbeat, job_snapshot, node_snapshot, status


def held(step, *ranks, tier="memory"):
    return tuple(Held(rank=r, step=step, tier=tier) for r in ranks)


A = node_snapshot(
    "a", heartbeat=heartbeat("a", status(0), status(1), held=held(4, 0, 1) + held(4, 2, 3, tier="peer"))
)
B = node_snapshot("b", heartbeat=heartbeat("b", status(2), status(3), held=held(5, 2, 3)))
Z = node_snapshot("z", state=NodeState.STANDBY, heartbeat=None)


def test_the_steps_since_the_newest_checkpoint_that_the_others_hold_are_lost():
    job = job_snapshot(nodes=(A, B, Z), history=({"total_ns": 2e9}, {"total_ns": 8e9}, {"total_ns": 3e9}))
    cost = preview(job, B)
    assert (cost["resume_step"], cost["lost_steps"], cost["standby"]) == (4, 1, "z")
    assert (cost["ranks"], cost["expected_s"], cost["why_not"]) == ([2, 3], 3.0, "")


def test_without_a_standby_the_job_would_wait():
    cost = preview(job_snapshot(nodes=(A, B)), B)
    assert (cost["standby"], cost["why_not"], cost["expected_s"]) == (None, NO_STANDBY, None)


def test_a_standby_costs_nothing():
    cost = preview(job_snapshot(nodes=(A, B, Z)), Z)
    assert (cost["lost_steps"], cost["resume_step"], cost["ranks"], cost["standby"]) == (0, 5, [], None)


def test_what_only_the_evicted_node_holds_is_gone():
    alone = A._replace(heartbeat=heartbeat("a", status(0), status(1), held=held(4, 0, 1)))
    cost = preview(job_snapshot(nodes=(alone, B, Z)), B)
    assert (cost["resume_step"], cost["lost_steps"]) == (-1, 6)


def test_a_job_without_held_checkpoints_goes_on_from_the_scripts_own():
    own = JobCheckpoint(
        attempt=0, step=3, bytes=1, files=1, path="/c/3.pt", written_ns=1, ranks=(0,), complete=True
    )
    bare = (node_snapshot("a", status(0), status(1)), node_snapshot("b", status(2), status(3)))
    cost = preview(job_snapshot(nodes=bare, own_checkpoint=own), bare[1])
    assert (cost["resume_step"], cost["lost_steps"]) == (3, 2)
    for none in (dataclasses.replace(own, complete=False), dataclasses.replace(own, ignored=True)):
        assert preview(job_snapshot(nodes=bare, own_checkpoint=none), bare[1])["resume_step"] == -1
