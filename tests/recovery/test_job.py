"""A job against fake agents: what an operator relies on when something breaks."""

import asyncio
import dataclasses

import pytest

from pulsetrain.core.errors import UsageError
from pulsetrain.protocol.messages import (
    NOT_READ,
    Held,
    HostStore,
    Leave,
    OwnCheckpoint,
    SelfCheck,
    Start,
    Stop,
)
from pulsetrain.recovery.actions import POLL_S
from pulsetrain.recovery.hang_decision import HangDecision
from pulsetrain.recovery.liveness import SPREAD_S
from pulsetrain.recovery.nodes import NodeState
from pulsetrain.recovery.policy import Policy
from pulsetrain.recovery.time_use import Use
from pulsetrain.recovery.transitions import Phase
from tests.recovery.fakes import Fleet, Observed, hang, run


def test_a_job_forms_with_the_lowest_names_and_keeps_the_rest_as_standbys():
    async def scenario():
        fleet = Fleet("cab", nnodes=2)
        await fleet.form()
        assert [p.node for p in fleet.job.world] == ["a", "b"]
        assert fleet.agents["c"].commands == []
        assert fleet.of("a", HostStore)
        assert fleet.of("b", Start)[0].node_rank == 1

    run(scenario)


def test_a_job_waits_until_enough_nodes_have_joined():
    async def scenario():
        fleet = Fleet("a", nnodes=2)
        await fleet.settle(5)
        assert fleet.job.phase is Phase.FORMING

    run(scenario)


def test_a_clock_that_is_set_forward_begins_no_job_whose_storage_was_not_read():
    async def scenario():
        fleet = Fleet("ab")
        for agent in fleet.agents.values():
            agent.stored_attempt = NOT_READ
            agent.send_heartbeat()
        await fleet.settle(0.6)
        fleet.clock.ahead_s = 400.0
        await fleet.settle(0.6)
        assert fleet.job.phase is Phase.FORMING

    run(scenario)


def test_a_dead_rank_is_restarted_in_place_from_the_newest_common_step():
    async def scenario():
        fleet = Fleet("ab")
        await fleet.form()
        fleet.agents["a"].complete(9)
        fleet.agents["b"].complete(9)
        fleet.agents["b"].rank_exits(3, -9)
        await fleet.settle()
        assert fleet.job.phase is Phase.RUNNING
        assert fleet.job.attempt == 1
        start = fleet.of("b", Start)[-1]
        assert (start.restore_step, start.sources) == (9, {"2": "memory", "3": "memory"})
        recovery = fleet.journal.last("recovery")["detail"]
        assert (recovery["culprit"], recovery["lost_steps"]) == ("rank 3", 0)
        assert set(recovery["stages_ns"]) == {
            "detect",
            "diagnose",
            "evict",
            "rendezvous",
            "load",
            "first_step",
        }
        assert fleet.of("a", SelfCheck)
        assert len(fleet.of("a", Stop)) == 1

    run(scenario)


def test_a_step_that_is_whole_nowhere_gives_way_to_the_one_before():
    async def scenario():
        fleet = Fleet("ab")
        await fleet.form()
        for agent in fleet.agents.values():
            agent.complete(9)
            agent.held = tuple(Held(rank=r, step=s, tier="storage") for s in (5, 9) for r in range(4))
            agent.send_heartbeat()
        fleet.agents["b"].unrestorable = {(2, 9)}
        fleet.agents["b"].rank_exits(3, -9)
        await fleet.settle()
        assert [c.restore_step for c in fleet.of("a", Start)] == [-1, 9, 5]
        assert fleet.job.phase is Phase.RUNNING
        assert fleet.journal.last("recovery")["detail"]["resumed_step"] == 5

    run(scenario)


def test_a_lost_node_is_replaced_by_a_standby_that_takes_its_ranks_from_a_peer():
    async def scenario():
        fleet = Fleet("abz")
        await fleet.form()
        fleet.agents["a"].complete(9, peer_of=(2, 3))
        fleet.agents["b"].complete(9)
        fleet.agents["b"].drop()
        await fleet.settle(0.5)
        assert fleet.job.phase is Phase.RUNNING
        await fleet.settle(0.6)
        await fleet.settle(0.0)
        assert [p.node for p in fleet.job.world] == ["a", "z"]
        assert fleet.of("z", Start)[0].sources == {"2": "peer:a", "3": "peer:a"}
        assert fleet.journal.last("standby_promoted")["detail"]["replaces"] == "b"
        assert fleet.journal.last("recovery")["detail"]["cause"] == "node_lost"

    run(scenario)


def test_a_connection_that_comes_back_in_time_costs_nothing():
    async def scenario():
        fleet = Fleet("ab")
        await fleet.form()
        fleet.agents["b"].drop()
        await fleet.settle(0.8)
        fleet.agents["b"].reconnect(attempt=0, node_rank=1)
        await fleet.settle(0.8)
        assert fleet.job.attempt == 0
        assert "node_lost" not in fleet.journal.kinds()

    run(scenario)


def test_silence_on_an_open_connection_is_a_lost_node_once_its_peers_wait_for_it():
    async def scenario():
        fleet = Fleet("ab", policy=Policy(heartbeat_timeout_s=2.5))
        await fleet.form()
        for _ in range(4):
            fleet.agents["a"].send_heartbeat()
            await fleet.settle(0.9)
        assert "node_lost" not in fleet.journal.kinds()
        fleet.agents["a"].quiet_ns = int(3e9)
        fleet.agents["a"].send_heartbeat()
        await fleet.settle(0.1)
        assert fleet.journal.last("node_lost")["node"] == "b"

    run(scenario)


def test_a_hang_that_is_hidden_while_no_agent_is_heard_was_no_pause():
    """All connections are away. What ranks said last gets no younger by that."""

    async def scenario():
        fleet = Fleet("ab")
        await fleet.form()
        job, now_s = fleet.controller.jobs["j"], fleet.clock.now_s
        for agent in fleet.agents.values():
            agent.steps = dict.fromkeys(agent.steps, 7)
            agent.quiet_ns = int(4e9)
            agent.send_heartbeat()
        found = hang(0, certain=False)
        job.observe([found], [found])
        since_ns = job._state.hangs.pending.since_ns
        while fleet.clock.now_s < now_s + 8.0:
            fleet.clock.now_s += 1.0
            job.observe([], [])
        assert job._state.hangs.pending.since_ns == since_ns
        assert job._state.hangs.longest_pause_ns == 0

    run(scenario)


def test_without_a_standby_the_job_waits_for_a_node_and_then_goes_on():
    async def scenario():
        fleet = Fleet("ab")
        await fleet.form()
        fleet.agents["a"].complete(4, peer_of=(2, 3))
        fleet.agents["b"].drop()
        await fleet.settle(0.9)
        await fleet.settle(0.2)
        assert fleet.job.phase is Phase.WAITING
        fleet.agents["n"] = fleet.join("n")
        await fleet.settle(0.0)
        await fleet.settle(0.6)
        assert fleet.job.phase is Phase.RUNNING
        assert fleet.of("n", Start)[0].restore_step == 4

    run(scenario)


async def _two_nodes_lost(**policy):
    """Nodes a and b have all there is of ranks 0 to 3. A switch cuts both off. There are standbys."""
    fleet = Fleet("abyz", policy=Policy(**policy))
    await fleet.form()
    fleet.agents["a"].complete(9, peer_of=(2, 3))
    fleet.agents["b"].complete(9, peer_of=(0, 1))
    for name in "ab":
        fleet.agents[name].drop()
    await fleet.settle(1.1)
    await fleet.settle(0.6)
    return fleet


def test_a_job_does_not_begin_anew_while_lost_nodes_with_its_state_may_come_back():
    async def scenario():
        fleet = await _two_nodes_lost()
        for _ in range(5):
            for name in "yz":
                fleet.agents[name].send_heartbeat()
            await fleet.settle(1.0)
        assert fleet.job.phase is Phase.WAITING
        assert fleet.job.state_awaited_of == ("a", "b")
        assert not fleet.of("z", Start)
        held, back = fleet.agents["a"].held, fleet.join("a")
        fleet.agents["a"].commands = back.commands
        await fleet.settle(0.6)
        assert fleet.job.phase is Phase.WAITING
        back.held = held
        back.send_heartbeat()
        await fleet.settle(0.6)
        assert fleet.job.phase is Phase.RUNNING
        assert [m.node for m in fleet.job.world] == ["a", "y"]
        start = fleet.of("y", Start)[-1]
        assert (start.restore_step, start.sources) == (9, {"2": "peer:a", "3": "peer:a"})
        assert fleet.journal.kinds().count("state_awaited") == 1

    run(scenario)


def test_a_node_that_is_back_is_heard_before_its_job_begins_anew():
    async def scenario():
        fleet = await _two_nodes_lost()
        for name in "ab":
            hello = fleet.agents[name].hello
            fleet.controller.connected(hello, fleet.agents[name].send)
        await fleet.settle(0.6)
        assert fleet.job.phase is Phase.WAITING

    run(scenario)


def test_a_job_begins_anew_once_it_has_waited_long_enough_for_lost_state():
    async def scenario():
        fleet = await _two_nodes_lost(lost_state_wait_s=60.0)
        for seconds, phase in ((50.0, Phase.WAITING), (11.0, Phase.RUNNING)):
            for name in "yz":
                fleet.agents[name].send_heartbeat()
            fleet.clock.now_s += seconds
            for name in "yz":
                fleet.agents[name].send_heartbeat()
            await fleet.settle()
            assert fleet.job.phase is phase
        assert fleet.of("z", Start)[0].restore_step == -1
        assert fleet.journal.last("state_given_up")["detail"] == {"nodes": ("a", "b"), "from_step": 9}

    run(scenario)


def test_nobody_waits_for_state_that_the_agents_have_lost_or_where_it_is_switched_off():
    async def scenario():
        fleet = await _two_nodes_lost(lost_state_wait_s=0.0)
        assert fleet.job.phase is Phase.RUNNING
        fleet = await _two_nodes_lost()
        for name in "ab":
            fleet.join(name, pid=77)
        await fleet.settle(0.6)
        assert fleet.job.phase is Phase.RUNNING

    run(scenario)


def test_a_node_that_fails_its_self_check_is_evicted():
    async def scenario():
        fleet = Fleet("abz")
        await fleet.form()
        fleet.agents["b"].sick = True
        fleet.agents["a"].rank_exits(0, -11)
        await fleet.settle()
        await fleet.settle()
        assert fleet.agents["b"].left.exit_code == 1
        assert [p.node for p in fleet.job.world] == ["a", "z"]
        assert fleet.journal.last("evict")["node"] == "b"

    run(scenario)


def test_an_eviction_by_a_person_is_done_though_another_node_is_lost_meanwhile():
    async def scenario():
        fleet = Fleet("abyz", policy=Policy(evictions_per_hour=0))
        await fleet.form()
        fleet.agents["b"].mute = (Stop,)
        await fleet.controller.evict("a", "fan failed", "ada")
        await fleet.settle()
        fleet.agents["b"].drop()
        await fleet.settle(1.1)
        await asyncio.sleep(2 * POLL_S)
        await fleet.settle()
        gone = {n.name: (n.state, n.reason) for n in fleet.job.nodes if n.name in "ab"}
        assert gone["a"] == ("evicted", "evicted by ada: fan failed")
        assert gone["b"][0] == "lost"
        assert {n.name for n in fleet.job.nodes if n.gone_since_ns > 0} == {"a", "b"}
        assert fleet.journal.last("evict")["actor"] == "ada"
        assert [m.node for m in fleet.job.world] == ["y", "z"]

    run(scenario)


@pytest.mark.parametrize("first", ["exit", "eviction"])
def test_an_eviction_by_a_person_is_done_though_a_rank_fails_at_that_moment(first):
    async def scenario():
        fleet = Fleet("abz")
        await fleet.form()
        fleet.agents["a"].complete(4, peer_of=(2, 3))
        if first == "exit":
            fleet.agents["a"].rank_exits(0, 1)
        await fleet.controller.evict("b", "fan failed", "ada", drain=True)
        fleet.agents["a"].rank_exits(1, 1)
        await fleet.settle()
        await fleet.settle()
        assert fleet.node("b").state is NodeState.EVICTED
        assert fleet.journal.last("evict")["actor"] == "ada"
        assert (fleet.job.attempt, [m.node for m in fleet.job.world]) == (1, ["a", "z"])

    run(scenario)


def test_the_budget_stops_automatic_evictions():
    async def scenario():
        fleet = Fleet("abz", policy=Policy(evictions_per_hour=0))
        await fleet.form()
        fleet.agents["b"].sick = True
        fleet.agents["a"].rank_exits(0, -11)
        await fleet.settle()
        assert "budget of 0" in fleet.journal.last("eviction_refused")["detail"]["why_not"]
        assert fleet.agents["b"].left is None

    run(scenario)


def test_restarts_are_bounded_and_the_job_fails_with_the_ranks_exit_code():
    async def scenario():
        fleet = Fleet("ab", max_restarts=1)
        await fleet.form()
        for _ in range(2):
            fleet.agents["a"].rank_exits(1, 7, ("ValueError: bad",))
            await fleet.settle()
        assert fleet.job.phase is Phase.FAILED
        assert fleet.agents["b"].left.exit_code == 7
        assert "ValueError: bad" in fleet.agents["b"].left.reason

    run(scenario)


def test_a_crash_after_nodes_were_lost_is_the_first_attempt_that_failed():
    async def scenario():
        fleet = Fleet("abyz", policy=Policy(no_progress_attempts=2, restart_wait_s=0.0), stepless=True)
        await fleet.form()
        for name in "ab":
            fleet.agents[name].drop()
            for _ in range(3):
                await fleet.settle(0.6)
        assert fleet.job.attempt == 2
        fleet.agents["y"].rank_exits(0, 1)
        await fleet.settle()
        assert (fleet.job.phase, fleet.job.attempt) == (Phase.RUNNING, 3)

    run(scenario)


def test_a_job_that_fails_again_at_once_waits_longer_each_time():
    async def scenario():
        fleet = Fleet("ab", max_restarts=9)
        await fleet.form()
        waits = []
        for _ in range(4):
            fleet.agents["a"].rank_exits(1, 7)
            await fleet.settle()
            waits.append(fleet.job.launches_in_s)
            assert fleet.job.phase is (Phase.CHECKING if waits[-1] else Phase.RUNNING)
            await fleet.wait_for_launch()
            assert fleet.job.phase is Phase.RUNNING
        assert waits == [0, 1, 2, 4]
        fleet.agents["a"].complete(50)
        fleet.agents["a"].rank_exits(1, 7)
        await fleet.settle()
        assert fleet.job.phase is Phase.RUNNING  # it had got on: that was a first fault again

    run(scenario)


def test_a_node_that_is_lost_costs_no_wait():
    async def scenario():
        fleet = Fleet("abyz", max_restarts=9)
        await fleet.form()
        for attempt, name in enumerate("ab", 1):
            fleet.agents[name].drop()
            for _ in range(2):
                await fleet.settle(0.6)
            assert (fleet.job.phase, fleet.job.attempt) == (Phase.RUNNING, attempt)

    run(scenario)


async def _lose_and_return(fleet, name, pid):
    """A node is lost after its first step. Its agent is started anew. Returns how long the job waits."""
    fleet.agents[name].drop()
    for _ in range(2):
        await fleet.settle(0.6)
    waits = fleet.job.launches_in_s
    fleet.agents[name] = fleet.join(name, pid=pid)
    await fleet.wait_for_launch()
    await fleet.settle(0.6)
    return round(waits, 1)


def test_a_node_that_is_lost_again_and_again_makes_the_job_wait_longer_each_time():
    async def scenario():
        fleet = Fleet("ab")
        await fleet.form()
        waits = [await _lose_and_return(fleet, "a", 500 + i) for i in range(4)]
        assert fleet.job.phase is Phase.RUNNING
        assert waits == [0, 1, 2, 4]
        fleet.agents["b"].complete(50)
        assert await _lose_and_return(fleet, "a", 600) == 0  # it had got on

    run(scenario)


def test_a_job_on_machines_that_come_and_go_never_waits_while_it_gets_on():
    async def scenario():
        fleet = Fleet("ab")
        await fleet.form()
        for lost in range(12):
            fleet.agents["b"].complete(10 * (lost + 1), peer_of=(0, 1))
            assert await _lose_and_return(fleet, "a", 500 + lost) == 0
            assert (fleet.job.phase, fleet.job.attempt) == (Phase.RUNNING, lost + 1)

    run(scenario)


def test_of_two_standbys_the_one_that_was_not_lost_is_promoted():
    async def scenario():
        fleet = Fleet("abz")
        await fleet.form()
        assert await _lose_and_return(fleet, "a", 500) == 0
        fleet.agents["y"] = fleet.join("y")
        await fleet.settle(0.6)
        fleet.agents["b"].drop()
        for _ in range(3):
            await fleet.settle(0.6)
        assert {member.node for member in fleet.job.world} == {"y", "z"}

    run(scenario)


def test_who_ends_a_job_does_not_have_to_sit_out_its_wait():
    async def scenario():
        fleet = Fleet("ab", max_restarts=9)
        await fleet.form()
        for _ in range(2):
            fleet.agents["a"].rank_exits(1, 7)
            await fleet.settle()
        assert fleet.job.launches_in_s > 0
        for agent in fleet.agents.values():
            agent.leaves()
        await fleet.wait_for_launch()
        assert (fleet.job.phase, fleet.job.ended_by) == (Phase.FAILED, "SIGINT")

    run(scenario)


def test_who_ends_a_job_during_a_check_waits_for_no_standby_that_lost_its_connection():
    async def scenario():
        fleet = Fleet("abz")
        await fleet.form()
        fleet.agents["z"].mute = (SelfCheck,)
        fleet.agents["a"].rank_exits(1, 7)
        await fleet.settle()
        assert fleet.job.phase is Phase.CHECKING
        for name in "ab":
            fleet.agents[name].leaves()
        fleet.controller.tick()
        fleet.agents["z"].drop()
        for _ in range(3):
            await fleet.settle(1.0)
            await asyncio.sleep(2 * POLL_S)
        assert (fleet.job.phase, fleet.job.ended_by) == (Phase.FAILED, "SIGINT")

    run(scenario)


def test_an_exit_that_a_node_reports_of_anothers_rank_is_ignored():
    async def scenario():
        fleet = Fleet("ab")
        await fleet.form()
        fleet.agents["a"].rank_exits(3, 7)  # it runs on b
        await fleet.settle()
        assert (fleet.job.phase, fleet.job.attempt) == (Phase.RUNNING, 0)

    run(scenario)


def test_the_nodes_of_a_world_speak_for_their_own_ranks():
    async def scenario():
        fleet = Fleet("abz")
        await fleet.form()
        ranks = {name: agent.node.ranks for name, agent in fleet.agents.items()}
        assert ranks == {"a": range(2), "b": range(2, 4), "z": None}
        fleet.agents["b"].drop()
        for _ in range(2):
            await fleet.settle(0.6)
        assert fleet.agents["z"].node.ranks == range(2, 4)

    run(scenario)


def test_bad_usage_of_the_script_ends_the_job_at_once():
    async def scenario():
        fleet = Fleet("ab")
        await fleet.form()
        fleet.agents["a"].rank_exits(0, 2, ("need 8 ranks, have 4",))
        await fleet.settle()
        assert fleet.job.phase is Phase.FAILED
        assert fleet.agents["a"].left.exit_code == 2

    run(scenario)


def test_a_finished_job_lets_every_agent_go():
    async def scenario():
        fleet = Fleet("abz")
        await fleet.form()
        for rank in range(4):
            fleet.agents["ab"[rank // 2]].rank_exits(rank, 0)
        await fleet.settle()
        assert fleet.job.phase is Phase.FINISHED
        assert [fleet.agents[n].left.exit_code for n in "abz"] == [0, 0, 0]

    run(scenario)


def test_observe_only_says_what_it_would_do_and_does_nothing():
    async def scenario():
        fleet = Fleet("ab", policy=Policy(observe_only=True))
        await fleet.form()
        fleet.controller.jobs["j"].observe([hang(rank=1)])
        await fleet.settle()
        would = fleet.journal.last("would")
        assert (would["rank"], would["detail"]["price"]["stop_s"]) == (1, None)
        assert not fleet.of("a", Stop)

    run(scenario)


def test_exits_that_the_controllers_own_stop_causes_start_no_second_recovery():
    async def scenario():
        fleet = Fleet("ab")
        await fleet.form()
        fleet.agents["a"].rank_exits(0, -11)
        fleet.agents["b"].rank_exits(2, 1)
        fleet.agents["b"].rank_exits(3, 1)
        await fleet.settle()
        await fleet.settle()
        assert fleet.job.attempt == 1
        assert fleet.journal.kinds().count("recovery") == 1

    run(scenario)


def test_a_node_that_comes_back_after_it_was_given_up_stops_its_old_ranks_and_stands_by():
    async def scenario():
        fleet = Fleet("abz")
        await fleet.form()
        fleet.agents["a"].complete(4, peer_of=(2, 3))
        fleet.agents["b"].drop()
        await fleet.settle(0.9)
        await fleet.settle(0.2)
        fleet.agents["b"].reconnect(attempt=0, node_rank=1)
        await fleet.settle()
        assert [p.node for p in fleet.job.world] == ["a", "z"]
        assert fleet.of("b", Stop)[-1].reason == "another node has replaced it"
        assert fleet.node("b").state == "standby"

    run(scenario)


def test_an_evicted_agent_that_reconnects_is_sent_away_again_and_a_new_one_is_welcome():
    async def scenario():
        fleet = Fleet("abz")
        await fleet.form()
        fleet.agents["a"].complete(4, peer_of=(2, 3))
        await fleet.controller.evict("b", "fan failed", "ada")
        await fleet.settle()
        await fleet.settle()
        fleet.agents["b"].drop()
        fleet.agents["b"].reconnect()
        await fleet.settle()
        assert len(fleet.of("b", Leave)) == 2
        fleet.agents["b"].drop()
        fleet.agents["b"].reconnect(pid=4711)
        await fleet.settle()
        assert len(fleet.of("b", Leave)) == 2
        assert fleet.node("b").state == "standby"

    run(scenario)


def test_a_script_that_names_no_step_is_under_way_once_its_ranks_have_worked_for_a_while():
    async def scenario():
        fleet = Fleet(stepless=True)
        await fleet.form()

        async def beats(seconds, worked):
            for _ in range(seconds):
                for agent in fleet.agents.values():
                    agent.worked += worked
                    agent.send_heartbeat()
                await fleet.settle(1)

        await beats(40, worked=0)
        assert not fleet.job.first_step_done
        fleet.agents["b"].rank_exits(2, 1)
        await fleet.settle(1)
        await beats(10, worked=3)
        assert (fleet.job.attempt, fleet.job.first_step_done) == (1, False)
        assert fleet.job.history == ()
        await beats(30, worked=3)
        assert fleet.job.first_step_done
        assert [r["cause"] for r in fleet.job.history] == ["crash"]

    run(scenario)


def test_a_job_whose_agents_are_all_ended_by_a_signal_is_over_and_no_node_is_lost():
    async def scenario():
        fleet = Fleet("abz")
        await fleet.form()
        for name in "ab":
            fleet.agents[name].leaves("SIGINT")
        for rank in range(4):
            fleet.agents["ab"[rank // 2]].rank_exits(rank, -15)
        for name in "ab":
            fleet.agents[name].drop()
        await fleet.settle(0.9)
        await fleet.settle(0.9)
        job = fleet.job
        assert (job.phase, job.failure, job.ended_by) == (Phase.FAILED, "ended by SIGINT", "SIGINT")
        assert fleet.agents["z"].left.exit_code == 130
        assert {n.name: str(n.state) for n in job.nodes} == {"a": "left", "b": "left", "z": "left"}
        assert not {"node_lost", "recovery", "evict"} & set(fleet.journal.kinds())
        assert fleet.journal.last("job_ended")["detail"]["reason"] == "job ended by SIGINT"

    run(scenario)


def test_peers_that_fail_while_a_node_leaves_are_explained_by_it():
    async def scenario():
        fleet = Fleet("abz")
        await fleet.form()
        fleet.agents["a"].complete(9, peer_of=(2, 3))
        fleet.agents["b"].leaves("SIGTERM")
        fleet.agents["a"].rank_exits(0, 1, ("connection closed by peer",))
        await fleet.settle(0.5)
        assert fleet.job.phase is Phase.RUNNING
        fleet.agents["b"].drop()
        await fleet.settle(0.6)
        assert fleet.job.phase is Phase.RUNNING  # the signal may be on its way to the others
        for _ in range(8):
            fleet.agents["a"].send_heartbeat()
            fleet.agents["z"].send_heartbeat()
            await fleet.settle(SPREAD_S / 6)
        assert [m.node for m in fleet.job.world] == ["a", "z"]
        lost = fleet.journal.last("recovery")["detail"]
        assert (lost["cause"], lost["node"]) == ("node_lost", "b")
        assert "its agent ended: ended by SIGTERM" in lost["reason"]

    run(scenario)


def test_a_signal_that_reaches_nodes_one_after_the_other_ends_no_ranks_before_their_own_turn():
    async def scenario():
        fleet = Fleet("abc", nnodes=3)
        await fleet.form()
        for name in "abc":
            fleet.agents[name].leaves("SIGTERM")
            for _ in range(4):
                for agent in fleet.agents.values():
                    agent.send_heartbeat()
                await fleet.settle(0.75)
        assert not [command for name in "abc" for command in fleet.of(name, Stop)]
        assert fleet.controller.jobs["j"]._state.ended_by == "SIGTERM"

    run(scenario)


@pytest.mark.parametrize("goes", ["leaves", "drops"])
def test_a_node_whose_ranks_have_finished_may_go_while_others_work(goes):
    async def scenario():
        fleet = Fleet("abz")
        await fleet.form()
        for rank in (0, 1):
            fleet.agents["a"].rank_exits(rank, 0)
        await fleet.settle()
        if goes == "leaves":
            fleet.agents["a"].leaves("SIGINT")
        fleet.agents["a"].drop()
        for _ in range(10):
            fleet.agents["b"].send_heartbeat()
            await fleet.settle(1.0)
        assert (fleet.job.phase, fleet.job.attempt) == (Phase.RUNNING, 0)
        assert (fleet.of("b", Stop), fleet.of("z", Start)) == ([], [])
        for rank in (2, 3):
            fleet.agents["b"].rank_exits(rank, 0)
        await fleet.settle()
        assert fleet.job.phase is Phase.FINISHED

    run(scenario)


def test_the_last_active_node_that_leaves_by_a_signal_ends_a_job_that_waits_for_nodes():
    async def scenario():
        fleet = Fleet("ab")
        await fleet.form()
        fleet.agents["b"].drop()
        await fleet.settle(0.9)
        await fleet.settle(0.2)
        assert fleet.job.phase is Phase.WAITING
        fleet.agents["a"].leaves("SIGINT")
        await fleet.settle()
        assert (fleet.job.phase, fleet.job.ended_by) == (Phase.FAILED, "SIGINT")

    run(scenario)


def test_an_agent_that_ends_without_a_signal_does_not_end_the_job():
    async def scenario():
        fleet = Fleet("ab")
        await fleet.form()
        for name in "ab":
            fleet.agents[name].leaves("")
        await fleet.settle(0.9)
        await fleet.settle(0.2)
        assert fleet.job.phase is not Phase.FAILED
        assert fleet.journal.kinds().count("node_lost") == 2

    run(scenario)


def test_a_crash_finding_changes_whom_the_recovery_blames():
    async def scenario():
        fleet = Fleet("ab")
        await fleet.form()
        fleet.agents["a"].rank_exits(0, 1)
        await asyncio.sleep(0)
        crash = Observed(kind="crash", subject="3", summary="rank 3 ended first")
        while fleet.job.fault is None:
            await asyncio.sleep(0)
        fleet.controller.jobs["j"].observe([crash])
        await fleet.settle()
        recovery = fleet.journal.last("recovery")["detail"]
        assert (recovery["culprit"], recovery["node"], recovery["reason"]) == (
            "rank 3", "b", "rank 3 ended first",
        )  # fmt: skip

    run(scenario)


@pytest.mark.parametrize(("victims_only", "counted"), [(True, []), (False, ["b"])])
def test_ranks_that_all_ended_because_of_a_peer_count_against_no_node(victims_only, counted):
    async def scenario():
        fleet = Fleet("ab")
        await fleet.form()
        fleet.agents["a"].rank_exits(0, -6)
        while fleet.job.fault is None:
            await asyncio.sleep(0)
        crash = Observed(kind="crash", subject="3", details={"all_timed_out": victims_only})
        fleet.controller.jobs["j"].observe([crash])
        await fleet.settle()
        assert list(fleet.memory.values["j", "restarts"].by_node_ns) == counted

    run(scenario)


def test_a_hang_is_dated_back_to_the_last_progress_of_its_rank():
    async def scenario():
        fleet = Fleet("ab")
        await fleet.form()
        fleet.clock.now_s += 0.5
        fleet.controller.jobs["j"].observe([hang(rank=2, confidence=0.8), hang(rank=1)])
        await fleet.settle()
        recovery = fleet.journal.last("recovery")["detail"]
        assert (recovery["cause"], recovery["culprit"]) == ("hang", "rank 1")
        assert recovery["stages_ns"]["detect"] == pytest.approx(0.5e9, abs=1e6)

    run(scenario)


def seconds(fleet):
    return {use: s for use, s in fleet.job.time_use.row()["seconds"].items() if s}


def test_the_time_of_a_hang_its_recovery_and_the_steps_done_again_is_not_trained():
    async def scenario():
        fleet = Fleet("ab")
        await fleet.form()
        for agent in fleet.agents.values():
            agent.complete(4)
            agent.steps = dict.fromkeys(agent.steps, 9)
            agent.send_heartbeat()
        fleet.clock.now_s += 60.0
        for agent in fleet.agents.values():
            agent.send_heartbeat()
        fleet.clock.now_s += 5.0
        fleet.controller.jobs["j"].observe([hang(rank=1)])
        for agent in fleet.agents.values():
            agent.send_heartbeat()
        await fleet.settle()
        assert fleet.job.attempt == 1
        again_at = max(fleet.agents["a"].steps.values())
        fleet.clock.now_s += 2.0
        for agent in fleet.agents.values():
            agent.complete(9)
        await fleet.settle()
        fleet.clock.now_s += 1.0
        assert again_at < 9
        assert seconds(fleet) == pytest.approx({"start": 0.6, "train": 61, "detect": 5, "recompute": 2})
        assert fleet.job.history[0]["lost_gpu_s"] == pytest.approx(4 * 5.0)

    run(scenario)


def test_a_stop_of_the_jobs_traffic_restarts_it_after_ten_minutes():
    async def scenario():
        fleet = Fleet("ab")
        await fleet.form()
        job = fleet.controller.jobs["j"]
        for agent in fleet.agents.values():
            agent.complete(4)  # so that there is a checkpoint to resume from
        stop = hang(rank=-1, certain=False, details={"condition": "unknown"})  # as hub.traffic_stop has it
        stop = dataclasses.replace(stop, subject_type="job", subject="j")
        for passed_s in (0, *[5] * 120, 1):
            assert fleet.job.phase is Phase.RUNNING
            fleet.clock.now_s += passed_s
            for agent in fleet.agents.values():
                agent.send_heartbeat()
            job.observe([], [stop])
            await fleet.settle()
        assert fleet.journal.last("recovery")["detail"]["cause"] == "hang"
        assert fleet.job.attempt == 1

    run(scenario)


@pytest.mark.parametrize("change", [{"attempt": 7}, {"kind": "straggler"}])
def test_findings_of_another_attempt_and_of_other_kinds_stop_nothing(change):
    async def scenario():
        fleet = Fleet("ab")
        await fleet.form()
        fleet.controller.jobs["j"].observe([dataclasses.replace(hang(rank=1), **change)])
        await fleet.settle()
        assert (fleet.job.phase, fleet.job.attempt) == (Phase.RUNNING, 0)

    run(scenario)


def test_a_hang_that_may_be_a_pause_stops_the_job_only_after_the_patience():
    async def scenario():
        fleet = Fleet("ab", policy=Policy(hang_patience_s=100))
        await fleet.form()
        job = fleet.controller.jobs["j"]
        for agent in fleet.agents.values():
            agent.complete(4)  # so that there is a checkpoint to resume from
        pause = hang(rank=1, certain=False)
        job.observe([pause], [pause])
        await fleet.settle()
        assert fleet.job.phase is Phase.RUNNING
        assert job.snapshot().pending_hang.rank == 1
        for passed_s in (*[5] * 20, 1):
            assert fleet.job.phase is Phase.RUNNING
            fleet.clock.now_s += passed_s
            for agent in fleet.agents.values():
                agent.send_heartbeat()
            job.observe([], [pause])
        await fleet.settle()
        assert fleet.journal.last("recovery")["detail"]["cause"] == "hang"
        assert job.snapshot().pending_hang is None

    run(scenario)


def test_a_job_without_a_checkpoint_is_told_and_not_stopped():
    async def scenario():
        fleet = Fleet("ab", policy=Policy(hang_patience_s=1))
        await fleet.form()
        for agent in fleet.agents.values():
            agent.held = ()
            agent.send_heartbeat()
        pause = hang(rank=1, certain=False)
        job = fleet.controller.jobs["j"]
        for _ in range(5):
            fleet.clock.now_s += 2
            for agent in fleet.agents.values():
                agent.send_heartbeat()
            job.observe([], [pause])
            await fleet.settle()
        assert (fleet.job.phase, fleet.job.attempt) == (Phase.RUNNING, 0)
        assert job.snapshot().pending_hang.act_at_ns is None
        assert job.snapshot().time_use.total_ns[Use.DETECT] >= 8 * 10**9

    run(scenario)


def test_a_new_hub_leaves_a_job_alone_as_long_as_a_person_said():
    async def scenario():
        before = Fleet("ab")
        await before.form()
        wait = HangDecision(what="wait", reason="I stop a rank by hand", actor="ann", seconds=60)
        before.controller.decide_hang("j", wait)
        fleet = Fleet("", memory=before.memory)
        for node_rank, name in enumerate("ab"):
            pid = before.agents[name].hello.pid
            fleet.agents[name] = fleet.join(name, attempt=0, node_rank=node_rank, pid=pid)
        await fleet.settle()
        job = fleet.controller.jobs["j"]
        job.observe([hang(rank=1)])
        await fleet.settle()
        assert fleet.job.phase is Phase.RUNNING
        assert fleet.job.pending_hang.why == "ann said to wait. Then the job is restarted."
        job.decide_hang(HangDecision(what="now", reason="enough", actor="ann"))
        await fleet.settle()
        kept = fleet.memory.recall("j").hangs
        assert (kept.actor, dict(kept.restarts)) == ("", {"": 1})

    run(scenario)


def test_a_person_decides_what_happens_to_a_pending_hang():
    async def scenario():
        fleet = Fleet("ab", policy=Policy(hang_patience_s=1000))
        await fleet.form()
        controller, job = fleet.controller, fleet.controller.jobs["j"]
        with pytest.raises(UsageError, match="no pending hang"):
            controller.decide_hang("j", HangDecision(what="now", reason="r", actor="ann"))
        with pytest.raises(UsageError, match="jobs here: j"):
            controller.pending_hang("q")
        job.observe([hang(rank=1, certain=False)])
        wait = HangDecision(what="wait", reason="debugging", actor="ann", seconds=60)
        assert controller.decide_hang("j", wait, dry_run=True)["can_do"]
        assert "hang_decision" not in fleet.journal.kinds()
        answer = controller.decide_hang("j", wait)["pending_hang"]
        assert answer["why"].startswith("ann said to wait.")
        assert answer["act_at_ns"] >= job.snapshot().now_ns + 60 * 10**9
        job.observe([hang(rank=1)])
        assert job.snapshot().phase is Phase.RUNNING
        assert job.snapshot().pending_hang.why == "ann said to wait. Then the job is restarted."
        controller.decide_hang("j", HangDecision(what="now", reason="enough", actor="ann"))
        await fleet.settle()
        assert fleet.journal.last("recovery")["detail"]["cause"] == "hang"
        event = fleet.journal.last("hang_decision")
        assert (event["actor"], event["rank"], event["detail"]["reason"]) == ("ann", 1, "enough")

    run(scenario)


def test_a_hang_that_is_still_open_while_the_job_stops_for_it_counts_once():
    async def scenario():
        fleet = Fleet("ab")
        await fleet.form()
        job, hung = fleet.controller.jobs["j"], hang(rank=1, details={"place": "f"})
        fleet.agents["a"].mute = (Stop,)
        job.observe([hung])
        await fleet.settle()
        for _ in range(3):
            assert fleet.job.phase is Phase.SUSPENDING
            job.observe([], [hung])
            await fleet.settle()
        assert job._state.hangs.kept().restarts == {"f": 1}

    run(scenario)


def test_a_job_that_hangs_in_every_attempt_is_given_up_after_its_restarts():
    async def scenario():
        fleet = Fleet("ab", max_restarts=2)
        await fleet.form()
        job = fleet.controller.jobs["j"]
        for attempt in range(3):
            assert fleet.job.attempt == attempt
            job.observe([hang(rank=1, attempt=attempt)])
            await fleet.wait_for_launch()
        assert (fleet.job.phase, fleet.job.attempt) == (Phase.FAILED, 2)
        assert "2 restarts are used up" in fleet.job.failure

    run(scenario)


def test_a_script_that_writes_by_itself_is_restarted_with_the_names_of_its_files():
    async def scenario():
        fleet = Fleet("ab")
        await fleet.form()
        for step in (4, 9):
            own = OwnCheckpoint(step=step, bytes=7, path=f"/c/{step}.pt", written_ns=step)
            fleet.agents["a"].writes(own)
        assert fleet.job.own_checkpoint.step == 9
        fleet.agents["b"].rank_exits(3, -9)
        await fleet.settle()
        told = fleet.of("b", Start)[-1].own_checkpoints
        assert [own.path for own in told] == ["/c/9.pt", "/c/4.pt"]

    run(scenario)


def test_a_connection_that_is_away_for_seconds_stops_no_job_that_trains_on():
    """A firewall has reset it, and the first packet of the next one was lost."""

    async def scenario():
        fleet = Fleet()
        await fleet.form()
        fleet.agents["b"].drop(moves=True)
        for _ in range(2):
            await fleet.settle(1.0)
            fleet.agents["a"].send_heartbeat()
        fleet.agents["b"].reconnect(attempt=0, node_rank=1)
        await fleet.settle(2.0)
        assert (fleet.job.phase, fleet.job.attempt) == (Phase.RUNNING, 0)

    run(scenario)


def test_one_that_stays_away_is_lost_also_where_the_others_move():
    async def scenario():
        fleet = Fleet("abz")
        await fleet.form()
        fleet.agents["b"].drop(moves=True)
        for _ in range(6):
            await fleet.settle(1.0)
            for name in "az":
                fleet.agents[name].send_heartbeat()
        assert fleet.node("b").state is NodeState.LOST
        assert fleet.job.attempt == 1

    run(scenario)
