"""Giving a running job another number of devices: by turns, by nodes, or one clear refusal."""

import asyncio

import pytest

from pulsetrain.core.errors import UsageError
from pulsetrain.protocol.messages import Held, ShareDevices, Start, Stop
from pulsetrain.recovery.move_request import MoveRequest
from pulsetrain.recovery.policy import Policy
from pulsetrain.recovery.transitions import Phase
from pulsetrain.recovery.view import job_row
from tests.recovery.fakes import FakeMemory, Fleet, run


def request(devices):
    return MoveRequest(what="resize", reason="noon", actor="ann", devices=devices)


async def resize(fleet, devices, *, dry_run=False):
    """What the hub answers. It waits for the agents, so let them."""
    asked = asyncio.ensure_future(fleet.controller.resize("j", request(devices), dry_run=dry_run))
    while not asked.done():
        await fleet.settle()
    return asked.result()


def shares(fleet, *, dry_run=False):
    """What each node was told last, and how often."""
    told = {name: [c for c in fleet.of(name, ShareDevices) if c.dry_run is dry_run] for name in ("a", "b")}
    return {name: [c.devices for c in commands] for name, commands in told.items()}


@pytest.mark.parametrize(("devices", "expected"), [(2, (1, 1)), (3, (2, 1)), (4, (2, 2))])
def test_ranks_of_each_node_take_turns_on_its_share(devices, expected):
    async def scenario():
        fleet = Fleet()
        await fleet.form()
        answer = await resize(fleet, devices)
        assert (answer["how"], answer["from_devices"]) == ("own" if devices == 4 else "turns", 4)
        assert answer["step_ratio"] == round(4 / devices, 3)
        assert shares(fleet) == {"a": [expected[0]], "b": [expected[1]]}
        assert not fleet.of("a", Stop)
        assert job_row(fleet.job)["devices"] == devices
        asked, done = (fleet.journal.last(kind) for kind in ("resize", "resized"))
        assert (asked["actor"], asked["detail"]["reason"]) == ("ann", "noon")
        assert done["detail"]["stages_ns"].keys() == {"follow"}

    run(scenario)


def test_a_dry_run_asks_the_nodes_and_changes_nothing():
    async def scenario():
        fleet = Fleet()
        await fleet.form()
        answer = await resize(fleet, 2, dry_run=True)
        assert (answer["can_do"], answer["devices"], answer["lost_steps"]) == (True, 2, 0)
        assert shares(fleet) == {"a": [], "b": []}
        assert "resize" not in fleet.journal.kinds()
        assert job_row(fleet.job)["devices"] == 4

    run(scenario)


@pytest.mark.parametrize(
    ("devices", "words"),
    [(5, "devices = 5: allowed: 2 to 4"), (1, "devices = 1: allowed: 2 or more, one for each node")],
)
def test_a_number_that_cannot_be_is_refused_with_what_is_allowed(devices, words):
    async def scenario():
        fleet = Fleet()
        await fleet.form()
        with pytest.raises(UsageError, match=words):
            await resize(fleet, devices)
        assert (await resize(fleet, devices, dry_run=True))["can_do"] is False

    run(scenario)


def test_a_node_whose_ranks_cannot_share_refuses_for_the_job():
    async def scenario():
        fleet = Fleet()
        await fleet.form()
        fleet.agents["b"].cannot_share = "rank 2 uses process groups that work on a GPU"
        with pytest.raises(UsageError, match="node b: rank 2 uses process groups"):
            await resize(fleet, 2)
        assert shares(fleet) == {"a": [], "b": []}
        assert job_row(fleet.job)["devices"] == 4

    run(scenario)


def test_where_a_node_does_not_do_its_part_all_go_back_and_the_answer_says_so():
    async def scenario():
        memory = FakeMemory()
        fleet = Fleet(memory=memory)
        await fleet.form()
        await resize(fleet, 3)
        fleet.agents["b"].cannot_follow = "no answer in 7 s"
        with pytest.raises(UsageError, match="job 'j' keeps its 3 devices: node b: no answer in 7 s"):
            await resize(fleet, 4)
        assert shares(fleet) == {"a": [2, 2, 2], "b": [1, 2, 1]}
        assert job_row(fleet.job)["devices"] == 3
        assert memory.recall("j").size.devices == 3
        assert "no answer" in fleet.journal.last("resized")["detail"]["why_not"]

    run(scenario)


def test_nodes_that_were_started_on_fewer_devices_go_back_to_those():
    async def scenario():
        fleet = Fleet(devices=1)
        await fleet.form()
        assert job_row(fleet.job)["devices"] == 2
        answer = await resize(fleet, 4, dry_run=True)
        assert (answer["from_devices"], answer["step_ratio"]) == (2, 0.5)
        fleet.agents["b"].cannot_follow = "no answer in 7 s"
        with pytest.raises(UsageError, match="job 'j' keeps its 2 devices"):
            await resize(fleet, 4)
        assert shares(fleet) == {"a": [2, 1], "b": [2, 1]}
        assert job_row(fleet.job)["devices"] == 2

    run(scenario)


def test_a_second_request_does_not_mix_with_one_that_is_under_way():
    async def scenario():
        fleet = Fleet()
        await fleet.form()
        fleet.agents["b"].mute = (ShareDevices,)
        first = asyncio.ensure_future(fleet.controller.resize("j", request(2)))
        await fleet.settle()
        with pytest.raises(UsageError, match="job 'j' is being resized already"):
            await resize(fleet, 3)
        fleet.agents["b"].mute = ()
        fleet.agents["b"].handle(fleet.of("b", ShareDevices)[-1])
        while not first.done():
            await fleet.settle()
        assert shares(fleet) == {"a": [1], "b": [1]}
        assert (await resize(fleet, 3))["from_devices"] == 2

    run(scenario)


def test_ranks_that_have_not_obeyed_yet_are_named():
    async def scenario():
        fleet = Fleet()
        await fleet.form()
        fleet.agents["a"].late = (1,)
        assert (await resize(fleet, 2))["late"] == [1]

    run(scenario)


def test_the_next_attempt_and_a_new_hub_keep_the_devices():
    async def scenario():
        memory = FakeMemory()
        fleet = Fleet(memory=memory)
        await fleet.form()
        assert fleet.of("a", Start)[-1].devices == 0
        await resize(fleet, 3)
        fleet.agents["a"].rank_exits(0, 1)
        await fleet.settle(1)
        assert [fleet.of(name, Start)[-1].devices for name in "ab"] == [2, 1]
        assert job_row(Fleet(memory=memory).job)["devices"] == 3

    run(scenario)


def replicated(fleet, step=9):
    """All ranks have saved the same state of this step."""
    for agent in fleet.agents.values():
        if agent.steps:
            agent.held = tuple(
                Held(rank=r, step=s, tier="memory", replicated=True, attempt=agent.attempt, world=6)
                for r in agent.steps
                for s in (step - 1, step)
            )
            agent.steps = dict.fromkeys(agent.steps, step)
            agent.send_heartbeat()


def test_an_elastic_job_goes_on_with_fewer_nodes_and_stays_there_until_more_are_wanted():
    async def scenario():
        fleet = Fleet("abc", nnodes=3, sizes=(1, 1), policy=Policy(grow_after_s=0.0, shrink_wait_s=3.0))
        await fleet.form()
        replicated(fleet)
        await fleet.settle(1)
        answer = await resize(fleet, 4)
        assert (answer["how"], answer["nodes"]) == ("nodes", 2)
        await wait(fleet, 8)
        assert fleet.job.phase is Phase.RUNNING
        assert [m.node for m in fleet.job.world] == ["a", "b"]
        assert fleet.journal.last("recovery")["detail"]["cause"] == "resize"
        replicated(fleet, 20)
        await wait(fleet, 20)
        assert len(fleet.job.world) == 2, "the third node stands by, as is wanted"
        await resize(fleet, 6)
        replicated(fleet, 30)
        await wait(fleet, 8)
        assert len(fleet.job.world) == 3
        assert not fleet.of("a", ShareDevices)

    run(scenario)


def test_a_hub_that_only_observes_refuses_another_number_of_nodes():
    async def scenario():
        fleet = Fleet("abc", nnodes=3, sizes=(1, 1), policy=Policy(observe_only=True))
        await fleet.form()
        replicated(fleet)
        await fleet.settle(1)
        with pytest.raises(UsageError, match="the hub only observes"):
            await resize(fleet, 4)
        assert (await resize(fleet, 5))["how"] == "turns"

    run(scenario)


async def wait(fleet, seconds):
    for _ in range(seconds):
        for agent in fleet.agents.values():
            agent.send_heartbeat()
        await fleet.settle(1)


def test_an_elastic_job_asked_for_parts_of_nodes_takes_turns():
    async def scenario():
        fleet = Fleet("ab", sizes=(1, 1))
        await fleet.form()
        answer = await resize(fleet, 3)
        assert answer["how"] == "turns"
        assert shares(fleet) == {"a": [2], "b": [1]}

    run(scenario)


def test_a_job_that_does_not_run_is_refused():
    async def scenario():
        fleet = Fleet("a")
        await fleet.settle(1)
        with pytest.raises(UsageError, match="runs no ranks yet"):
            await resize(fleet, 2)

    run(scenario)


@pytest.mark.parametrize(
    ("what", "devices", "words"),
    [("resize", 0, "devices = 0: 1 or more"), ("preempt", 3, "devices = 3: preempt takes no devices")],
)
def test_a_request_says_how_many_devices_where_it_must(what, devices, words):
    with pytest.raises(UsageError, match=words):
        MoveRequest(what=what, reason="noon", actor="ann", devices=devices)


def test_a_move_that_begins_while_nodes_are_asked_goes_first():
    async def scenario():
        fleet = Fleet()
        await fleet.form()
        asked = asyncio.ensure_future(fleet.controller.resize("j", request(2)))
        await asyncio.sleep(0)  # the nodes are asked whether they could
        later = MoveRequest(what="preempt", reason="noon", actor="ann", wait_s=60.0, lose_progress=True)
        fleet.controller.move("j", later)
        while not asked.done():
            await fleet.settle()
        with pytest.raises(UsageError, match="stopped or moved meanwhile"):
            asked.result()
        assert shares(fleet) == {"a": [], "b": []}

    run(scenario)


def test_a_node_that_was_away_is_told_again_what_its_job_has():
    async def scenario():
        fleet = Fleet()
        await fleet.form()
        b = fleet.agents["b"]
        asked = asyncio.ensure_future(fleet.controller.resize("j", request(2)))
        while not shares(fleet)["b"]:
            b.mute = (ShareDevices,) if fleet.of("b", ShareDevices) else ()  # it obeys, and cannot say so
            await asyncio.sleep(0)
        b.drop(moves=True)
        while not asked.done():
            await fleet.settle()
        with pytest.raises(UsageError, match="job 'j' keeps its 4 devices: node b: connection closed"):
            asked.result()
        assert shares(fleet) == {"a": [1, 2], "b": [1]}
        b.mute = ()
        b.reconnect(attempt=0, node_rank=1)
        await fleet.settle()
        assert shares(fleet) == {"a": [1, 2], "b": [1, 2]}

    run(scenario)


@pytest.mark.parametrize(("devices", "told"), [(3, {"a": [2], "b": [1]}), (0, {"a": [], "b": []})])
def test_a_new_hub_tells_the_nodes_of_a_resized_job(devices, told):
    async def scenario():
        memory = FakeMemory()
        fleet = Fleet(memory=memory)
        await fleet.form()
        if devices:
            await resize(fleet, devices)
        again = Fleet((), memory=memory)
        for rank, name in enumerate("ab"):
            again.agents[name] = again.join(name, attempt=0, node_rank=rank)
            again.agents[name].attempt = 0
        await again.settle(1)
        assert again.job.phase is Phase.RUNNING
        assert shares(again) == told

    run(scenario)
