"""What a job asks of the cluster's scheduler. Against fake agents and a fake scheduler."""

from dataclasses import replace

import pytest

from pulsetrain.recovery.move_request import MoveRequest
from pulsetrain.recovery.nodes import NodeState
from pulsetrain.recovery.policy import Policy
from pulsetrain.recovery.scheduler import NodeRequest, SchedulerConfig, SchedulerRequests, Unanswered
from pulsetrain.recovery.transitions import Phase
from pulsetrain.recovery.world_sizes import WorldSizes
from tests.recovery.fakes import FakeScheduler, Fleet, at_once, run
from tests.recovery.test_responses import trouble
from tests.recovery.test_standby_care import pass_time

TEMPLATE = "spare.sbatch"


async def fleet_under(scheduler, nodes="abz", policy=None, **config):
    """A fleet of two that trains, under a scheduler. What is beyond the two stands by."""
    config = SchedulerConfig(kind="slurm", **({"template": TEMPLATE} | config))
    fleet = Fleet(nodes, policy=policy, scheduler=SchedulerRequests(scheduler, config, at_once))
    await fleet.form()
    for name in "ab":
        fleet.agents[name].complete(9, peer_of=(0, 1, 2, 3))
    return fleet


def of(scheduler, what):
    return [request[1:] for request in scheduler.asked if request[0] == what]


def replaced(scheduler):
    """The requests for nodes, without their numbers."""
    return [replace(request, number=0) for (request,) in of(scheduler, "replace")]


def test_a_node_that_is_evicted_for_its_machine_is_drained_with_the_reason():
    async def scenario():
        scheduler = FakeScheduler()
        fleet = await fleet_under(scheduler)
        fleet.controller.jobs["j"].observe((), [trouble("b", "evict_now")])
        await fleet.settle()
        assert fleet.node("b").state is NodeState.EVICTED
        assert scheduler.asked == [("drain", "b", "b/GPU-1 is lost", "j")]
        event = fleet.journal.last("drained")
        assert (event["node"], event["detail"]["scheduler"]) == ("b", "Fake")

    run(scenario)


def test_an_eviction_by_a_person_drains_only_if_asked():
    async def scenario():
        scheduler = FakeScheduler()
        fleet = await fleet_under(scheduler, "abyz")
        await fleet.controller.evict("z", "fan", "eve")
        await fleet.controller.evict("b", "fan", "eve")
        await fleet.settle()
        assert (fleet.node("b").state, scheduler.asked) == (NodeState.EVICTED, [])
        await fleet.controller.evict("y", "fan", "eve", drain=True)
        await fleet.settle()
        assert scheduler.asked[0] == ("drain", "y", "evicted by eve: fan", "j")

    run(scenario)


def test_a_standby_that_a_person_evicts_is_drained_if_asked():
    async def scenario():
        scheduler = FakeScheduler()
        fleet = await fleet_under(scheduler)
        await fleet.controller.evict("z", "fan", "eve", drain=True)
        await fleet.settle()
        assert scheduler.asked == [("drain", "z", "fan", "j")]

    run(scenario)


def test_a_migration_drains_nothing():
    async def scenario():
        scheduler = FakeScheduler()
        fleet = await fleet_under(scheduler)
        request = MoveRequest(what="migrate", reason="cable", actor="eve", node="b", wait_s=0.0)
        fleet.controller.move("j", request)
        await fleet.settle(1.0)
        assert fleet.node("b").state is NodeState.EVICTED
        assert scheduler.asked == []

    run(scenario)


def test_a_scheduler_that_refuses_stops_no_recovery_and_is_told_of_and_counted():
    async def scenario():
        scheduler = FakeScheduler(error="scontrol: access denied")
        fleet = await fleet_under(scheduler)
        fleet.controller.jobs["j"].observe((), [trouble("b", "evict_now")])
        await fleet.settle()
        assert fleet.job.phase is Phase.RUNNING
        detail = fleet.journal.last("scheduler_failed")["detail"]
        assert (detail["what"], detail["error"]) == ("drain", "scontrol: access denied")

    run(scenario)


def test_nobody_is_asked_for_in_place_of_nodes_that_were_only_cut_off():
    async def scenario():
        scheduler = FakeScheduler()
        fleet = await fleet_under(scheduler, "ab")
        for name in "ab":
            fleet.agents[name].drop(moves=True)
        while fleet.job.phase is not Phase.WAITING:
            await fleet.settle(0.5)
        await fleet.settle(9.0)
        fleet.agents["a"].reconnect(attempt=0, node_rank=0)
        for _ in range(8):
            await fleet.settle(1.0)
            fleet.agents["a"].send_heartbeat()
        assert scheduler.asked == []
        for _ in range(4):
            await fleet.settle(1.0)
            fleet.agents["a"].send_heartbeat()
        assert len(of(scheduler, "replace")) == 1

    run(scenario)


def test_a_job_without_a_standby_asks_for_one_node_and_never_for_the_evicted_one():
    async def scenario():
        scheduler = FakeScheduler()
        fleet = await fleet_under(scheduler, "ab")
        await fleet.controller.evict("b", "fan", "eve")
        await fleet.settle()
        assert fleet.job.phase is Phase.WAITING
        await pass_time(fleet, 60)
        assert replaced(scheduler) == [NodeRequest(job="j", nnodes=2, least=2, exclude=("b",))]
        fleet.agents["c"] = fleet.join("c")
        await pass_time(fleet, 10, 1.0)
        assert fleet.job.phase is Phase.RUNNING
        assert len(scheduler.asked) == 1

    run(scenario)


def test_a_job_whose_node_is_lost_asks_for_another():
    async def scenario():
        scheduler = FakeScheduler()
        fleet = await fleet_under(scheduler, "ab")
        fleet.agents.pop("b").drop()
        await pass_time(fleet, 5, 1.0)
        assert replaced(scheduler) == [NodeRequest(job="j", nnodes=2, least=2)]

    run(scenario)


def test_standbys_that_were_used_up_are_asked_for_after_the_recovery():
    async def scenario():
        scheduler = FakeScheduler()
        fleet = await fleet_under(scheduler, standbys=1)
        await pass_time(fleet, 5, 1.0)
        assert scheduler.asked == []
        await fleet.controller.evict("b", "fan", "eve")
        await pass_time(fleet, 5, 1.0)
        assert fleet.job.phase is Phase.RUNNING
        assert len(of(scheduler, "replace")) == 1

    run(scenario)


def test_nobody_is_asked_for_in_place_of_a_node_whose_work_is_done():
    """Others still write their results. The node was in a recovery before, so standbys are wanted, too."""

    async def scenario():
        scheduler = FakeScheduler()
        fleet = await fleet_under(scheduler)
        await fleet.controller.evict("b", "fan", "eve")
        await pass_time(fleet, 5, 1.0)
        assert (fleet.job.phase, [m.node for m in fleet.job.world]) == (Phase.RUNNING, ["a", "z"])
        scheduler.asked.clear()
        done = fleet.agents.pop("a")
        for rank in (0, 1):
            done.rank_exits(rank, 0)
        await fleet.settle(1)
        done.drop()
        await pass_time(fleet, 5, 1.0)
        assert fleet.job.phase is Phase.RUNNING
        assert not replaced(scheduler)

    run(scenario)


def test_without_a_template_nobody_is_asked_for_nodes():
    async def scenario():
        scheduler = FakeScheduler()
        fleet = await fleet_under(scheduler, "ab", template="")
        await fleet.controller.evict("b", "fan", "eve", drain=True)
        await pass_time(fleet, 5, 1.0)
        assert [request[0] for request in scheduler.asked] == ["drain"]

    run(scenario)


def test_a_replacement_that_could_not_be_submitted_is_asked_for_again_a_while_later():
    async def scenario():
        scheduler = FakeScheduler(error="sbatch: no such partition")
        fleet = await fleet_under(scheduler, "ab", retry_s=60)
        await fleet.controller.evict("b", "fan", "eve")
        await pass_time(fleet, 50)
        assert len(scheduler.asked) == 1
        scheduler.error = ""
        await pass_time(fleet, 60)
        assert len(scheduler.asked) == 2

    run(scenario)


def test_a_replacement_that_may_have_been_submitted_is_asked_for_under_its_number_and_none_beside_it():
    async def scenario():
        scheduler = FakeScheduler(error=Unanswered("sbatch: no answer in 20 s"))
        fleet = await fleet_under(scheduler, "ab", retry_s=60)
        await fleet.controller.evict("b", "fan", "eve")
        await pass_time(fleet, 250)
        scheduler.error = ""
        await pass_time(fleet, 200)
        (first, *others) = (request for (request,) in of(scheduler, "replace"))
        assert 3 <= len(others) <= 5
        assert (first.again, {request.again for request in others}) == (False, {True})
        assert {request.number for request in others} == {first.number}
        assert fleet.journal.kinds().count("replacement_requested") == 1

    run(scenario)


def test_replacements_that_never_join_are_asked_for_again_within_the_hours_limit():
    async def scenario():
        scheduler = FakeScheduler()
        fleet = await fleet_under(scheduler, "ab", patience_s=100, replacements_per_hour=2)
        await fleet.controller.evict("b", "fan", "eve")
        await pass_time(fleet, 500)
        assert len(scheduler.asked) == 2
        assert fleet.journal.kinds().count("replacement_refused") == 1
        assert fleet.journal.last("replacement_refused")["detail"]["why_not"] == (
            "2 replacements an hour are used up"
        )

    run(scenario)


def test_an_observing_hub_says_what_it_would_ask_for():
    async def scenario():
        scheduler = FakeScheduler()
        fleet = await fleet_under(scheduler, "ab", policy=Policy(observe_only=True))
        fleet.controller.jobs["j"].observe((), [trouble("b", "evict_now")])
        await fleet.settle()
        told = fleet.journal.last("would")["detail"]["scheduler"]
        assert told == "drain b in Fake; submit a replacement to Fake"
        fleet.agents.pop("b").drop()
        await pass_time(fleet, 5, 1.0)
        assert fleet.journal.last("would")["detail"]["scheduler"] == ["submit a replacement to Fake"]
        assert scheduler.asked == []

    run(scenario)


def test_a_dry_run_says_what_would_be_asked_for():
    async def scenario():
        scheduler = FakeScheduler()
        fleet = await fleet_under(scheduler)
        plan = fleet.controller.preview_eviction("b", drain=True)
        assert plan["scheduler"] == ["drain b in Fake"]
        assert fleet.controller.preview_eviction("b")["scheduler"] == []
        await fleet.controller.evict("z", "fan", "eve")
        await fleet.settle()
        assert fleet.controller.preview_eviction("b")["scheduler"] == ["submit a replacement to Fake"]
        assert scheduler.asked == []

    run(scenario)


def test_without_a_scheduler_nothing_is_asked_or_said():
    async def scenario():
        fleet = Fleet("abz")
        await fleet.form()
        assert fleet.controller.preview_eviction("b", drain=True)["scheduler"] == []
        await fleet.controller.evict("b", "fan", "eve", drain=True)
        await fleet.settle()
        assert not {"drained", "scheduler_failed", "replacement_requested"} & set(fleet.journal.kinds())

    run(scenario)


async def fleet_with_b_on_probation(scheduler):
    """Node b was evicted for its machine, which is well again and has come back."""
    fleet = await fleet_under(scheduler, policy=Policy(probation_s=60))
    fleet.controller.jobs["j"].observe((), [trouble("b", "evict_now")])
    await fleet.settle()
    fleet.controller.jobs["j"].observe((), [])
    fleet.agents.pop("b").drop()
    fleet.agents["b"] = fleet.join("b", pid=4242)
    return fleet


def test_a_machine_that_served_its_probation_is_given_back():
    async def scenario():
        scheduler = FakeScheduler()
        fleet = await fleet_with_b_on_probation(scheduler)
        await pass_time(fleet, 30)
        assert of(scheduler, "give_back") == []
        await pass_time(fleet, 120)
        assert fleet.node("b").cordon == ""
        assert of(scheduler, "give_back") == [("b",)]

    run(scenario)


@pytest.mark.parametrize("by", ["hardware", "check"])
def test_trouble_in_its_probation_does_not_keep_a_machine_from_being_given_back(by):
    async def scenario():
        scheduler = FakeScheduler()
        fleet = await fleet_with_b_on_probation(scheduler)
        fleet.agents["b"].sick = by == "check"
        await pass_time(fleet, 40)
        found = [trouble("b", "cordon", attempt=1)] if by == "hardware" else []
        fleet.controller.jobs["j"].observe((), found)
        fleet.controller.jobs["j"].observe((), [])
        fleet.agents["b"].sick = False
        await pass_time(fleet, 20)
        assert of(scheduler, "give_back") == []
        await pass_time(fleet, 120)
        assert fleet.node("b").cordon == ""
        assert of(scheduler, "give_back") == [("b",)]

    run(scenario)


def test_nodes_that_a_person_gave_up_are_not_asked_for():
    async def scenario():
        scheduler = FakeScheduler()
        fleet = await fleet_under(scheduler, "ab")
        state = fleet.controller.jobs["j"]._state
        state.resizing.sizes = WorldSizes(least=1, most=2)
        state.resizing.cap, state.resizing.size = 1, 1
        await fleet.controller.evict("b", "fan", "eve")
        await pass_time(fleet, 5, 1.0)
        assert fleet.job.phase is Phase.RUNNING
        assert of(scheduler, "replace") == []

    run(scenario)


def test_no_node_is_asked_for_where_all_agents_are_gone():
    """They may have ended with the job while the hub could hear nobody."""

    async def scenario():
        scheduler = FakeScheduler()
        fleet = await fleet_under(scheduler, "ab")
        for name in "ab":
            fleet.agents[name].drop()
        while fleet.job.phase is not Phase.WAITING:
            await fleet.settle(0.5)
        for _ in range(20):
            await fleet.settle(10.0)
        assert scheduler.asked == []

    run(scenario)
