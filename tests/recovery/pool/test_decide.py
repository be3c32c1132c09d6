"""Who gets which devices of a pool: what each tier is owed, and the laws that hold for any pool."""

from __future__ import annotations

import doctest
import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings

from pulsetrain.recovery.pool import decide as module
from pulsetrain.recovery.pool.decide import decide
from pulsetrain.recovery.pool.demand import Tier
from tests.recovery.pool.jobs import EAGER, carry_out, histories, job, rows


def test_examples():
    assert doctest.testmod(module).failed == 0


def test_a_premium_job_takes_the_devices_of_a_basic_one():
    basic = job("b", "basic", 2, placed={"n": 2})
    jobs, decision = carry_out({"n": 2}, [basic, job("p", "premium", 1, order=1)])
    assert rows(decision) == [("preempt", "b", {}), ("start", "p", {"n": 1})]
    assert decision.actions[0].reason == "premium job p needs devices"
    assert decision.promised == {"p"}
    assert carry_out({"n": 2}, jobs)[1].actions == ()


def test_an_elastic_basic_job_shrinks_instead_of_stopping():
    basic = job("b", "basic", 4, least=1, placed={"n": 4})
    _, decision = carry_out({"n": 4}, [basic, job("p", "premium", 2, order=1)])
    assert rows(decision) == [("shrink", "b", {"n": 2}), ("start", "p", {"n": 2})]


def test_a_job_leaves_a_failing_machine_only_for_one_that_is_free():
    ill = job("b", "basic", 2, placed={"x": 1, "y": 1}, failing=frozenset("x"))
    _, decision = carry_out({"x": 1, "y": 1, "z": 1}, [ill])
    assert rows(decision) == [("migrate", "b", {"y": 1, "z": 1})]
    assert decision.actions[0].reason == "x is failing"
    other = job("c", "basic", 1, placed={"z": 1})
    assert carry_out({"x": 1, "y": 1, "z": 1}, [ill, other])[1].actions == ()
    assert carry_out({"x": 2, "y": 1}, [ill])[1].actions == ()


def test_a_job_that_a_stop_may_cost_all_its_steps_leaves_no_failing_machine_by_that():
    ill = job("b", "basic", 1, placed={"x": 1}, failing=frozenset("x"))
    assert rows(carry_out({"x": 1, "y": 1}, [ill])[1]) == [("migrate", "b", {"y": 1})]
    assert rows(carry_out({"x": 1, "y": 1}, [replace(ill, may_lose_all=True)])[1]) == []


def optional(slots, jobs):
    return {action.job: action.optional for action in carry_out(slots, jobs)[1].actions}


def test_a_change_is_optional_where_no_promise_needs_it():
    small = job("s", "basic", 2, least=1, placed={"x": 1}, still_s=1e9)
    assert optional({"x": 2}, [small]) == {"s": True}  # it grows
    assert optional({"x": 1, "y": 1}, [replace(small, most=1, failing=frozenset("x"))]) == {"s": True}
    two = [job(name, "basic", 1, placed={node: 1}, still_s=1e9) for name, node in ("ax", "by")]
    room = {"x": 2, "y": 2}
    assert optional(room, [*two, job("w", "basic", 1, unit=2, order=9)]) == {"a": True, "w": False}
    assert optional(room, [*two, job("p", "premium", 1, unit=2, order=9)]) == {"a": False, "p": False}


def test_nobody_grows_or_starts_on_a_failing_machine():
    """Also not the job that has just left it."""
    ill = job("b", "basic", 3, least=2, placed={"x": 1, "y": 1}, failing=frozenset("x"), still_s=1e9)
    _, decision = carry_out({"x": 1, "y": 1, "z": 1}, [ill])
    assert rows(decision) == [("migrate", "b", {"y": 1, "z": 1})]
    assert carry_out({"x": 2, "y": 1}, [ill, job("c", "basic", 1, order=1)])[1].actions == ()


def test_a_pre_empted_job_goes_on_when_devices_are_free_again():
    basic = job("b", "basic", 2, still_s=5.0)
    _, decision = carry_out({"n": 2}, [basic])
    assert rows(decision) == [("start", "b", {"n": 2})]
    assert decision.actions[0].price_device_s == 2 * EAGER.pause_s


def test_a_standard_job_gives_what_is_above_its_floor_and_no_more():
    standard = job("s", "standard", 8, least=1, placed={"n": 8}, promised=True)
    _, decision = carry_out({"n": 8}, [standard, job("p", "premium", 2, order=1)])
    assert rows(decision) == [("shrink", "s", {"n": 6}), ("start", "p", {"n": 2})]
    _, decision = carry_out({"n": 8}, [standard, job("p", "premium", 3, order=1)])
    assert decision.actions == ()
    assert decision.waiting == {"p": "the pool's promises to others leave too little for it"}


def test_a_standard_job_that_has_no_time_to_lose_is_left_alone():
    standard = job("s", "standard", 8, least=1, placed={"n": 8}, promised=True, may_lose_s=10.0)
    _, decision = carry_out({"n": 8}, [standard, job("p", "premium", 2, order=1)])
    assert decision.actions == ()


def test_a_job_grows_only_once_it_was_left_alone_for_a_while():
    small = job("s", "standard", 4, least=1, placed={"n": 3}, promised=True, still_s=60.0)
    assert carry_out({"n": 4}, [small])[1].actions == ()
    small = replace(small, still_s=600.0)
    assert rows(carry_out({"n": 4}, [small])[1]) == [("grow", "s", {"n": 4})]


def test_a_job_does_not_grow_where_the_pause_costs_more_than_it_gains():
    large = job("s", "basic", 100, least=1, placed={"n": 99})
    assert carry_out({"n": 100}, [large])[1].actions == ()


def test_a_premium_job_gets_other_devices_for_those_that_failed():
    premium = job("p", "premium", 2, unit=4, placed={"a": 1, "b": 1}, promised=True)
    basic = job("z", "basic", 1, unit=4, placed={"c": 1}, order=1)
    _, decision = carry_out({"a": 4, "c": 4}, [premium, basic])
    assert rows(decision) == [("preempt", "z", {}), ("migrate", "p", {"a": 1, "c": 1})]
    assert decision.actions[1].reason == "its devices failed"


def test_when_devices_fail_the_newest_standard_job_waits_and_premium_does_not():
    jobs = [
        job("p", "premium", 2, placed={"a": 2}, promised=True, order=2),
        job("s", "standard", 2, placed={"b": 2}, promised=True, order=0),
        job("t", "standard", 2, placed={"c": 2}, promised=True, order=1),
    ]
    jobs, decision = carry_out({"b": 2, "c": 2}, jobs)
    assert {j.name: sum(j.placed.values()) for j in jobs} == {"p": 0, "s": 2, "t": 2}
    assert decision.promised == {"p", "s", "t"}


def test_a_job_goes_on_with_the_allowed_size_that_is_left():
    jobs = [job("j", "premium", 4, least=1, step=2, placed={"a": 1, "b": 3}, promised=True)]
    assert rows(decide({"b": 3}, jobs, EAGER)) == [("shrink", "j", {"b": 2})]


def test_a_job_that_the_pool_can_never_hold_lets_others_pass():
    wanting = [job("p", "premium", 11), job("q", "premium", 1, order=1)]
    decision = decide({"n": 10}, wanting, EAGER)
    assert decision.promised == {"q"}
    assert decision.waiting == {"p": "it needs 11 devices, the pool has 10"}


def test_a_job_runs_only_on_the_nodes_that_it_can_run_on():
    bound = job("b", "basic", 2, nodes={"y": 2})
    assert rows(decide({"x": 2, "y": 2}, [bound], EAGER)) == [("start", "b", {"y": 2})]
    assert decide({"x": 2}, [bound], EAGER).actions == ()
    few = replace(bound, nodes={"x": 1, "y": 1})
    assert rows(decide({"x": 2, "y": 2}, [few], EAGER)) == [("start", "b", {"x": 1, "y": 1})]


def test_a_busy_job_is_left_alone():
    basic = job("b", "basic", 2, placed={"n": 2}, busy=True)
    assert decide({"n": 2}, [basic, job("p", "premium", 1)], EAGER).actions == ()


def test_a_node_with_more_in_use_than_it_has_loses_the_lowest_rank():
    jobs = [job("b", "basic", 1, placed={"n": 1}), job("p", "premium", 1, placed={"n": 1}, promised=True)]
    assert rows(decide({"n": 1}, jobs, EAGER)) == [("preempt", "b", {})]


def test_a_busy_job_of_lower_rank_is_waited_for_before_a_premium_one_stops():
    premium = job("p", "premium", 1, placed={"n": 1}, promised=True)
    busy = job("b", "basic", 1, placed={"n": 1}, busy=True, order=1)
    assert decide({"n": 1}, [busy, premium], EAGER).actions == ()
    standard = job("s", "standard", 1, placed={"n": 1}, promised=True, order=2)
    assert rows(decide({"n": 1}, [busy, premium, standard], EAGER)) == [("preempt", "s", {})]
    assert rows(decide({"n": 1}, [replace(busy, busy=False), premium], EAGER)) == [("preempt", "b", {})]


def test_a_job_that_is_stopped_for_one_machine_frees_the_others_too():
    low = job("b", "basic", 2, placed={"m": 1, "n": 1}, order=1)
    other = job("s", "standard", 1, placed={"n": 1}, promised=True)
    assert rows(decide({"m": 0, "n": 1}, [low, other], EAGER)) == [("preempt", "b", {})]


def in_use(jobs):
    used = Counter()
    for each in jobs:
        for node, blocks in each.placed.items():
            used[node] += blocks * each.unit
    return used


def check(slots, before, jobs, decision):
    """The laws of one decision."""
    used = in_use(jobs)
    assert all(devices <= slots.get(node, 0) for node, devices in used.items())
    assert all(each.size == 0 or each.fit(each.size) == each.size for each in jobs)
    was = {each.name: each for each in before}
    for action in decision.actions:
        other = was[action.job]
        kept = sum(blocks for node, blocks in action.before.items() if node in slots)
        less = sum(action.after.values()) < other.fit(kept)
        if less and other.name in decision.promised:
            assert other.tier is Tier.STANDARD
            assert sum(action.after.values()) >= other.floor(EAGER.margin) or kept != other.size
    short = [j for j in jobs if j.name in decision.promised and j.size < j.floor(EAGER.margin)]
    grew = [a for a in decision.actions if a.what == "grow" and a.reason == "devices are free"]
    assert not (short and grew)


@settings(max_examples=300, deadline=None)
@given(histories())
def test_laws(history):
    """Never more than there is, promises kept, nothing done twice, and the same answer in any order."""
    slots, all_jobs, cuts, failures = history
    jobs = []
    for until, failed in zip([*cuts, len(all_jobs)], [*failures, None, None, None], strict=False):
        jobs += [j for j in all_jobs[:until] if j.name not in {k.name for k in jobs}]
        for _ in range(2):
            before = jobs
            jobs, decision = carry_out(slots, before)
            check(slots, before, jobs, decision)
            shuffled = random.Random(0).sample(before, len(before))
            assert decide(dict(reversed(slots.items())), shuffled, EAGER) == decision
        assert decision.actions == (), "the second decision must find nothing to do"
        if failed is not None:
            slots = {node: devices for node, devices in slots.items() if node != failed}


@settings(max_examples=200, deadline=None)
@given(histories())
def test_no_basic_job_runs_on_what_a_promised_job_could_use_alone(history):
    """A promised job below its floor could not be served even if all basic jobs stopped."""
    slots, jobs, _, _ = history
    jobs, decision = carry_out(slots, jobs)
    for each in jobs:
        missing = each.floor(EAGER.margin) - each.size
        if each.name in decision.promised and missing > 0:
            free = Counter(slots)
            free.subtract(in_use([j for j in jobs if j.tier is not Tier.BASIC]))
            assert sum(max(0, devices) // each.unit for devices in free.values()) < missing


def test_price_is_the_pause_of_the_devices_that_are_kept():
    basic = job("b", "basic", 4, least=1, unit=2, placed={"n": 4})
    [shrink, start] = carry_out({"n": 8}, [basic, job("p", "premium", 4, order=1)])[1].actions
    assert shrink.row() == {
        "what": "shrink", "job": "b", "from": {"n": 4}, "to": {"n": 2},
        "reason": "premium job p needs devices", "price_device_s": pytest.approx(4 * 30.0),
    }  # fmt: skip
    assert start.price_device_s == 0
