"""A simulated job does what the hub commands, and what the plan does to it."""

from __future__ import annotations

from dataclasses import replace

from pulsetrain.simulate.live.job import LiveJob
from tests.simulate.live.fleets import FLEET, launch, launched, run_until, start

HANG = {"kind": "hung_rank", "at_s": 3, "rank": 5}


def steps(seen):
    return [step.number for happened in seen for step in happened.steps]


def test_the_first_step_begins_once_every_node_was_launched():
    job = launched()
    assert job.node_rank("sim-00002") == 2
    assert job.ranks("sim-00002") == range(8, 12)
    assert job.plan_s(99.0) < 0
    seen = run_until(job, 99.0, 105.0)
    assert steps(seen) == [1, 2]
    assert [h.stepped for h in seen].count(True) == 1


def test_nodes_that_are_each_told_a_part_know_the_world_together():
    job = LiveJob(FLEET, ())
    for number, name in enumerate(FLEET.names[:4]):
        whole = start(node_rank=number)
        job.start(name, replace(whole, world=whole.world[number:][:2], world_nodes=4), 110.0)
    assert job.world == FLEET.names[:4]
    assert steps(run_until(job, 110.0, 114.0)) == [1]


def test_a_launch_that_misses_a_node_does_not_train():
    job = launched()
    for number, name in enumerate(FLEET.names[:3]):
        job.start(name, start(1, nodes=FLEET.names[:4], node_rank=number), 110.0)
    assert steps(run_until(job, 110.0, 120.0)) == []


def test_a_rank_hangs_once_until_the_job_is_launched_again():
    job = launched(HANG)
    assert steps(run_until(job, 100.0, 120.0)) == [1]
    assert job.hung() == {5}
    assert job.states() == {5: "stopped"}
    launch(job, 120.0, attempt=1)
    assert steps(run_until(job, 120.0, 128.0)) == [1, 2, 3]
    assert job.hung() == set()


def test_a_hang_may_end_by_itself():
    job = launched({**HANG, "for_s": 6, "stopped": False})
    assert job.states() == {}
    assert steps(run_until(job, 100.0, 112.0)) == [1, 2, 3]
    assert job.hung() == set()


def test_a_broken_node_fails_its_check_and_a_healthy_one_does_not():
    job = launched(HANG)
    run_until(job, 100.0, 105.0)
    assert job.fails_check("sim-00001")
    assert not job.fails_check("sim-00000")


def test_the_fault_stays_with_the_node_and_not_with_the_rank():
    slow = {"kind": "slow_rank", "at_s": 0, "rank": 5, "factor": 2.0}
    job = launched(slow)
    assert job.slow(101.0) == {5: 2.0}
    launch(job, 110.0, attempt=1, nodes=("sim-00000", "sim-00004", "sim-00002", "sim-00003"))
    assert job.slow(111.0) == {}


def test_a_rank_exits_once_and_holds_up_the_others():
    job = launched({"kind": "exit", "at_s": 3, "rank": 6, "code": 7})
    seen = run_until(job, 100.0, 120.0)
    exits = [exit_ for happened in seen for exit_ in happened.exits]
    assert [(e.node, e.rank, e.code) for e in exits] == [("sim-00001", 6, 7)]
    assert steps(seen) == [1]
    assert job.states() == {6: "gone"}


def test_a_silent_node_says_nothing_for_a_while_and_its_ranks_are_missing():
    job = launched({"kind": "silent_node", "at_s": 2.3, "for_s": 5, "node": "sim-00003"})
    assert steps(run_until(job, 100.0, 107.0)) == [1]
    assert job.silent("sim-00003", 104.0)
    assert not job.silent("sim-00002", 104.0)
    assert not job.silent("sim-00003", 108.1)
    assert steps(run_until(job, 107.1, 110.0)) == [2]


def test_nothing_moves_once_the_hub_ends_the_ranks():
    job = launched()
    run_until(job, 100.0, 103.0)
    job.stop("sim-00001")
    assert job.ranks("sim-00001") == range(0)
    assert steps(run_until(job, 103.0, 110.0)) == []


def test_each_node_holds_its_own_state_and_its_partners_and_a_restart_goes_on_from_there():
    job = launched()
    run_until(job, 100.0, 113.0)
    holding = job.held_by("sim-00001")
    assert (holding.own, holding.partners, holding.steps) == (range(4, 8), range(4), (4, 6))
    assert job.held_by("sim-00004") is None
    launch(job, 113.0, attempt=1, restore_step=6)
    assert job.attempt.first_step == 7
    job.forget("sim-00001")
    assert job.held_by("sim-00001") is None


def test_a_fleet_without_checkpoints_holds_none():
    job = launched(fleet=replace(FLEET, checkpoint_every=0))
    run_until(job, 100.0, 113.0)
    assert job.held_by("sim-00001") is None


def test_an_old_launch_changes_nothing():
    job = launched()
    launch(job, 110.0, attempt=2)
    job.start("sim-00000", start(1), 111.0)
    assert job.number == 2
