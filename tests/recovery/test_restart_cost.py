"""What stopping a job costs, from its own past."""

import pytest

from pulsetrain.protocol.messages import Held
from pulsetrain.recovery import restart_cost
from pulsetrain.recovery.restart_cost import UNKNOWN, of_restart, of_stop, price
from tests.recovery.builders import heartbeat, job_snapshot, node_snapshot, status

PAST = ({"total_ns": 2e9}, {"total_ns": 20e9}, {"total_ns": 10e9})


def test_a_stop_costs_the_usual_recovery_and_the_steps_that_are_done_again():
    job = job_snapshot(history=PAST, step_s=2.0)
    assert of_stop(job, lost_steps=4) == {
        "stop_s": 18.0, "lost_gpu_s": 18.0 * 4, "ettr_1h_change": pytest.approx(-18 / 3600)
    }  # fmt: skip


def test_nobody_knows_the_price_of_the_first_stop():
    assert of_stop(job_snapshot(step_s=2.0), lost_steps=4) == UNKNOWN


def test_more_lost_steps_never_cost_less_and_nothing_costs_more_than_the_hour():
    job = job_snapshot(history=PAST, step_s=100.0)
    costs = [of_stop(job, lost_steps=steps) for steps in (0, 1, 10, 1000)]
    assert costs == sorted(costs, key=lambda cost: cost["lost_gpu_s"])
    assert costs[-1]["ettr_1h_change"] == -1.0
    assert price(0.0, 8)["lost_gpu_s"] == 0.0


def test_what_only_the_node_at_fault_holds_is_lost_with_it():
    def held(step, *ranks):
        return tuple(Held(rank=r, step=step, tier="memory") for r in ranks)

    nodes = (
        node_snapshot("a", heartbeat=heartbeat("a", status(0), status(1), held=held(4, 0, 1))),
        node_snapshot("b", heartbeat=heartbeat("b", status(2), status(3), held=held(4, 2, 3))),
    )
    job = job_snapshot(nodes=nodes, history=PAST, step_s=1.0)
    assert restart_cost.resume_step(job) == 4
    assert of_restart(job)["stop_s"] == 10.0 + 1
    assert restart_cost.resume_step(job, without="b") == -1
    assert of_restart(job, without="b")["stop_s"] == 10.0 + 6
