"""All jobs of a hub: adoption, the clock, evictions by hand."""

import asyncio
import threading

import pytest

from pulsetrain.core.errors import Unavailable, UsageError
from pulsetrain.protocol.messages import FirstStep, HoldRanks, Leave, SaveFrom, Stop
from pulsetrain.recovery.job import Job
from pulsetrain.recovery.past_attempts import PastAttempts
from pulsetrain.recovery.seen import Seen
from pulsetrain.recovery.transitions import Phase
from tests.recovery.builders import hello, rank_exit
from tests.recovery.fakes import Fleet, run


def test_a_look_that_takes_long_comes_less_often_and_is_not_late_for_that(monkeypatch):
    lates, costs = [], [0.01, 0.5, 0.5, 0.01]

    async def scenario():
        fleet = Fleet("ab")

        def tick(job, *, late):
            lates.append(late)
            fleet.clock.now_s += costs.pop(0)

        monkeypatch.setattr(Job, "tick", tick)
        for pause_s in (0.25, 2.0, 2.0):
            assert await fleet.controller.turn() == pytest.approx(pause_s)
            fleet.clock.now_s += pause_s
        fleet.clock.now_s += 1.1
        await fleet.controller.turn()

    run(scenario)
    assert lates == [False, False, False, True]


def test_a_late_tick_accuses_nobody():
    async def scenario():
        fleet = Fleet("ab")
        await fleet.form()
        await fleet.settle(30)
        assert "node_lost" not in fleet.journal.kinds()

    run(scenario)


def test_a_silence_while_the_hub_stood_still_is_not_taken_for_one_that_nodes_survive():
    async def scenario():
        fleet = Fleet("ab")
        await fleet.form()
        a, b = fleet.agents["a"], fleet.agents["b"]
        fleet.clock.now_s += 30.0
        a.send_heartbeat()  # read before the tick that is late, and the other one after it
        fleet.controller.tick()
        fleet.clock.now_s += 0.2
        b.send_heartbeat()
        assert max(a.node.longest_silence_s, b.node.longest_silence_s) < 1.0
        for _ in range(20):
            fleet.clock.now_s += 0.25
            fleet.controller.tick()
        b.send_heartbeat()
        assert b.node.longest_silence_s == pytest.approx(5.0)

    run(scenario)


def test_after_a_stand_still_of_the_hub_nodes_have_time_for_their_next_heartbeat():
    """As after a suspend of the machine: nothing waits in the sockets."""

    async def scenario():
        fleet = Fleet("abz")
        await fleet.form()
        for _ in range(3):
            fleet.clock.now_s += 20.0
            fleet.controller.tick()
            for _ in range(4):
                fleet.clock.now_s += 0.25
                fleet.controller.tick()
            for agent in fleet.agents.values():
                agent.send_heartbeat()
        assert "node_lost" not in fleet.journal.kinds()
        for _ in range(13):
            fleet.clock.now_s += 0.25
            fleet.controller.tick()
            fleet.agents["a"].send_heartbeat()
            fleet.agents["b"].send_heartbeat()
        assert fleet.journal.last("node_lost")["node"] == "z"

    run(scenario)


def test_eviction_by_hand_is_previewed_then_done_in_the_persons_name():
    async def scenario():
        fleet = Fleet("abz")
        await fleet.form()
        fleet.agents["a"].complete(9, peer_of=(2, 3))
        fleet.agents["b"].complete(9)
        preview = fleet.controller.preview_eviction("b")
        assert (preview["standby"], preview["ranks"], preview["lost_steps"]) == ("z", [2, 3], 0)
        assert fleet.agents["b"].left is None
        await fleet.controller.evict("b", "fan failed", "ada")
        await fleet.settle()
        await fleet.settle()
        assert fleet.journal.last("evict")["actor"] == "ada"
        assert isinstance(fleet.agents["b"].left, Leave)
        assert [p.node for p in fleet.job.world] == ["a", "z"]

    run(scenario)


def test_what_was_seen_is_compared_with_the_job_of_the_node():
    async def scenario():
        fleet = Fleet("ab")
        await fleet.form()
        seen = fleet.controller.preview_eviction("b")
        fleet.controller.expect("", Seen(attempt=seen["attempt"], state=seen["state"]), "b")
        with pytest.raises(UsageError, match="has changed, look again"):
            fleet.controller.expect("j", Seen(attempt=seen["attempt"] + 1), "b")
        with pytest.raises(UsageError, match="no job 'q'"):
            fleet.controller.expect("q", Seen(attempt=0))

    run(scenario)


def test_evicting_an_unknown_node_names_those_that_are_there():
    async def scenario():
        fleet = Fleet("ab")
        await fleet.form()
        with pytest.raises(UsageError, match=r"no node 'q'; nodes here: a, b"):
            await fleet.controller.evict("q", "x", "ada")

    run(scenario)


def test_a_node_of_two_jobs_is_evicted_only_from_the_job_that_is_named():
    async def scenario():
        fleet = Fleet("ab")
        for node in "ab":
            fleet.join(node, job="other", pid=700 + ord(node))
        await fleet.form()
        with pytest.raises(UsageError, match="node 'b' is a node of 2 jobs: j, other"):
            fleet.controller.preview_eviction("b")
        with pytest.raises(UsageError, match="node 'b' is a node of 2 jobs: j, other"):
            await fleet.controller.evict("b", "fan", "ada")
        with pytest.raises(UsageError, match="no job 'x'"):
            await fleet.controller.evict("b", "fan", "ada", job="x")
        with pytest.raises(UsageError, match=r"no node 'q' of job 'other'; nodes here: a, b"):
            await fleet.controller.evict("q", "fan", "ada", job="other")
        cost = await fleet.controller.evict("b", "fan", "ada", job="other")
        await fleet.settle()
        assert cost["job"] == "other"
        jobs = fleet.controller.jobs
        assert (jobs["j"].node("b") is None, jobs["other"].node("b") is None) == (False, True)

    run(scenario)


def test_a_new_hub_adopts_a_running_job_and_only_ends_what_a_move_had_asked_of_its_ranks():
    async def scenario():
        fleet = Fleet("")
        fleet.agents = {n: fleet.join(n, attempt=5, node_rank=i) for i, n in enumerate("ab")}
        await fleet.settle()
        assert fleet.job.phase is Phase.RUNNING
        assert fleet.job.attempt == 5
        assert {type(command) for command in fleet.agents["a"].commands} == {HoldRanks, SaveFrom}
        assert [command.number for command in fleet.of("a", HoldRanks)] == [0]
        assert [command.step for command in fleet.of("a", SaveFrom)] == [-1]

    run(scenario)


@pytest.mark.parametrize(("codes", "phase"), [((0, 0, 0, 0), Phase.FINISHED), ((-9, 1), Phase.RUNNING)])
def test_ranks_that_ended_while_the_hub_was_away_are_known_to_the_one_that_adopts_the_job(codes, phase):
    """Agents tell of them right after their hello, before the new hub knows who runs which rank."""

    async def scenario():
        fleet = Fleet("")
        fleet.agents = {n: fleet.join(n, attempt=5, node_rank=i) for i, n in enumerate("ab")}
        for rank, code in enumerate(codes):
            agent = fleet.agents["ab"[rank // 2]]
            agent.attempt = 5
            agent.rank_exits(rank, code)
        for _ in range(10):
            await fleet.settle(0.3)
        assert fleet.job.phase is phase
        assert fleet.job.attempt == (5 if phase is Phase.FINISHED else 6)

    run(scenario)


def test_a_node_that_died_while_the_hub_was_away_is_replaced_after_adoption():
    async def scenario():
        fleet = Fleet("")
        fleet.agents = {"a": fleet.join("a", attempt=5, node_rank=0), "z": fleet.join("z")}
        fleet.agents["a"].complete(3, peer_of=(2, 3))
        for _ in range(13):
            for agent in fleet.agents.values():
                agent.send_heartbeat()
            await fleet.settle(0.9)
        assert fleet.job.attempt == 6
        assert [p.node for p in fleet.job.world] == ["a", "z"]

    run(scenario)


def test_a_node_with_ranks_of_an_older_attempt_takes_nobodys_place_under_a_new_hub():
    async def scenario():
        fleet = Fleet("")
        fleet.agents["a"] = fleet.join("a", attempt=5, node_rank=0, world_nodes=2)
        fleet.agents["x"] = fleet.join("x", attempt=4, node_rank=1, world_nodes=2)
        await fleet.settle(0.3)
        fleet.agents["b"] = fleet.join("b", attempt=5, node_rank=1, world_nodes=2)
        await fleet.settle(0.3)
        assert (fleet.job.phase, fleet.job.attempt) == (Phase.RUNNING, 5)
        assert [member.node for member in fleet.job.world] == ["a", "b"]
        assert fleet.job.fault is None
        assert (fleet.node("x").state, len(fleet.of("x", Stop))) == ("standby", 1)
        assert not [*fleet.of("a", Stop), *fleet.of("b", Stop)]

    run(scenario)


def test_two_live_agents_may_not_share_a_name():
    async def scenario():
        fleet = Fleet("a")
        with pytest.raises(UsageError, match="already connected"):
            fleet.join("a", pid=77)

    run(scenario)


def test_one_job_that_raises_does_not_keep_the_clock_from_the_others(monkeypatch):
    async def scenario():
        fleet = Fleet("ab")
        await fleet.form()
        fleet.join("c", job="k")
        original = Job.tick

        def tick(job, **more):
            if job.name == "k":
                raise RuntimeError("broken")
            original(job, **more)

        monkeypatch.setattr(Job, "tick", tick)
        fleet.agents["b"].drop()
        fleet.clock.now_s += 0.9
        with pytest.raises(RuntimeError, match="broken"):
            fleet.controller.tick()
        fleet.clock.now_s += 0.2
        with pytest.raises(RuntimeError, match="broken"):
            fleet.controller.tick()
        assert fleet.journal.last("node_lost")["node"] == "b"

    run(scenario)


def test_a_message_that_is_no_report_is_ignored():
    async def scenario():
        fleet = Fleet("ab")
        await fleet.form()
        agent = fleet.agents["a"]
        fleet.controller.received(agent.node, Stop(id=1, reason="not an agent's message"))
        fleet.controller.received(agent.node, FirstStep(node="a", ts_ns=0, attempt=99, step=0))
        assert (fleet.job.phase, fleet.job.attempt) == (Phase.RUNNING, 0)

    run(scenario)


async def finished_without(name):
    """A job has finished on other nodes. This one was cut off before, and its ranks hang."""
    fleet = Fleet("abz")
    await fleet.form()
    fleet.agents["a"].complete(4, peer_of=(2, 3))
    fleet.agents[name].drop()
    await fleet.settle(0.9)
    await fleet.settle(0.2)
    await fleet.settle()
    for rank in range(4):
        agent = fleet.agents["az"[rank // 2]]
        fleet.controller.received(agent.node, rank_exit(rank, 0, node=agent.hello.node, attempt=1))
    await fleet.settle()
    assert fleet.job.phase is Phase.FINISHED
    return fleet


def test_an_agent_that_returns_after_its_job_is_over_leaves_and_begins_no_new_one():
    async def scenario():
        fleet = await finished_without("b")
        fleet.agents["b"].reconnect(attempt=0, node_rank=1, world_nodes=2)
        fleet.agents["b"].send_heartbeat()
        await fleet.settle(1.0)
        left = fleet.agents["b"].left
        assert (left.exit_code, left.reason) == (0, "job finished")
        assert (fleet.job.phase, fleet.job.attempt) == (Phase.FINISHED, 1)

    run(scenario)


def test_a_job_that_is_over_can_be_forgotten_and_what_its_agents_still_say_is_ignored():
    async def scenario():
        fleet = await finished_without("b")
        assert fleet.controller.over_s() == {"j": 0.0}
        fleet.clock.now_s += 3600.0
        assert fleet.controller.over_s() == {"j": 3600.0}
        fleet.controller.forget("j")
        fleet.agents["a"].send_heartbeat()
        assert (fleet.controller.jobs, fleet.controller.over_s()) == ({}, {})
        fleet.agents["c"] = fleet.join("c")
        fleet.controller.forget("j")
        assert fleet.job.attempt == 1  # the run before had attempts 0 and 1

    run(scenario)


def test_so_it_does_where_the_hub_was_started_anew_since():
    async def scenario():
        before = await finished_without("b")
        fleet = Fleet("", memory=before.memory)
        fleet.agents["b"] = fleet.join("b", attempt=0, node_rank=1, world_nodes=2)
        fleet.agents["b"].rank_exits(2, 1)
        await fleet.settle(1.0)
        assert (fleet.agents["b"].left.exit_code, fleet.agents["b"].left.persist) == (0, False)
        assert fleet.controller.jobs == {}
        fleet.agents["c"] = fleet.join("c", attempt=2, node_rank=0, world_nodes=1)
        await fleet.settle(1.0)
        assert (fleet.job.phase, fleet.job.attempt) == (Phase.RUNNING, 2)

    run(scenario)


def test_nor_does_it_join_the_next_run_of_that_name():
    async def scenario():
        fleet = await finished_without("b")
        fleet.agents["c"] = fleet.join("c")
        await fleet.settle(0.3)
        fleet.agents["b"].reconnect(attempt=0, node_rank=1, world_nodes=2)
        await fleet.settle(0.3)
        assert (fleet.agents["b"].left.exit_code, fleet.job.phase) == (0, Phase.FORMING)
        fleet.agents["b"].leaves()
        assert "node_leaving" not in fleet.journal.kinds()
        fleet.agents["d"] = fleet.join("d")
        await fleet.settle(0.6)
        assert (fleet.job.phase, [m.node for m in fleet.job.world]) == (Phase.RUNNING, ["c", "d"])
        fleet.agents["b"].reconnect()
        fleet.agents["c"].reconnect(attempt=2, node_rank=0)
        await fleet.settle(0.3)
        assert [node.name for node in fleet.job.nodes] == ["c", "d"]
        assert fleet.agents["c"].left is None

    run(scenario)


@pytest.mark.parametrize("anew", [False, True])
def test_an_agent_that_returns_to_a_job_that_failed_has_its_exit_code_and_may_save(anew):
    async def scenario():
        fleet = Fleet("abz", max_restarts=0)
        await fleet.form()
        fleet.agents["a"].complete(4, peer_of=(2, 3))
        fleet.agents["b"].drop()
        for _ in range(3):
            await fleet.settle(0.5)
        fleet.agents["a"].rank_exits(0, 7)
        for _ in range(3):
            await fleet.settle()
        assert fleet.job.phase is Phase.FAILED
        if anew:
            fleet = Fleet("", memory=fleet.memory)
            fleet.agents["b"] = fleet.join("b", attempt=0, node_rank=1, world_nodes=2)
        else:
            fleet.agents["b"].reconnect(attempt=0, node_rank=1, world_nodes=2)
        await fleet.settle(0.3)
        assert (fleet.agents["b"].left.exit_code, fleet.agents["b"].left.persist) == (7, True)

    run(scenario)


async def ends(fleet):
    for agent in fleet.agents.values():
        agent.leaves("SIGINT")
    await fleet.settle()


async def asked(fleet, query, **patience):
    """The controller has asked for the attempts on record."""
    fleet.controller._past = PastAttempts(query, **patience)
    await fleet.controller.look_up(hello("a", job="j"))


def test_a_new_job_under_the_name_of_one_that_is_over_continues_its_attempts():
    async def scenario():
        fleet = Fleet("ab")
        await fleet.form()
        assert fleet.job.attempt == 0
        await ends(fleet)
        await asked(fleet, lambda job: 4)
        fleet.agents = {name: fleet.join(name, pid=9) for name in "ab"}
        await fleet.form()
        assert fleet.job.attempt == 5

    run(scenario)


def away(job):
    raise Unavailable("the store is away")


def test_a_job_begins_without_the_store_and_counts_on_from_what_this_hub_knows():
    async def scenario():
        fleet = Fleet("")
        await asked(fleet, away)
        fleet.agents = {name: fleet.join(name) for name in "ab"}
        await fleet.form()
        assert fleet.job.attempt == 0
        await ends(fleet)
        await asked(fleet, away)
        fleet.agents = {name: fleet.join(name, pid=9) for name in "ab"}
        await fleet.form()
        assert fleet.job.attempt == 1

    run(scenario)


def test_the_next_hub_counts_on_without_the_store_too():
    async def scenario():
        fleet = Fleet("ab")
        await fleet.form()
        await ends(fleet)
        after = Fleet("ab", memory=fleet.memory)
        await after.form()
        assert after.job.attempt == 1

    run(scenario)


def test_a_store_that_hangs_holds_up_the_hello_for_a_moment_and_the_event_loop_not_at_all():
    ends, turns = threading.Event(), []

    def hangs(job):
        turns.append(job)
        ends.wait(10)
        return 7

    async def scenario():
        fleet = Fleet("")
        looked_up = asyncio.create_task(asked(fleet, hangs, patience_s=0.1))
        while not turns:
            await asyncio.sleep(0.001)
        assert not looked_up.done()  # the loop goes on meanwhile
        await looked_up
        fleet.agents = {name: fleet.join(name) for name in "ab"}
        await fleet.controller.look_up(hello("a", job="j"))
        await fleet.form()
        assert (fleet.job.attempt, turns) == (0, ["j"])
        ends.set()

    run(scenario)


def test_agents_of_a_job_that_is_known_ask_nothing():
    async def scenario():
        fleet = Fleet("ab")
        queries = []
        await asked(fleet, queries.append)
        assert queries == []

    run(scenario)
