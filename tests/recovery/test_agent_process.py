"""Which processes of agents are one, and what follows in containers, where every agent has the pid 1."""

import pytest

from pulsetrain.protocol.messages import Leave
from pulsetrain.recovery.agent_process import AgentProcess
from pulsetrain.recovery.memory import NodeMemory, WorldMemory
from pulsetrain.recovery.nodes import NodeState
from pulsetrain.recovery.policy import Policy
from pulsetrain.recovery.transitions import Phase
from tests.recovery.fakes import FakeMemory, Fleet, run
from tests.recovery.test_standby_care import pass_time, trouble


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ((1, "x"), (1, "x"), True),
        ((1, "x"), (1, "y"), False),
        ((1, ""), (1, "y"), True),  # an older hub has kept no id
        ((1, "x"), (2, ""), False),
        ((7, ""), (7, ""), True),
        ((7, ""), (8, ""), False),
    ],
)
def test_ids_tell_processes_apart_and_pids_where_there_are_none(one, other, same):
    assert AgentProcess(*one).is_same(AgentProcess(*other)) is same
    assert AgentProcess(*other).is_same(AgentProcess(*one)) is same


def test_what_an_older_hub_has_kept_has_no_ids():
    before = WorldMemory(attempt=3, nodes=["a", "b"], pids=[7, 8])
    assert dict(before.agents()) == {"a": (7, ""), "b": (8, "")}
    assert NodeMemory(pid=7).agent.is_same(AgentProcess(7, "x"))


class Containers(Fleet):
    """Agents of the pid 1. The id of the first one on node `a` is "a1"."""

    def start(self, node, again=1, **more):
        self.agents[node] = self.join(node, pid=1, agent_id=f"{node}{again}", **more)
        return self.agents[node]


async def containers(nodes="abz", **more):
    fleet = Containers("", **more)
    for node in nodes:
        fleet.start(node)
    await fleet.settle()
    await fleet.settle(0.6)
    assert fleet.job.phase is Phase.RUNNING
    fleet.agents["a"].complete(4, peer_of=(2, 3))
    return fleet


async def evicted(fleet):
    """The controller evicts b, and its container ends."""
    fleet.controller.jobs["j"].observe((), [trouble("b", "evict_now")])
    await fleet.settle()
    await fleet.settle()
    assert fleet.node("b").state is NodeState.EVICTED
    fleet.controller.jobs["j"].observe((), ())
    fleet.agents["b"].drop(moves=True)


def test_a_new_container_on_a_node_that_a_person_evicted_is_a_standby():
    async def scenario():
        fleet = await containers()
        await fleet.controller.evict("b", "fan failed", "ada")
        await fleet.settle()
        fleet.agents["b"].drop(moves=True)
        fleet.start("b", again=2)
        await pass_time(fleet, 20)
        assert (fleet.node("b").state, fleet.node("b").cordon) == (NodeState.STANDBY, "")
        assert fleet.of("b", Leave) == []
        assert fleet.journal.kinds().count("evict") == 1

    run(scenario)


def test_a_new_container_on_a_node_that_the_controller_evicted_serves_a_probation():
    async def scenario():
        fleet = await containers(policy=Policy(probation_s=300))
        await evicted(fleet)
        fleet.start("b", again=2)
        await pass_time(fleet, 100)
        assert fleet.node("b").state is NodeState.STANDBY
        assert fleet.node("b").cordon == "probation: it was evicted for b/GPU-1 is lost"
        assert (fleet.of("b", Leave), fleet.journal.kinds().count("evict")) == ([], 1)

    run(scenario)


@pytest.mark.parametrize(("again", "leaves"), [(1, 1), (2, 0)], ids=["the same process", "a new one"])
def test_a_new_hub_sends_away_the_process_that_was_evicted_and_no_other(again, leaves):
    async def scenario():
        memory = FakeMemory()
        await evicted(await containers(memory=memory))
        fleet = Containers("", memory=memory)
        for rank, node in enumerate("az"):
            fleet.start(node, attempt=1, node_rank=rank)
        await fleet.settle(0.6)
        assert fleet.job.phase is Phase.RUNNING
        fleet.start("b", again=again)
        await fleet.settle()
        assert len(fleet.of("b", Leave)) == leaves

    run(scenario)


@pytest.mark.parametrize(("again", "lost"), [(1, False), (2, True)], ids=["the same process", "a new one"])
def test_a_container_that_was_started_anew_at_once_does_not_pass_for_a_new_connection(again, lost):
    async def scenario():
        fleet = await containers()
        fleet.agents["b"].drop(moves=True)
        fleet.start("b", again=again)
        await fleet.settle()
        assert ("node_lost" in fleet.journal.kinds()) is lost
        assert ("node_reconnected" in fleet.journal.kinds()) is not lost
        if lost:
            assert fleet.journal.last("node_lost")["detail"]["reason"] == "its agent was started anew"

    run(scenario)


@pytest.mark.parametrize(("again", "same"), [(1, True), (2, False)], ids=["same", "another"])
def test_a_new_hub_tells_the_run_it_knows_from_another_one_of_that_name(again, same):
    async def scenario():
        memory = FakeMemory()
        await containers("ab", memory=memory)
        fleet = Containers("", memory=memory)
        for node in "ab":
            fleet.start(node, again=again)
        assert fleet.controller.jobs["j"]._state.members.survived() is same

    run(scenario)
