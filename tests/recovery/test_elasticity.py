"""A job of --nnodes MIN:MAX loses nodes, goes on with the rest, and grows when they are back."""

import pytest

from pulsetrain.core.errors import UsageError
from pulsetrain.protocol.messages import Held, OwnCheckpoint, SaveFrom, SelfCheck, Start, Stop
from pulsetrain.recovery import actions
from pulsetrain.recovery.policy import Policy
from pulsetrain.recovery.resizing_view import resizing_row
from pulsetrain.recovery.transitions import Phase
from tests.recovery.fakes import Fleet, run

POLICY = Policy(shrink_wait_s=3.0, grow_after_s=2.0)


def fleet_of(nodes, sizes=(1, 1), **options):
    return Fleet(nodes, nnodes=len(nodes), sizes=sizes, policy=POLICY, **options)


def saved(fleet, step, *, nodes=None, replicated=True):
    """Every rank of these nodes has done `step` and holds it."""
    world = fleet.job.world_size
    for name in nodes or [m.node for m in fleet.job.world]:
        agent = fleet.agents[name]
        agent.steps = dict.fromkeys(agent.steps, step)
        fields = {"tier": "memory", "world": world, "attempt": agent.attempt, "replicated": replicated}
        agent.held = tuple(Held(rank=r, step=s, **fields) for r in agent.steps for s in (step - 1, step))
        agent.send_heartbeat()


async def lose(fleet, *names):
    for name in names:
        fleet.agents[name].drop()
    await fleet.settle(0.5)
    await fleet.settle(0.6)
    await fleet.settle(0.0)


async def later(fleet, seconds):
    """Time passes, and connected agents send their heartbeats."""
    for _ in range(int(seconds / 0.5)):
        for agent in fleet.agents.values():
            if agent.node.connected:
                agent.send_heartbeat()
        await fleet.settle(0.5)


def nodes_of(fleet):
    return [member.node for member in fleet.job.world]


def test_a_clock_that_is_set_forward_makes_no_job_smaller():
    async def scenario():
        fleet = fleet_of("abcd")
        await fleet.form()
        saved(fleet, 9)
        await lose(fleet, "b")
        fleet.clock.ahead_s = 400.0
        await fleet.settle(0.5)
        assert fleet.job.phase is Phase.WAITING

    run(scenario)


def test_a_job_that_lost_a_node_waits_and_then_goes_on_with_the_rest_in_their_order():
    async def scenario():
        fleet = fleet_of("abcd")
        await fleet.form()
        saved(fleet, 9)
        await lose(fleet, "b")
        assert fleet.job.phase is Phase.WAITING
        await fleet.settle(2.0)
        assert fleet.job.phase is Phase.WAITING
        await fleet.settle(1.1)
        assert fleet.job.phase is Phase.RUNNING
        assert nodes_of(fleet) == ["a", "c", "d"]
        assert [m.node_rank for m in fleet.job.world] == [0, 1, 2]
        start = fleet.of("c", Start)[-1]
        assert (start.restore_step, start.replica_attempt) == (9, 0)
        assert start.sources == {"2": "memory", "3": "memory"}
        told = fleet.journal.last("shrink")["detail"]
        assert (told["from"], told["to"], told["left"], told["to_ranks"]) == (4, 3, ["b"], 6)
        assert told["stood_gpu_s"] == pytest.approx(told["stood_s"] * 6, abs=0.1)

    run(scenario)


def test_what_is_told_of_units_of_unequal_size_is_what_is_launched():
    async def scenario():
        fleet = fleet_of("abcdefgh", sizes=(4, 4, 3))
        await fleet.form()
        saved(fleet, 9)
        await lose(fleet, "b", "c", "d")
        await fleet.settle(3.1)
        assert fleet.job.phase is Phase.RUNNING
        assert nodes_of(fleet) == ["e", "f", "g", "h"]
        assert fleet.journal.last("shrink")["detail"]["left"] == ["a", "b", "c", "d"]

    run(scenario)


def test_a_standby_that_comes_in_time_keeps_the_size():
    async def scenario():
        fleet = fleet_of("ab")
        await fleet.form()
        saved(fleet, 9)
        await lose(fleet, "b")
        fleet.agents["z"] = fleet.join("z")
        await fleet.settle(0.3)
        await fleet.settle(0.6)
        assert nodes_of(fleet) == ["a", "z"]
        assert "shrink" not in fleet.journal.kinds()

    run(scenario)


def test_fewer_nodes_than_the_minimum_wait():
    async def scenario():
        fleet = fleet_of("abc", sizes=(2, 1))
        await fleet.form()
        saved(fleet, 9)
        await lose(fleet, "b", "c")
        await later(fleet, 60)
        assert fleet.job.phase is Phase.WAITING
        assert resizing_row(fleet.job)["missing_nodes"] == 1
        fleet.agents["z"] = fleet.join("z")
        await fleet.settle(0.1)
        await fleet.settle(0.6)
        assert nodes_of(fleet) == ["a", "z"]

    run(scenario)


def test_only_whole_units_are_used():
    async def scenario():
        fleet = fleet_of("abcd", sizes=(2, 2))
        await fleet.form()
        saved(fleet, 9)
        await lose(fleet, "a")
        await fleet.settle(3.0)
        assert nodes_of(fleet) == ["b", "c"]
        assert fleet.node("d").state == "standby"

    run(scenario)


def test_a_unit_that_may_be_incomplete_goes_on_without_the_lost_node_and_says_what_that_is_worth():
    async def scenario():
        fleet = fleet_of("abcdefgh", sizes=(4, 4, 3))
        await fleet.form()
        saved(fleet, 9)
        await lose(fleet, "b")
        await fleet.settle(3.1)
        assert nodes_of(fleet) == list("efghacd")
        told = fleet.journal.last("shrink")["detail"]
        assert (told["from"], told["to"], told["units"]) == (8, 7, [4, 3])
        assert (told["worth_replicas"], told["whole_replicas"]) == (1.75, 1.0)
        assert fleet.of("a", Start)[-1].node_rank == 4

    run(scenario)


def test_what_cannot_be_restored_on_fewer_nodes_waits_and_says_why():
    async def scenario():
        fleet = fleet_of("ab")
        await fleet.form()
        saved(fleet, 9, replicated=False)
        await lose(fleet, "b")
        await later(fleet, 20)
        assert fleet.job.phase is Phase.WAITING
        assert "replicated=True" in resizing_row(fleet.job)["why_not"]
        assert fleet.journal.kinds().count("resize_refused") == 1

    run(scenario)


def test_nodes_that_are_lost_before_the_first_step_do_not_use_up_the_attempts():
    async def scenario():
        fleet = fleet_of("abcd")
        await fleet.form()
        saved(fleet, 9)
        for agent in fleet.agents.values():
            agent.stepless = True
        for lost in "dcb":
            await lose(fleet, lost)
            await fleet.wait_for_launch()
            await later(fleet, 4)
        assert nodes_of(fleet) == ["a"]
        fleet.agents["a"].rank_exits(0, 1)
        await later(fleet, 10)
        assert fleet.job.phase is Phase.RUNNING

    run(scenario)


@pytest.mark.parametrize("sizes", [(2, 1), (4, 1)], ids=["elastic", "fixed"])
def test_a_node_that_is_back_in_its_place_is_counted_once(sizes):
    async def scenario():
        fleet = fleet_of("abcd", sizes=sizes)
        await fleet.form()
        saved(fleet, 9)
        await lose(fleet, "b", "c", "d")
        assert fleet.job.phase is Phase.WAITING
        fleet.agents["d"] = fleet.join("d", pid=77)
        fleet.agents["c"] = fleet.join("c", pid=78)
        await later(fleet, 10)
        names = nodes_of(fleet)
        assert len(names) == len(set(names))
        if sizes[0] == 4:
            assert fleet.job.phase is Phase.WAITING
        else:
            assert sorted(names) == ["a", "c", "d"]
            assert fleet.job.phase is Phase.RUNNING

    run(scenario)


def sharded(fleet, step):
    """Every rank has saved its part: two parts, and each node has both."""
    world = fleet.job.world_size
    for agent in fleet.agents.values():
        agent.steps = dict.fromkeys(agent.steps, step)
        fields = {"tier": "memory", "world": world, "attempt": agent.attempt}
        agent.held = tuple(Held(rank=r, step=step, shard=1 + r % 2, **fields) for r in agent.steps)
        agent.send_heartbeat()


def test_a_sharded_job_goes_on_with_the_replica_that_is_left():
    async def scenario():
        fleet = fleet_of("ab")
        await fleet.form()
        sharded(fleet, 9)
        await lose(fleet, "a")
        await fleet.settle(3.0)
        assert nodes_of(fleet) == ["b"]
        start = fleet.of("b", Start)[-1]
        assert (start.restore_step, start.saved_attempt, start.saved_world) == (9, 0, 4)
        assert (start.shards, start.copies) == ({"2": "peer:b", "3": "peer:b"}, {"2": 1, "3": 2})

    run(scenario)


def test_a_node_that_stands_by_gives_what_it_has():
    async def scenario():
        fleet = fleet_of("abcd", sizes=(2, 2))
        await fleet.form()
        for agent in fleet.agents.values():
            first, fields = min(agent.steps), {"tier": "memory", "world": 8, "attempt": 0}
            agent.held = tuple(Held(rank=r, step=9, shard=1 + r // 2, **fields) for r in agent.steps)
            agent.held += (
                Held(rank=first ^ 2, step=9, shard=1 + (first ^ 2) // 2, **fields | {"tier": "peer"}),
            )
            agent.send_heartbeat()
        await lose(fleet, "a")
        await fleet.settle(3.0)
        assert nodes_of(fleet) == ["b", "c"]
        start = fleet.of("b", Start)[-1]
        assert start.shards["6"] == "peer:d"
        assert [(node.node, node.node_rank) for node in start.holders] == [("d", -1)]

    run(scenario)


def test_a_part_that_nobody_has_any_more_is_waited_for():
    async def scenario():
        fleet = fleet_of("ab")
        await fleet.form()
        for agent in fleet.agents.values():
            fields = {"tier": "memory", "world": 4, "attempt": 0}
            agent.held = tuple(Held(rank=r, step=9, shard=1 + r, **fields) for r in agent.steps)
            agent.send_heartbeat()
        await lose(fleet, "b")
        await later(fleet, 20)
        assert fleet.job.phase is Phase.WAITING
        assert "in no memory that is left" in resizing_row(fleet.job)["why_not"]

    run(scenario)


def test_a_job_whose_agents_cannot_put_it_together_keeps_its_size():
    async def scenario():
        fleet = fleet_of("ab")
        await fleet.form()
        sharded(fleet, 9)
        fleet.agents["b"].not_reshardable = "ranks 0 and 2 have saved different content as w"
        await lose(fleet, "a")
        await later(fleet, 30)
        assert fleet.job.phase is Phase.WAITING
        assert len(fleet.job.world) == 2
        assert "different content as w" in resizing_row(fleet.job)["why_not"]
        fleet.agents["a"] = fleet.join("a", pid=77)
        fleet.agents["b"].held += tuple(Held(rank=r, step=9, tier="peer", world=4, attempt=0) for r in (0, 1))
        await later(fleet, 5)
        assert nodes_of(fleet) == ["a", "b"]
        assert fleet.job.phase is Phase.RUNNING

    run(scenario)


def test_a_job_whose_ranks_cannot_take_their_part_goes_back_to_its_size():
    async def scenario():
        fleet = fleet_of("ab")
        await fleet.form()
        sharded(fleet, 9)
        fleet.agents["b"].stepless = True
        await lose(fleet, "a")
        await later(fleet, 3)
        assert nodes_of(fleet) == ["b"]
        attempt = fleet.job.attempt
        fleet.agents["b"].rank_exits(0, 1, not_reshardable="seen: saved as (4,), wanted as (2,)")
        await later(fleet, 30)
        assert fleet.job.attempt <= attempt + 1
        assert (fleet.job.phase, len(fleet.job.world)) == (Phase.WAITING, 2)
        assert "wanted as (2,)" in resizing_row(fleet.job)["why_not"]
        fleet.agents["b"].stepless = False
        fleet.agents["a"] = fleet.join("a", pid=77)
        fleet.agents["b"].held += tuple(Held(rank=r, step=9, tier="peer", world=4, attempt=0) for r in (0, 1))
        await later(fleet, 5)
        assert (nodes_of(fleet), fleet.job.phase) == (["a", "b"], Phase.RUNNING)

    run(scenario)


@pytest.mark.parametrize(("code", "tries"), [(2, 1), (1, 3)], ids=["usage", "error"])
@pytest.mark.parametrize("save", [saved, sharded], ids=["replicated", "sharded"])
def test_a_job_whose_ranks_always_fail_at_another_size_goes_back_to_its_size(code, tries, save):
    async def scenario():
        fleet = fleet_of("ab", max_restarts=0)
        await fleet.form()
        save(fleet, 9)
        b = fleet.agents["b"]
        b.stepless = True
        await lose(fleet, "a")
        for _ in range(tries):
            await later(fleet, 5)
            await fleet.wait_for_launch()
            assert (nodes_of(fleet), fleet.job.phase) == (["b"], Phase.RUNNING)
            b.rank_exits(0, code, ("train.py: error: --batch must divide by the number of ranks",))
        await later(fleet, 30)
        assert (fleet.job.phase, len(fleet.job.world)) == (Phase.WAITING, 2)
        assert "--batch must divide" in resizing_row(fleet.job)["why_not"]
        b.stepless = False
        fleet.agents["a"] = fleet.join("a", pid=77)
        b.held += tuple(Held(rank=r, step=9, tier="peer", world=4, attempt=0) for r in (0, 1))
        await later(fleet, 5)
        assert (nodes_of(fleet), fleet.job.phase) == (["a", "b"], Phase.RUNNING)

    run(scenario)


def test_a_job_that_grew_to_where_its_ranks_fail_trains_on_at_its_size_and_is_given_up_if_it_fails_there():
    async def scenario():
        fleet = await shrunk()
        saved(fleet, 15)
        fleet.agents["b"] = fleet.join("b", pid=77)
        for agent in fleet.agents.values():
            agent.stepless = True
        await later(fleet, 3)
        assert nodes_of(fleet) == ["a", "b"]
        fleet.agents["a"].stepless = False
        fleet.agents["b"].rank_exits(2, 2)
        await later(fleet, 30)
        assert (nodes_of(fleet), fleet.job.phase) == (["a"], Phase.RUNNING)
        fleet.agents["a"].rank_exits(0, 2)
        await later(fleet, 5)
        assert fleet.job.phase is Phase.FAILED

    run(scenario)


def test_a_size_that_ranks_refuse_is_given_up_for_a_smaller_one():
    async def scenario():
        fleet = fleet_of("abcd")
        await fleet.form()
        sharded(fleet, 9)
        for agent in fleet.agents.values():
            agent.stepless = True
        await lose(fleet, "d")
        await later(fleet, 3)
        assert nodes_of(fleet) == ["a", "b", "c"]
        for agent in fleet.agents.values():
            agent.stepless = False
        fleet.agents["b"].rank_exits(2, 1, not_reshardable="heads: 3 does not divide 8")
        await later(fleet, 30)
        assert fleet.job.phase is Phase.RUNNING
        assert nodes_of(fleet) == ["a", "b"]

    run(scenario)


@pytest.mark.parametrize(("parks", "world"), [(True, ["a", "b"]), (False, ["a", "b", "c"])])
def test_a_job_whose_healthy_ranks_kept_their_processes_hardly_waits_for_a_standby(parks, world):
    async def scenario():
        fleet = fleet_of("abc")
        await fleet.form()
        saved(fleet, 9)
        for agent in fleet.agents.values():
            agent.parks = parks
        await lose(fleet, "c")
        await fleet.settle(0.3)
        assert fleet.job.phase is Phase.WAITING
        await fleet.settle(0.4)
        assert nodes_of(fleet) == world
        await later(fleet, 4)
        assert (nodes_of(fleet), fleet.job.phase) == (["a", "b"], Phase.RUNNING)

    run(scenario)


async def two_of_four_lost(*, stored):
    """Each rank has a part of its own in memory, of step 900. Steps take about ten seconds."""
    fleet = fleet_of("abcd")
    await fleet.form()
    for step in (898, 899, 900):
        for agent in fleet.agents.values():
            agent.steps = dict.fromkeys(agent.steps, step)
        await later(fleet, 11)
    for agent in fleet.agents.values():
        agent.held = tuple(
            Held(rank=r, step=at, tier=tier, shard=1 + r, world=8, attempt=0)
            for r in agent.steps
            for at, tier in ((stored, "storage"), (900, "memory"))
        )
        agent.held += tuple(
            Held(rank=r, step=stored, tier="storage", shard=1 + r, world=8, attempt=0)
            for r in range(8)
            if r not in agent.steps
        )
        agent.send_heartbeat()
    await lose(fleet, "c", "d")
    return fleet


def test_a_job_does_not_shrink_to_an_old_step_while_lost_nodes_with_a_new_one_may_come_back():
    async def scenario():
        fleet = await two_of_four_lost(stored=800)
        await later(fleet, 20)
        assert fleet.job.phase is Phase.WAITING
        assert (fleet.job.state_awaited_of, fleet.job.state_awaited_steps) == (("c", "d"), 100)
        assert fleet.journal.last("state_awaited")["detail"]["lost_steps"] == 100
        for name in "cd":
            assert fleet.job.phase is Phase.WAITING
            held = fleet.agents[name].held
            fleet.agents[name] = fleet.join(name)
            fleet.agents[name].held = held
            await later(fleet, 5)
        assert (fleet.job.phase, nodes_of(fleet)) == (Phase.RUNNING, list("abcd"))
        assert fleet.of("c", Start)[-1].restore_step == 900
        assert "shrink" not in fleet.journal.kinds()

    run(scenario)


@pytest.mark.parametrize(("stored", "seconds"), [(800, 150), (895, 4), (890, 15)])
def test_it_shrinks_once_it_has_waited_for_a_tenth_of_what_is_lost(stored, seconds):
    async def scenario():
        fleet = await two_of_four_lost(stored=stored)
        await later(fleet, seconds)
        assert (fleet.job.phase, nodes_of(fleet)) == (Phase.RUNNING, ["a", "b"])
        assert fleet.of("a", Start)[-1].restore_step == stored

    run(scenario)


async def shrunk(sizes=(1, 1)):
    fleet = fleet_of("ab", sizes=sizes)
    await fleet.form()
    saved(fleet, 9)
    await lose(fleet, "b")
    await fleet.settle(3.0)
    assert nodes_of(fleet) == ["a"]
    return fleet


def test_a_shrunk_job_grows_at_a_saved_step_when_the_node_is_back():
    async def scenario():
        fleet = await shrunk()
        saved(fleet, 15)
        fleet.agents["b"] = fleet.join("b", pid=77)
        await fleet.settle(0.1)
        await fleet.settle(0.0)
        assert nodes_of(fleet) == ["a"]
        await fleet.settle(2.0)
        await fleet.settle(0.0)
        assert nodes_of(fleet) == ["a", "b"]
        assert fleet.job.phase is Phase.RUNNING
        start = fleet.of("b", Start)[-1]
        assert (start.restore_step, start.sources) == (15, {"2": "peer:a", "3": "peer:a"})
        told = fleet.journal.last("grow")["detail"]
        assert (told["from"], told["to"], told["joined"]) == (1, 2, ["b"])
        recovery = fleet.journal.last("recovery")["detail"]
        assert (recovery["cause"], recovery["lost_steps"]) == ("grow", 0)

    run(scenario)


def test_ranks_that_save_seldom_are_asked_to_save_before_the_job_grows():
    async def scenario():
        fleet = await shrunk()
        agent = fleet.agents["a"]
        saved(fleet, 15)
        agent.held = agent.held[:1]
        agent.send_heartbeat()
        fleet.agents["b"] = fleet.join("b", pid=77)
        await fleet.settle(0.1)
        await fleet.settle(2.0)
        asked = fleet.of("a", SaveFrom)[-1].step
        assert asked > 15
        fleet.agents["b"].send_heartbeat()
        await fleet.settle(1.0)
        assert nodes_of(fleet) == ["a"]
        saved(fleet, asked)
        await fleet.settle(0.1)
        await fleet.settle(0.0)
        assert nodes_of(fleet) == ["a", "b"]

    run(scenario)


def test_a_job_without_a_checkpoint_never_stops_to_grow():
    async def scenario():
        fleet = fleet_of("ab")
        await fleet.form()
        await lose(fleet, "b")
        await fleet.settle(3.0)
        assert nodes_of(fleet) == ["a"]
        fleet.agents["b"] = fleet.join("b", pid=77)
        await fleet.settle(0.1)
        stops = len(fleet.of("a", Stop))
        for _ in range(5):
            fleet.agents["a"].complete(20)
            fleet.agents["a"].held = ()
            fleet.agents["a"].send_heartbeat()
            await later(fleet, 30)
        assert len(fleet.of("a", Stop)) == stops
        assert "no checkpoint" in resizing_row(fleet.job)["why_not"]

    run(scenario)


def test_a_job_grows_at_a_newer_step_only_however_long_that_takes():
    async def scenario():
        fleet = await shrunk()
        saved(fleet, 15)
        fleet.agents["a"].steps = dict.fromkeys(fleet.agents["a"].steps, 4000)
        fleet.agents["a"].send_heartbeat()
        fleet.agents["b"] = fleet.join("b", pid=77)
        await fleet.settle(0.1)
        stops = len(fleet.of("a", Stop))
        for _ in range(20):
            await later(fleet, 30)
        assert len(fleet.of("a", Stop)) == stops
        saved(fleet, 4100)
        await fleet.settle(0.1)
        await fleet.settle(0.0)
        assert nodes_of(fleet) == ["a", "b"]

    run(scenario)


def test_a_job_does_not_grow_before_its_script_has_gone_on_from_its_own_checkpoint_once():
    async def scenario():
        fleet = fleet_of("ab")
        await fleet.form()
        own = fleet.controller.jobs["j"]._state.own_checkpoints
        await lose(fleet, "b")
        await fleet.settle(3.0)
        agent = fleet.agents["a"]

        async def writes(step):
            agent.writes(OwnCheckpoint(step=step, bytes=7, path="/c/ckpt.pt", written_ns=step))
            agent.held, agent.steps = (), dict.fromkeys(agent.steps, step + 2)
            agent.send_heartbeat()
            await later(fleet, 30)

        await writes(4)
        fleet.agents["b"] = fleet.join("b", pid=77)
        stops = len(fleet.of("a", Stop))
        for step in (10, 20, 30):
            await writes(step)
        assert len(fleet.of("a", Stop)) == stops
        assert "not known whether its script" in resizing_row(fleet.job)["why_not"]
        own.started(own.newest().attempt + 1, resumed_step=30)
        await writes(40)
        await later(fleet, 5)
        assert len(fleet.of("a", Stop)) > stops

    run(scenario)


def test_a_job_does_not_grow_into_what_an_earlier_attempt_of_that_size_has_stored():
    async def scenario():
        fleet = await shrunk()
        agent = fleet.agents["a"]

        def hold():
            stored = [Held(rank=r, step=5000, tier="storage", world=4, attempt=0) for r in range(4)]
            own = [Held(rank=r, step=15, tier="memory", world=2, attempt=agent.attempt) for r in (0, 1)]
            agent.held = (*own, *stored)
            agent.send_heartbeat()

        hold()
        fleet.agents["b"] = fleet.join("b", pid=77)
        await fleet.settle(0.1)
        stops = len(fleet.of("a", Stop))
        for _ in range(5):
            agent.complete(20)
            hold()
            await later(fleet, 30)
        assert len(fleet.of("a", Stop)) == stops
        assert nodes_of(fleet) == ["a"]
        assert "earlier attempt" in resizing_row(fleet.job)["why_not"]

    run(scenario)


def test_a_node_that_is_lost_again_while_the_job_grows_leaves_a_running_job(monkeypatch):
    monkeypatch.setattr(actions, "POLL_S", 0)  # it waits in real time

    async def scenario():
        fleet = await shrunk()
        saved(fleet, 15)
        fleet.agents["b"] = fleet.join("b", pid=77, mute=(Start,))
        await fleet.settle(0.1)
        await fleet.settle(2.0)
        assert fleet.job.phase is Phase.STARTING
        await lose(fleet, "b")
        await later(fleet, 4.0)
        assert nodes_of(fleet) == ["a"]
        assert fleet.job.phase is Phase.RUNNING
        assert fleet.of("a", Start)[-1].restore_step >= 15

    run(scenario)


def test_a_crash_in_a_shrunk_world_restarts_it_at_once_with_all_that_is_there():
    async def scenario():
        fleet = await shrunk()
        saved(fleet, 15)
        fleet.agents["a"].rank_exits(1, 1)
        await fleet.settle()
        assert fleet.job.phase is Phase.RUNNING
        assert nodes_of(fleet) == ["a"]

    run(scenario)


def test_a_job_begins_with_fewer_nodes_when_no_more_come():
    async def scenario():
        fleet = Fleet("ab", nnodes=4, sizes=(2, 1), policy=POLICY)
        await fleet.settle(1.0)
        assert fleet.job.phase is Phase.FORMING
        await fleet.settle(2.5)
        assert fleet.job.phase is Phase.RUNNING
        assert nodes_of(fleet) == ["a", "b"]

    run(scenario)


def test_agents_of_one_job_must_agree_on_its_sizes():
    async def scenario():
        fleet = fleet_of("ab")
        fleet.sizes = (2, 1)
        with pytest.raises(UsageError, match=r"says --nnodes=2, its job 'j' has 1:2"):
            fleet.join("c")

    run(scenario)


def test_an_eviction_without_a_standby_shrinks_the_job_too():
    async def scenario():
        fleet = fleet_of("ab")
        await fleet.form()
        saved(fleet, 9)
        preview = fleet.controller.preview_eviction("b")
        assert preview["why_not"] == "no standby: the job would go on with 1 node(s)"
        await fleet.controller.evict("b", "it is slow", "ann")
        await fleet.settle()
        await later(fleet, 4.0)
        assert nodes_of(fleet) == ["a"]
        assert fleet.job.phase is Phase.RUNNING

    run(scenario)


def test_a_new_hub_takes_over_a_shrunk_world_and_lets_it_grow():
    async def scenario():
        fleet = Fleet("", nnodes=3, sizes=(1, 1), policy=POLICY)
        for rank, name in enumerate("ab"):
            fleet.agents[name] = fleet.join(name, attempt=4, node_rank=rank, world_nodes=2)
        await fleet.settle(0.1)
        await fleet.settle(0.1)
        assert fleet.job.phase is Phase.RUNNING
        assert (nodes_of(fleet), fleet.job.attempt) == (["a", "b"], 4)

    run(scenario)


def test_a_new_hub_does_not_begin_anew_with_fewer_nodes_than_the_state_needs():
    async def scenario():
        fleet = Fleet("", nnodes=2, sizes=(1, 1), policy=POLICY)
        agent = fleet.agents["a"] = fleet.join("a")
        agent.held = tuple(Held(rank=r, step=9, tier="memory", world=4, attempt=0) for r in (0, 1))
        agent.send_heartbeat()
        await later(fleet, 20)
        assert fleet.job.phase is Phase.FORMING
        assert "replicated=True" in fleet.journal.last("resize_refused")["detail"]["why_not"]

    run(scenario)


def test_a_reason_of_an_earlier_attempt_does_not_keep_the_job_from_shrinking():
    async def scenario():
        fleet = fleet_of("abc")
        await fleet.form()
        await lose(fleet, "c")
        await later(fleet, 4.0)
        fleet.agents["c"] = fleet.join("c", pid=77)
        for agent in fleet.agents.values():
            agent.held = ()
        await later(fleet, 4.0)
        assert "no checkpoint" in resizing_row(fleet.job)["why_not"]
        await lose(fleet, "b")
        assert resizing_row(fleet.job)["why_not"] == ""

    run(scenario)


def test_a_job_that_begins_anew_beside_checkpoints_of_other_ranks_says_so():
    async def scenario():
        fleet = Fleet("ab", policy=POLICY)
        agent = fleet.agents["a"]
        agent.held = tuple(Held(rank=r, step=9, tier="storage", world=8, attempt=0) for r in range(8))
        agent.send_heartbeat()
        await fleet.form()
        told = fleet.journal.last("checkpoint_unfit")["detail"]["why_not"]
        assert told.startswith("checkpoints of 8 ranks do not fit 4")

    run(scenario)


def test_a_node_that_is_lost_while_the_job_is_checked_has_no_probation_and_the_job_grows_to_all():
    async def scenario():
        fleet = fleet_of("abcd")
        await fleet.form()
        saved(fleet, 7)
        fleet.agents["c"].mute = (SelfCheck,)
        await lose(fleet, "d")
        assert len(fleet.of("c", SelfCheck)) == 1
        assert fleet.job.phase is Phase.CHECKING
        await lose(fleet, "c")
        await fleet.wait_for_launch()
        assert "evict" not in fleet.journal.kinds()
        await later(fleet, 4)
        assert [m.node for m in fleet.job.world] == ["a", "b"]
        saved(fleet, 9)
        for name in "cd":
            fleet.agents[name] = fleet.join(name, pid=4242)
        await later(fleet, 4)
        assert {n.cordon for n in fleet.job.nodes} == {""}
        assert sorted(m.node for m in fleet.job.world) == ["a", "b", "c", "d"]

    run(scenario)


@pytest.mark.parametrize("sick", [False, True])
def test_a_node_that_is_back_after_it_lost_its_connection_in_a_check_is_checked_again(sick):
    async def scenario():
        fleet = fleet_of("abcd")
        await fleet.form()
        saved(fleet, 7)
        flickering = fleet.agents["c"]
        flickering.mute = (SelfCheck,)
        await lose(fleet, "d")
        flickering.drop()
        flickering.mute, flickering.sick = (), sick
        flickering.reconnect()
        await fleet.wait_for_launch()
        await later(fleet, 4)
        assert len(fleet.of("c", SelfCheck)) == 2
        assert [m.node for m in fleet.job.world] == (["a", "b"] if sick else ["a", "b", "c"])

    run(scenario)
