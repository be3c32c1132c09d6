"""Who has the promise of a share: as far as the pool reaches, and the machines that each job can use."""

from __future__ import annotations

import doctest

import pytest

from pulsetrain.recovery.pool import promises as module
from pulsetrain.recovery.pool.decide import decide
from pulsetrain.recovery.pool.demand import Prices
from pulsetrain.recovery.pool.promises import promises
from tests.recovery.pool.jobs import EAGER, carry_out, job, rows


def test_examples():
    assert doctest.testmod(module).failed == 0


def test_a_reserve_is_promised_to_nobody():
    wanting = [job("p", "premium", 9), job("q", "premium", 1, order=1), job("r", "standard", 1, order=2)]
    assert promises({"n": 10}, wanting, Prices(reserve_ratio=0.1)) == {"p"}
    assert promises({"n": 10}, wanting, Prices(reserve_ratio=0.0)) == {"p", "q"}


POOL = {"x": 4, "y": 4}


def on(machines, name, blocks, order, tier="premium"):
    return job(name, tier, blocks, nodes=dict.fromkeys(machines, 4), order=order)


def test_no_promise_counts_devices_that_a_job_cannot_use():
    wide = on("x", "p", 5, 0)
    assert promises(POOL, [wide, on("xy", "q", 5, 1)], EAGER) == {"q"}
    decision = decide(POOL, [wide], EAGER)
    assert decision.waiting == {"p": "it needs 5 devices, the machines that it can use have 4"}


def test_nobody_waits_for_the_share_of_a_job_whose_machines_do_not_have_it():
    elastic = job("p", "premium", 6, least=1, nodes={"x": 4}, placed={"x": 4})
    small = job("b", "basic", 4, least=1, nodes={"y": 4}, placed={"y": 2}, order=2)
    _, decision = carry_out(POOL, [elastic, small])
    assert decision.promised == {"p"}
    assert rows(decision) == [("grow", "b", {"y": 4})]


def test_agents_that_come_later_do_not_make_promises_more_than_the_pool():
    few = job("p", "premium", 8, least=1, nodes={"x": 4})
    assert promises(POOL, [few, on("y", "q", 4, 1)], EAGER) == {"p"}


@pytest.mark.parametrize(
    ("jobs", "promised"),
    [
        ([on("x", "p", 3, 0), on("x", "q", 3, 1)], {"p"}),
        ([on("x", "p", 3, 0), on("y", "q", 3, 1)], {"p", "q"}),
        ([on("xy", "p", 5, 0), on("x", "q", 4, 1)], {"p"}),
        ([on("xy", "p", 4, 0), on("x", "q", 4, 1)], {"p", "q"}),
    ],
)
def test_promises_fit_beside_each_other_on_the_machines_of_their_jobs(jobs, promised):
    assert promises(POOL, jobs, EAGER) == promised


def test_who_waits_for_a_promise_keeps_the_next_ones_from_its_own_machines_only():
    waits = [on("x", "p", 3, 0), on("x", "q", 3, 1), on("x", "r", 1, 2), on("y", "s", 1, 3)]
    assert promises(POOL, waits, EAGER) == {"p", "s"}


def test_a_promise_that_was_given_is_kept_where_machines_are_gone():
    kept = job("p", "premium", 4, nodes={"x": 4}, promised=True)
    assert promises({"y": 4}, [kept], EAGER) == {"p"}
