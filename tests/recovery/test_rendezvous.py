"""Which store the ranks of an attempt meet at."""

import asyncio
from dataclasses import replace

import pytest

from pulsetrain.core.errors import Unavailable
from pulsetrain.protocol.messages import HostStore, Reply, Start
from pulsetrain.recovery.launch import launch
from pulsetrain.recovery.rendezvous import UNREACHABLE
from pulsetrain.recovery.transitions import Event
from tests.recovery.test_actions import FakeNode, job_of

HUB_PORT, NODE_PORT = 7001, 4242


class FakeStores:
    """A hub that hosts stores, or refuses to with `error`."""

    def __init__(self, error=""):
        self.error, self.opened, self.given_up = error, [], set()

    def prepare(self):
        pass

    async def open(self, job):
        if job in self.given_up:
            return 0
        if self.error:
            raise Unavailable(self.error)
        self.opened.append(job)
        return HUB_PORT

    def give_up(self, job):
        self.given_up.add(job)


class Agent(FakeNode):
    """Starts its ranks. `far`: it does not reach the store of the hub."""

    def __init__(self, name, *, hub_address="10.0.0.5", far=False):
        super().__init__(name)
        self.hub_address, self.far = hub_address, far

    async def ask(self, command, timeout_s):
        self.commands.append(command)
        data = {"port": NODE_PORT} if isinstance(command, HostStore) else {}
        if isinstance(command, Start) and command.check_store and self.far:
            data = {UNREACHABLE: "timed out"}
        return Reply(id=command.id, node=self.name, data=data)

    @property
    def met_at(self):
        return [(c.store_address, c.store_port) for c in self.commands if isinstance(c, Start)]


def job_with(stores, *agents):
    job = job_of(*agents)
    job.services = replace(job.services, stores=stores)
    return job


def test_ranks_of_several_nodes_meet_at_the_hub_and_no_node_hosts_a_store():
    stores, agents = FakeStores(), (Agent("a"), Agent("b"))
    job = job_with(stores, *agents)
    for number in range(2):
        assert asyncio.run(launch(job)) is Event.STARTED
        assert stores.opened == [job.name] * (number + 1)
    for agent in agents:
        assert agent.met_at == [("10.0.0.5", HUB_PORT)] * 2
        assert not any(isinstance(c, HostStore) for c in agent.commands)


def test_a_node_on_the_hubs_machine_meets_the_others_where_they_reach_it():
    agents = (Agent("a", hub_address="127.0.0.1"), Agent("b"))
    asyncio.run(launch(job_with(FakeStores(), *agents)))
    assert agents[0].met_at == agents[1].met_at == [("10.0.0.5", HUB_PORT)]


def test_a_job_of_one_node_keeps_its_store_there():
    stores, agent = FakeStores(), Agent("a")
    asyncio.run(launch(job_with(stores, agent)))
    assert (stores.opened, [port for _, port in agent.met_at]) == ([], [NODE_PORT])


@pytest.mark.parametrize(
    ("stores", "hub_address"), [(FakeStores("no torch here"), "10.0.0.5"), (FakeStores(), "")]
)
def test_without_a_store_of_the_hub_the_first_node_hosts_one(stores, hub_address):
    agents = (Agent("a", hub_address=hub_address), Agent("b", hub_address=hub_address))
    assert asyncio.run(launch(job_with(stores, *agents))) is Event.STARTED
    assert isinstance(agents[0].commands[0], HostStore)
    assert agents[0].met_at == agents[1].met_at == [(agents[0].hello.address, NODE_PORT)]


def test_where_one_node_does_not_reach_the_hubs_store_the_same_attempt_meets_on_the_first_node():
    stores, near, far = FakeStores(), Agent("a"), Agent("b", far=True)
    job = job_with(stores, near, far)
    assert asyncio.run(launch(job)) is Event.STARTED
    number = job.attempt.number
    assert [port for _, port in near.met_at] == [port for _, port in far.met_at] == [HUB_PORT, NODE_PORT]
    assert {c.attempt for c in near.commands if isinstance(c, Start)} == {number}
    assert asyncio.run(launch(job)) is Event.STARTED
    assert [port for _, port in far.met_at] == [HUB_PORT, NODE_PORT, NODE_PORT]
