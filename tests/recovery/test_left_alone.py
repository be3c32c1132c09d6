"""What becomes of a job that fails under a hub that only observes."""

import pytest

from pulsetrain.protocol.messages import Leave
from pulsetrain.recovery.left_alone import LOST_S, NAMED_S
from pulsetrain.recovery.policy import Policy
from pulsetrain.recovery.transitions import Phase
from tests.recovery.fakes import Fleet, run


def observed():
    return Fleet("ab", policy=Policy(observe_only=True))


def fail(fleet, *ranks):
    for rank in ranks:
        fleet.agents["ab"[rank // 2]].rank_exits(rank, 7 if rank == ranks[0] else 1)


def test_a_failure_is_told_and_ranks_that_still_run_are_left_alone():
    async def scenario():
        fleet = observed()
        await fleet.form()
        fail(fleet, 3, 0, 1)
        for _ in range(3):
            await fleet.settle(NAMED_S)
            for agent in fleet.agents.values():
                agent.send_heartbeat()
        assert fleet.job.phase is Phase.RUNNING
        assert fleet.job.left_alone.reason == "rank 3 on b ended with exit code 7"
        assert not fleet.of("a", Leave)

    run(scenario)


def test_a_job_of_which_no_rank_is_left_is_over_and_its_agents_leave_with_the_code_of_the_first():
    async def scenario():
        fleet = observed()
        await fleet.form()
        fail(fleet, 3, 0, 1, 2)
        await fleet.settle()
        await fleet.settle(NAMED_S - 1)
        assert fleet.job.phase is Phase.RUNNING  # so that the cause is named
        await fleet.settle(1)
        assert fleet.job.phase is Phase.FAILED
        assert fleet.job.failure.startswith("rank 3 on b ended with exit code 7; no rank is left")
        assert [fleet.agents[name].left.exit_code for name in "ab"] == [7, 7]

    run(scenario)


@pytest.mark.parametrize(("code", "phase"), [(1, Phase.FAILED), (0, Phase.RUNNING)])
def test_ranks_of_a_lost_node_are_not_waited_for_where_another_one_has_failed(code, phase):
    async def scenario():
        fleet = observed()
        await fleet.form()
        fleet.agents["b"].drop()
        fleet.agents["a"].rank_exits(0, code)
        fleet.agents["a"].rank_exits(1, code)
        await fleet.settle(1.1)
        await fleet.settle(NAMED_S)
        await fleet.settle()
        assert fleet.job.phase is Phase.RUNNING  # ranks of the lost node may run, and come back
        await fleet.settle(LOST_S)
        await fleet.settle()
        assert fleet.job.phase is phase

    run(scenario)


def test_a_lost_node_that_comes_back_is_no_failure_any_more():
    async def scenario():
        fleet = observed()
        await fleet.form()
        fleet.agents["b"].drop()
        await fleet.settle(1.1)
        assert fleet.job.left_alone.node == "b"
        fleet.agents["b"].reconnect(attempt=0, node_rank=1)
        assert fleet.job.left_alone is None

    run(scenario)


def test_a_failure_that_an_agent_tells_again_on_a_new_connection_is_told_once():
    async def scenario():
        fleet = observed()
        await fleet.form()
        agent = fleet.agents["b"]
        agent.rank_exits(3, 1)
        for _ in range(3):
            agent.drop(moves=True)
            agent.reconnect(attempt=0, node_rank=1)
            agent.rank_exits(3, 1)
            await fleet.settle(0.25)
        assert [fleet.journal.kinds().count(kind) for kind in ("rank_exit", "would")] == [1, 1]
        agent.rank_exits(2, 1)
        assert fleet.journal.kinds().count("rank_exit") == 2

    run(scenario)
