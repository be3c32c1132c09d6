"""When a job replays a part of training, and what follows, against fake agents."""

import asyncio

import pytest

from pulsetrain.protocol.messages import HostStore, Leave, PairCheck, ReplayCheck, Stop
from pulsetrain.recovery import replays
from pulsetrain.recovery.move_request import MoveRequest
from pulsetrain.recovery.policy import Policy
from pulsetrain.recovery.transitions import Phase
from tests.recovery.fakes import Fleet, Observed, run

QUICK = {"hang_patience_s": 0, "pause_patience_s": 0, "restart_wait_s": 0, "evictions_per_hour": 9}


def fleet(nodes="abcdef", nnodes=5, **policy):
    return Fleet(nodes, nnodes, Policy(**{**QUICK, **policy}))


async def faults(site, times):
    """A hang that names nobody, so many times."""
    await site.form()
    for _ in range(times):
        attempt = site.job.attempt
        for agent in site.agents.values():
            agent.complete(9 + attempt, peer_of=range(10)) if agent.steps else None
        found = Observed(kind="hang", subject="j", subject_type="job", attempt=attempt)
        site.controller.jobs["j"].observe((), [found])
        for _ in range(4):
            await site.settle()


def replayed(site):
    return [e["detail"] for e in site.journal.events if e["kind"] == "replay"]


def commands(site, node):
    return [c for c in site.of(node, ReplayCheck) if c.timeout_s]


def test_the_first_time_nothing_is_replayed():
    async def scenario():
        site = fleet()
        await faults(site, 1)
        assert not replayed(site)
        assert site.job.phase is Phase.RUNNING

    run(scenario)


def test_the_second_time_all_nodes_replay_in_two_groupings_and_the_job_goes_on():
    async def scenario():
        site = fleet(replay_s=7.0)
        await faults(site, 2)
        (detail,) = replayed(site)
        assert (detail["named"], detail["reason"]) == ({}, "the fault did not come again")
        assert (detail["what"], detail["group_nodes"], detail["groups"]) == ("own", 2, 6)
        assert [c.members for c in commands(site, "a")] == [("a", "b"), ("a", "d")]
        assert {(c.seconds, c.timeout_s, c.store_port) for c in commands(site, "f")} == {(7.0, 67.0, 4242)}
        assert {c.job for c in site.of("a", HostStore)} >= {"replay"}
        assert site.job.phase is Phase.RUNNING
        assert not any(site.of(node, Leave) for node in "abcdef")

    run(scenario)


def test_a_node_with_which_training_fails_is_replaced():
    async def scenario():
        site = fleet()
        for agent in site.agents.values():
            agent.replay_fails_with = {"c"}
        await faults(site, 2)
        (detail,) = replayed(site)
        assert list(detail["named"]) == ["c"]
        assert "loss is nan" in detail["named"]["c"]
        assert site.of("c", Leave)
        assert "c" not in [member.node for member in site.job.world]
        assert site.job.phase is Phase.RUNNING
        assert site.memory.values["j", "restarts"].unexplained == 0

    run(scenario)


def test_where_every_group_fails_nobody_is_evicted():
    async def scenario():
        site = fleet()
        for agent in site.agents.values():
            agent.replay_fails_with = {*"abcdef"}
        await faults(site, 2)
        (detail,) = replayed(site)
        assert detail["named"] == {}
        assert "every group failed" in detail["reason"]
        assert not any(site.of(node, Leave) for node in "abcdef")

    run(scenario)


def test_where_the_checks_found_somebody_nothing_is_replayed():
    async def scenario():
        site = fleet()
        await faults(site, 1)
        site.agents["b"].sick = True
        await faults_again(site)
        assert not replayed(site)
        assert site.of("b", Leave)

    async def faults_again(site):
        found = Observed(kind="hang", subject="j", subject_type="job", attempt=site.job.attempt)
        site.controller.jobs["j"].observe((), [found])
        for _ in range(4):
            await site.settle()

    run(scenario)


def test_members_that_wait_for_one_that_failed_are_ended(monkeypatch):
    monkeypatch.setattr(replays, "FAILED_TOGETHER_S", 0.01)

    async def scenario():
        site = fleet("abcd", 4)
        site.agents["a"].replay_fails_with = {"a"}
        for node in "bcd":
            site.agents[node].waits_in_replay = {"a"}
        await faults(site, 2)
        while not replayed(site):
            await site.settle()
        assert [c.timeout_s > 0 for c in site.of("b", ReplayCheck)] == [True, False, True]
        assert [c.timeout_s > 0 for c in site.of("d", ReplayCheck)] == [True, True]
        assert list(replayed(site)[0]["named"]) == ["a"]
        assert {row["error"] for row in replayed(site)[0]["failed"]} == {
            "a: rank 0: loss is nan beside ['a']"
        }

    run(scenario)


@pytest.mark.parametrize(
    ("policy", "kinds"),
    [({"replay_s": 0.0}, set()), ({"replay_nodes": 3}, {"replay_skipped"})],
)
def test_a_site_may_want_none_or_larger_groups_than_there_are_nodes_for(policy, kinds):
    async def scenario():
        site = fleet(**policy)
        await faults(site, 2)
        told = {e["kind"] for e in site.journal.events if e["kind"].startswith("replay")}
        assert told == kinds
        assert not commands(site, "a")
        assert site.job.phase is Phase.RUNNING

    run(scenario)


def test_a_command_is_replayed_where_all_agents_have_it():
    async def scenario():
        site = Fleet("abcd", 4, Policy(**QUICK), replays="command")
        await faults(site, 2)
        assert replayed(site)[0]["what"] == "command"
        assert {(c.command, c.timeout_s) for c in commands(site, "a")} == {(True, 120.0)}

    run(scenario)


def test_an_agent_that_knows_no_replay_takes_no_part():
    async def scenario():
        site = fleet("abcdef", 5)
        site.agents["f"].drop()
        site.agents["f"].reconnect(replays="")
        await faults(site, 2)
        assert replayed(site)[0]["nodes"] == [*"abcde"]
        assert not site.of("f", ReplayCheck)
        assert site.of("f", PairCheck)

    run(scenario)


def test_a_node_that_a_replay_named_is_replaced_also_where_the_script_raised_by_itself():
    async def scenario():
        site = fleet()
        for agent in site.agents.values():
            agent.replay_fails_with = {"c"}
        await site.form()
        for attempt in range(2):
            site.agents["a"].rank_exits(0, 1, lines=("FloatingPointError: loss is nan",))
            while site.job.fault is None:
                await asyncio.sleep(0)
            crash = Observed(kind="crash", subject="0", attempt=attempt, details={"blame": {"user": 0.9}})
            site.controller.jobs["j"].observe([crash], ())
            for _ in range(4):
                await site.wait_for_launch()
        assert list(replayed(site)[0]["named"]) == ["c"]
        assert site.of("c", Leave)

    run(scenario)


def test_a_node_whose_gpu_others_use_is_not_named():
    async def scenario():
        site = fleet()
        for agent in site.agents.values():
            agent.replay_fails_with, agent.replay_says = {"c"}, "not_judged"
            agent.replay_error = "OutOfMemoryError: CUDA out of memory."
        await faults(site, 2)
        (detail,) = replayed(site)
        assert (detail["named"], detail["failed"]) == ({}, [])
        assert "CUDA out of memory" in detail["not_judged"]["c"]
        assert detail["reason"] == "the fault did not come again. Nothing is known of c"
        assert not site.of("c", Leave)

    run(scenario)


def test_processes_that_wait_to_go_on_are_ended_first():
    """They hold memory of their GPUs."""

    async def scenario():
        site = fleet("abcd", 4)
        for agent in site.agents.values():
            agent.parks = True
        await faults(site, 2)
        order = [c for c in site.agents["a"].commands if isinstance(c, Stop | ReplayCheck)]
        first = next(i for i, c in enumerate(order) if isinstance(c, ReplayCheck))
        assert [c.keep for c in order[:first]] == [True, True, False]
        assert site.journal.last("survivors")["detail"]["none_kept"] == "training was replayed"

    run(scenario)


def test_a_node_on_the_hubs_own_machine_hosts_no_store_for_others():
    """Its address is that of loopback. What others find there is their own machine."""

    async def scenario():
        site = Fleet("", 4, Policy(**QUICK))
        addresses = {"a": "127.0.0.1", "b": "10.0.0.2", "c": "10.0.0.3", "d": "10.0.0.4"}
        site.agents = {name: site.join(name, address=where) for name, where in addresses.items()}
        await faults(site, 2)
        assert {c.store_address for c in commands(site, "a")} == {"10.0.0.2", "10.0.0.3"}
        assert {c.store_address for c in commands(site, "d")} == {"10.0.0.3", "10.0.0.4"}

    run(scenario)


@pytest.mark.parametrize(("takes_s", "named"), [(20.0, ["c"]), (30.0, [])])
def test_running_out_of_time_counts_where_others_were_three_times_as_quick(takes_s, named):
    async def scenario():
        site = fleet(replay_s=20.0)
        for agent in site.agents.values():
            agent.replay_fails_with, agent.replay_says, agent.replay_takes_s = {"c"}, "late", takes_s
        await faults(site, 2)
        (detail,) = replayed(site)
        assert list(detail["named"]) == named
        assert ("c" in detail["not_judged"]) == (not named)

    run(scenario)


def test_a_node_that_leaves_meanwhile_is_not_judged_and_nor_are_its_companions():
    async def scenario():
        site = fleet()
        for name in "abdef":
            site.agents[name].replay_fails_with = {"c"}
        site.agents["c"].leaves()
        await faults(site, 2)
        for detail in replayed(site):
            assert detail["named"] == {}

    run(scenario)


def test_who_wants_to_stop_the_job_does_not_wait_for_the_replay(monkeypatch):
    monkeypatch.setattr(replays, "LOOK_S", 0.01)

    async def scenario():
        site = fleet("abcd", 4)
        for agent in site.agents.values():
            agent.waits_in_replay = {*"abcd"}
        await faults(site, 2)
        assert commands(site, "a")
        assert not replayed(site)
        site.controller.move("j", MoveRequest(what="preempt", actor="ada", reason="later"))
        while not replayed(site):
            await site.settle(0.1)
        assert replayed(site)[0]["reason"] == "the job is to stop or to move"
        assert [c.timeout_s > 0 for c in site.of("a", ReplayCheck)] == [True, False]

    run(scenario)


def test_a_node_whose_place_nobody_can_take_stays():
    async def scenario():
        site = fleet("abcdef", 6)
        for agent in site.agents.values():
            agent.replay_fails_with = {"c"}
        await faults(site, 2)
        assert list(replayed(site)[0]["named"]) == ["c"]
        assert not site.of("c", Leave)
        assert "no other node" in site.journal.last("eviction_deferred")["detail"]["why_not"]
        assert site.job.phase is Phase.RUNNING

    run(scenario)


def test_faults_that_are_days_apart_are_no_second_time():
    async def scenario():
        site = fleet()
        await faults(site, 1)
        site.clock.now_s += 2 * 86400
        for name in site.agents:
            site.agents[name].send_heartbeat()
        await one_more(site)
        assert not replayed(site)
        await one_more(site)
        assert len(replayed(site)) == 1

    async def one_more(site):
        found = Observed(kind="hang", subject="j", subject_type="job", attempt=site.job.attempt)
        site.controller.jobs["j"].observe((), [found])
        for _ in range(4):
            await site.settle()

    run(scenario)
