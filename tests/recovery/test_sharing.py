"""What one job of a pool says of itself, and how it takes up what it is given."""

from __future__ import annotations

from pulsetrain.protocol.messages import Stop
from pulsetrain.recovery.pool.config import PoolConfig
from pulsetrain.recovery.transitions import Phase
from tests.recovery.fakes import Fleet, run

POOL = PoolConfig(devices_per_machine=8)


class Held(Fleet):
    """A job of two nodes that waits for the pool. Each node is a machine."""

    def __init__(self, nodes="abc"):
        super().__init__(nodes, pool=POOL)

    @property
    def share(self):
        return self.controller.jobs["j"].sharing


def test_a_held_job_holds_nothing_and_wants_its_nodes():
    async def scenario():
        fleet = Held()
        await fleet.settle(1.0)
        demand = fleet.share.demand(3)
        assert (fleet.job.phase, dict(demand.placed), demand.busy) == (Phase.PREEMPTED, {}, False)
        assert (demand.unit, demand.least, demand.most, demand.order) == (2, 2, 2, 3)
        assert demand.nodes == {"a": 1, "b": 1, "c": 1}
        assert fleet.share.wanted

    run(scenario)


def test_a_job_is_not_wanted_before_enough_of_its_agents_are_there():
    async def scenario():
        fleet = Held("a")
        await fleet.settle(1.0)
        assert not fleet.share.wanted

    run(scenario)


def test_it_starts_on_the_nodes_that_it_is_given_and_changes_over_to_others():
    async def scenario():
        fleet = Held()
        await fleet.settle(1.0)
        fleet.share.give({"a": 1, "c": 1}, "a test", 5.0)
        await fleet.settle(1.0)
        assert [m.node for m in fleet.job.world] == ["a", "c"]
        assert fleet.share.holds() == {"a": 1, "c": 1}
        for name in "ac":
            fleet.agents[name].complete(5, peer_of=range(4))
        fleet.share.give({"a": 1, "b": 1}, "a test", 0.0)
        assert fleet.share.holds() == {"a": 1, "b": 1, "c": 1}
        assert not fleet.share.settled
        for _ in range(3):
            await fleet.settle(1.0)
            for agent in fleet.agents.values():
                agent.send_heartbeat()
        assert [m.node for m in fleet.job.world] == ["a", "b"]
        assert (fleet.job.phase, fleet.share.holds()) == (Phase.RUNNING, {"a": 1, "b": 1})
        assert len(fleet.of("c", Stop)) == 1
        assert fleet.agents["c"].left is None
        assert fleet.journal.last("recovery")["detail"]["cause"] == "share"

    run(scenario)


def test_a_job_that_trains_alone_holds_what_it_runs_on():
    async def scenario():
        fleet = Fleet("ab")
        await fleet.form()
        assert fleet.controller.jobs["j"].sharing.holds() == {"a": 1, "b": 1}
        assert fleet.controller.jobs["j"].sharing.speed() == 1.0

    run(scenario)
