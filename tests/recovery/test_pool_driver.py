"""Several jobs share the devices of a pool, against fake agents."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsetrain.core.errors import UsageError
from pulsetrain.protocol.messages import Held, SelfCheck, Start, Stop
from pulsetrain.recovery import actions, pool_driver
from pulsetrain.recovery.move_request import MoveRequest
from pulsetrain.recovery.policy import Policy
from pulsetrain.recovery.pool.config import PoolConfig
from pulsetrain.recovery.pool.decide import Decision, PoolAction
from pulsetrain.recovery.pool_driver import PoolDriver
from pulsetrain.recovery.transitions import Phase
from tests.recovery.fakes import FakeClock, Fleet, run
from tests.recovery.pool.jobs import crowded, job
from tests.recovery.pool.model_jobs import ModelJob
from tests.recovery.test_responses import trouble

SMALL = PoolConfig(devices_per_machine=2, reserve_ratio=0.0, grow_after_s=0.0, pause_s=1.0, wait_s=5.0)


class Pool:
    """Jobs of two devices on each node, on machines of two devices."""

    def __init__(self, config=SMALL, policy=None, sizes=(0, 1)):
        self.fleet = Fleet("", nnodes=1, policy=policy, pool=config, sizes=sizes)
        controller, observe = self.fleet.controller, bool(policy and policy.observe_only)
        self.driver = PoolDriver(controller.jobs, config, self.fleet.clock, observe_only=observe, adopt_s=0.0)
        self.agents = []
        self.step = 0

    def come(self, job, tier, host="h", *, node="", nnodes=1, least=0, **agent):
        self.fleet.nnodes, self.fleet.sizes = nnodes, (least, 1)
        agent = self.fleet.join(
            node or f"{job}-{host}", job=job, tier=tier, host=host, pid=len(self.agents) + 1, **agent
        )
        self.agents.append(agent)
        return agent

    async def pass_(self, seconds=6):
        """Time passes. All ranks that run complete a step each second, and keep the newest two everywhere."""
        for _ in range(seconds):
            self.step += 1
            for agent in self.agents:
                if agent.steps and not agent.stepless:
                    agent.steps = dict.fromkeys(agent.steps, self.step)
                    agent.held = tuple(self._held(agent))
                agent.send_heartbeat()
            await self.fleet.settle(1.0)
            self.driver.look()
            await self.fleet.settle()

    def _held(self, agent):
        ranks = range(4) if self.replicated else agent.steps
        for rank in ranks:
            for step in (self.step - 1, self.step):
                yield Held(
                    rank=rank, step=step, tier="memory", replicated=self.replicated, attempt=agent.attempt
                )

    replicated = False

    def phase(self, job):
        return self.fleet.controller.jobs[job].snapshot().phase

    def world(self, job):
        return sorted(m.node for m in self.fleet.controller.jobs[job].snapshot().world)

    def row(self, job):
        return next(row for row in self.driver.row()["jobs"] if row["job"] == job)

    def actions(self):
        return [(a["what"], a["job"]) for a in self.driver.row()["actions"]]


def test_a_job_starts_once_the_pool_has_room():
    async def scenario():
        pool = Pool()
        pool.come("b", "basic")
        assert pool.phase("b") is Phase.FORMING
        await pool.pass_()
        assert pool.phase("b") is Phase.RUNNING
        pool.come("c", "basic")
        await pool.pass_()
        assert pool.phase("c") is Phase.PREEMPTED
        assert pool.row("c")["why_waits"] == "2 free devices are needed, 0 are free"
        assert pool.driver.row()["machines"] == {"h": {"devices": 2, "used": 2}}

    run(scenario)


def test_premium_takes_the_devices_of_basic_which_goes_on_later():
    async def scenario():
        pool = Pool()
        basic = pool.come("b", "basic")
        await pool.pass_()
        premium = pool.come("p", "premium")
        await pool.pass_(10)
        assert (pool.phase("b"), pool.phase("p")) == (Phase.PREEMPTED, Phase.RUNNING)
        preempted = pool.fleet.journal.last("preempted")["detail"]
        assert (preempted["reason"], preempted["lost_steps"]) == ("premium job p needs devices", 0)
        action = pool.fleet.journal.last("pool_action")
        assert (action["actor"], action["detail"]["job"]) == ("pool", "p")
        assert [type(c) for c in basic.commands if isinstance(c, Stop | Start)][:2] == [Start, Stop]
        for rank in (0, 1):
            premium.rank_exits(rank, 0)
        await pool.pass_(10)
        assert (pool.phase("p"), pool.phase("b")) == (Phase.FINISHED, Phase.RUNNING)
        assert pool.actions() == [("start", "b"), ("preempt", "b"), ("start", "p"), ("start", "b")]
        restored = [c.restore_step for c in basic.commands if isinstance(c, Start)]
        assert restored[1] == preempted["resume_step"]

    run(scenario)


def test_devices_are_free_only_once_the_ranks_on_them_have_ended(monkeypatch):
    monkeypatch.setattr(actions, "STOP_AGAIN_S", 0.0)

    async def scenario():
        pool = Pool()
        basic = pool.come("b", "basic")
        await pool.pass_()
        basic.stuck = "rank 0 (pid 100) did not end 5 s after SIGKILL"
        premium = pool.come("p", "premium")
        await pool.pass_(10)
        assert (pool.phase("b"), pool.phase("p")) == (Phase.PREEMPTED, Phase.PREEMPTED)
        assert pool.driver.row()["machines"] == {"h": {"devices": 2, "used": 2}}
        assert not [c for c in premium.commands if isinstance(c, Start)]
        basic.stuck, basic.steps = "", {}
        await pool.pass_(10)
        assert pool.phase("p") is Phase.RUNNING

    run(scenario)


def test_an_elastic_job_gives_one_machine_and_gets_it_back():
    async def scenario():
        pool = Pool()
        pool.replicated = True
        for host in ("h", "i"):
            pool.come("j", "basic", host, nnodes=2, least=1)
        await pool.pass_(10)
        assert pool.world("j") == ["j-h", "j-i"]
        premium = pool.come("p", "premium", "i")
        await pool.pass_(12)
        assert (pool.world("j"), pool.phase("j"), pool.phase("p")) == (["j-h"], Phase.RUNNING, Phase.RUNNING)
        for rank in (0, 1):
            premium.rank_exits(rank, 0)
        await pool.pass_(12)
        assert (pool.world("j"), pool.phase("j")) == (["j-h", "j-i"], Phase.RUNNING)
        assert [a for a in pool.actions() if a[0] in ("shrink", "grow")] == [("shrink", "j"), ("grow", "j")]

    run(scenario)


@pytest.mark.parametrize("hosts", ["h", "hi"])
def test_a_cordon_of_a_node_that_trains_changes_nothing(hosts):
    async def scenario():
        pool = Pool()
        for host in hosts:
            pool.come("b", "basic", host, nnodes=len(hosts), least=len(hosts))
        await pool.pass_()
        pool.fleet.controller.jobs["b"]._state.members.nodes["b-h"].cordon = "hot"
        await pool.pass_(10)
        assert pool.phase("b") is Phase.RUNNING
        assert pool.world("b") == [f"b-{host}" for host in hosts]
        assert pool.actions() == [("start", "b")]

    run(scenario)


def test_a_job_leaves_a_failing_machine_once_another_one_is_free():
    async def scenario():
        pool = Pool()
        pool.come("b", "basic", "h")
        await pool.pass_()
        pool.come("c", "basic", "i")
        await pool.pass_()
        pool.come("b", "basic", "i")
        state = pool.fleet.controller.jobs["b"]
        for _ in range(40):  # what has joined is checked meanwhile
            state.observe((), [trouble("b-h", "evict_at_step")])
            await pool.pass_(1)
        assert pool.world("b") == ["b-h"]
        assert "of the pool is free" in pool.fleet.journal.last("eviction_deferred")["detail"]["why_not"]
        with pytest.raises(UsageError, match="the pool chooses the nodes of job 'b': evict the node"):
            pool.fleet.controller.move("b", MoveRequest(what="migrate", reason="r", actor="ann", node="b-h"))
        for rank in (0, 1):
            pool.agents[1].rank_exits(rank, 0)
        for _ in range(14):
            state.observe((), [trouble("b-h", "evict_at_step")])
            await pool.pass_(1)
        assert (pool.world("b"), pool.phase("b")) == (["b-i"], Phase.RUNNING)
        assert pool.actions()[-1] == ("migrate", "b")

    run(scenario)


def test_a_pre_empted_job_does_not_begin_anew_on_a_node_under_a_cordon():
    async def scenario():
        pool = Pool()
        pool.come("b", "basic")
        await pool.pass_()
        premium = pool.come("p", "premium")
        await pool.pass_(10)
        pool.fleet.controller.jobs["b"]._state.members.nodes["b-h"].cordon = "hot"
        for rank in (0, 1):
            premium.rank_exits(rank, 0)
        await pool.pass_(4)
        assert pool.phase("b") is Phase.PREEMPTED

    run(scenario)


def test_a_job_that_must_go_back_to_its_size_takes_no_machine_of_another():
    async def scenario():
        pool = Pool()
        pool.replicated = True
        small, given = (pool.come("j", "basic", host, nnodes=2, least=1) for host in ("h", "i"))
        await pool.pass_(10)
        small.stepless = True
        pool.come("p", "premium", "i")
        await pool.pass_(12)
        assert (pool.world("j"), pool.phase("p")) == (["j-h"], Phase.RUNNING)
        given.commands.clear()
        small.rank_exits(0, 1, not_reshardable="seen: saved as (4,), wanted as (2,)")
        for _ in range(12):
            await pool.pass_(1)
            assert pool.driver.row()["machines"]["i"] == {"devices": 2, "used": 2}
        assert not [c for c in given.commands if isinstance(c, Start | SelfCheck)]
        assert (pool.world("p"), pool.phase("p")) == (["p-i"], Phase.RUNNING)

    run(scenario)


def test_a_job_without_a_checkpoint_is_not_stopped():
    async def scenario():
        pool = Pool()
        pool.come("b", "basic")
        await pool.pass_()
        for agent in pool.agents:
            agent.held = ()
            agent.send_heartbeat()
        pool.come("p", "premium")
        for _ in range(4):
            await pool.fleet.settle(1.0)
            pool.driver.look()
        assert (pool.phase("b"), pool.phase("p")) == (Phase.RUNNING, Phase.PREEMPTED)

    run(scenario)


def test_a_job_whose_first_step_does_not_come_makes_room_for_a_premium_one():
    async def scenario():
        pool = Pool(policy=Policy(stepless_s=10.0))
        pool.come("b", "basic", stepless=True)
        await pool.pass_(4)
        pool.come("p", "premium")
        await pool.pass_(4)
        assert (pool.phase("b"), pool.phase("p")) == (Phase.RUNNING, Phase.PREEMPTED)
        await pool.pass_(16)
        assert (pool.phase("b"), pool.phase("p")) == (Phase.PREEMPTED, Phase.RUNNING)
        assert pool.fleet.journal.last("preempted")["detail"]["lost_steps"] == 0

    run(scenario)


def test_a_job_before_its_first_step_changes_over_without_a_save():
    async def scenario():
        pool = Pool(policy=Policy(stepless_s=5.0))
        for host in ("h", "i"):
            pool.come("b", "basic", host, nnodes=2, least=1, stepless=True)
        await pool.pass_(12)
        assert pool.world("b") == ["b-h", "b-i"]
        pool.come("p", "premium", "i")
        await pool.pass_(20)
        assert (pool.world("b"), pool.phase("p")) == (["b-h"], Phase.RUNNING)
        assert pool.fleet.controller.jobs["b"]._state.restarts.idle == 0

    run(scenario)


def test_a_job_that_a_person_stopped_stays_stopped():
    async def scenario():
        from tests.recovery.test_moving import request

        pool = Pool()
        pool.come("b", "basic")
        await pool.pass_()
        pool.fleet.controller.move("b", request())
        await pool.pass_(10)
        assert pool.phase("b") is Phase.PREEMPTED
        assert pool.driver.row()["machines"]["h"]["used"] == 0

    run(scenario)


def test_observing_it_says_what_it_would_do_once():
    async def scenario():
        pool = Pool(policy=Policy(observe_only=True))
        pool.come("b", "basic")
        pool.come("p", "premium")
        await pool.pass_(8)
        assert (pool.phase("b"), pool.phase("p")) == (Phase.RUNNING, Phase.RUNNING)
        said = [e["detail"] for e in pool.fleet.journal.events if e["kind"] == "would"]
        assert [(each["what"], each["job"]) for each in said] == [("preempt", "b")]
        assert said[0]["price_device_s"] == 2.0

    run(scenario)


def test_agents_of_a_job_must_say_one_tier():
    async def scenario():
        pool = Pool()
        pool.come("b", "basic")
        await pool.pass_(2)
        with pytest.raises(UsageError, match="node 'other' says --tier=premium, its job has basic"):
            pool.come("b", "premium", node="other")
        with pytest.raises(UsageError, match="tier = 'gold'"):
            pool.come("g", "gold")

    run(scenario)


def test_without_a_pool_jobs_start_at_once():
    async def scenario():
        pool = Pool(PoolConfig())
        pool.come("b", "basic")
        await pool.fleet.settle()
        await pool.fleet.settle(1.0)
        assert pool.phase("b") is Phase.RUNNING
        assert pool.driver.row() is None

    run(scenario)


class ModelPool:
    """The driver with jobs that change over when they are told to."""

    def __init__(self, slots, demands=(), adopt_s=0.0, grow_after_s=0.0):
        self.slots, self.jobs, self.clock = dict(slots), {}, FakeClock()
        machines = ",".join(f"{host}={devices}" for host, devices in slots.items())
        config = PoolConfig(machines=machines, reserve_ratio=0.0, grow_after_s=grow_after_s, pause_s=1.0)
        self.driver = PoolDriver(self.jobs, config, self.clock, observe_only=False, adopt_s=adopt_s)
        for demand in demands:
            self.add(demand)

    def add(self, demand):
        nodes = {host: devices // demand.unit for host, devices in self.slots.items()}
        self.jobs[demand.name] = ModelJob(replace(demand, nodes=nodes))

    def look(self):
        self.clock.now_s += 1.0
        self.driver.look()
        self.check()

    def finish(self, names=None):
        for name in self.jobs if names is None else names:
            self.jobs[name].sharing.finish()
            self.check()

    def pass_(self, looks):
        for _ in range(looks):
            self.look()
            self.finish()

    def check(self):
        """No machine is over its devices."""
        used = sum((each.sharing.uses() for each in self.jobs.values() if not each.over), Counter())
        assert all(devices <= self.slots[host] for host, devices in used.items())

    def row(self, name):
        return next(row for row in self.driver.row()["jobs"] if row["job"] == name)

    def actions(self):
        return [(each["what"], each["job"]) for each in self.driver.row()["actions"]]

    def placed(self, name):
        return self.jobs[name].sharing.placed

    def changes(self, name):
        return not self.jobs[name].sharing.settled


def test_a_job_starts_only_once_one_that_grows_elsewhere_has_left():
    moves = job("m", "basic", 4, least=1, placed={"x": 1, "y": 2})
    pool = ModelPool({"x": 4, "y": 4}, [moves, job("p", "standard", 1, unit=4, order=1)])
    pool.look()
    assert (pool.changes("m"), pool.changes("p")) == (True, False)
    assert pool.jobs["m"].sharing.target == {"y": 4}
    pool.finish()
    pool.look()
    assert not pool.changes("p")  # the ranks of m have not ended
    for _ in range(2):
        pool.finish()
        pool.look()
    pool.finish()
    assert (pool.placed("m"), pool.placed("p")) == ({"y": 4}, {"x": 1})


def test_what_is_free_is_given_beside_a_change_that_takes_long():
    lower = job("b", "basic", 1, placed={"x": 1})
    pool = ModelPool({"x": 1, "y": 1}, [lower])
    pool.add(job("p", "premium", 1, order=1))
    pool.add(job("q", "premium", 1, order=2))
    pool.look()
    assert {name: pool.changes(name) for name in "bpq"} == {"b": True, "p": True, "q": False}


def test_a_job_that_only_waits_for_a_step_to_grow_holds_nothing_back():
    pool = ModelPool({"x": 1, "y": 1}, [job("g", "basic", 2, least=1, placed={"x": 1})])
    pool.look()
    pool.look()
    assert pool.jobs["g"].sharing.target == {"x": 1, "y": 1}
    assert pool.actions() == [("grow", "g")]
    pool.add(job("b", "basic", 1, order=1))
    pool.look()
    assert (pool.jobs["g"].sharing.target, pool.jobs["b"].sharing.target) == (None, {"y": 1})
    pool.finish()
    pool.add(job("p", "premium", 2, order=2))
    pool.pass_(4)
    assert (pool.placed("p"), pool.placed("g"), pool.placed("b")) == ({"x": 1, "y": 1}, {}, {})


def two_that_grow(*free):
    """Basic jobs b and c, each on a machine. Each could grow onto one of the `free` machines."""
    b = job("b", "basic", 2, least=1, placed={"x": 1})
    c = job("c", "basic", 2, least=1, placed={"y": 1}, order=1)
    return ModelPool(dict.fromkeys(("x", "y", *free), 1), [b, c], grow_after_s=600.0)


def test_devices_that_a_job_waits_to_grow_onto_go_to_no_lower_job():
    pool = two_that_grow("z")
    for _ in range(20):
        pool.look()
    assert pool.actions() == [("grow", "b")]
    pool.finish()
    pool.pass_(4)
    assert (pool.placed("b"), pool.placed("c")) == ({"x": 1, "z": 1}, {"y": 1})


def test_a_job_that_gave_way_says_so_and_grows_once_devices_are_free_again():
    pool = two_that_grow("z")
    pool.look()
    pool.look()
    pool.add(job("p", "premium", 1, order=2))
    pool.look()
    share = pool.jobs["b"].sharing
    detail = {"for": "p", "what": "start", "reason": "its promised share"}
    assert (share.target, share.done[-1]) == (None, ("pool_given_way", detail))
    pool.finish()
    pool.jobs["p"].over = True
    pool.look()
    pool.look()
    assert share.target == {"x": 1, "z": 1}


def test_a_job_is_left_alone_from_when_it_grew_and_not_from_when_it_was_to():
    pool = two_that_grow("z")
    pool.jobs["b"].sharing.base = replace(pool.jobs["b"].sharing.base, most=3)
    pool.look()
    pool.clock.now_s += 1000.0
    pool.look()
    pool.finish()
    pool.jobs["c"].over = True
    pool.pass_(2)
    assert pool.placed("b") == {"x": 1, "z": 1}
    pool.clock.now_s += 600.0
    pool.pass_(2)
    assert pool.placed("b") == {"x": 1, "y": 1, "z": 1}


def test_a_job_that_a_person_stopped_gets_its_promise_anew():
    pool = ModelPool({"x": 8}, [job("p", "premium", 8)])
    pool.pass_(2)
    assert pool.row("p")["promised"]
    first = pool.jobs["p"].sharing
    first.stopped_by_person()
    pool.add(job("q", "premium", 8))
    pool.pass_(2)
    first.wanted, first.kept_stopped = True, False
    pool.pass_(2)
    assert (pool.row("p")["promised"], pool.row("q")["promised"]) == (False, True)
    assert pool.row("p")["why_waits"] == "the pool's promises to others leave too little for it"
    pool.jobs["q"].over = True
    pool.pass_(2)
    assert pool.row("p")["promised"]


def test_hours_that_a_person_kept_a_job_stopped_are_not_held_against_the_pool():
    pool = ModelPool({"x": 8}, [job("s", "standard", 8, least=1)])
    pool.pass_(2)
    share = pool.jobs["s"].sharing
    share.stopped_by_person()
    pool.pass_(1)
    pool.clock.now_s += 3 * 3600.0
    share.wanted, share.kept_stopped = True, False
    pool.pass_(2)
    assert (pool.row("s")["hour_share"], pool.placed("s")) == (None, {"x": 8})
    pool.add(job("p", "premium", 2, order=1))
    pool.pass_(4)
    assert (pool.placed("s"), pool.placed("p")) == ({"x": 6}, {"x": 2})


def test_a_new_hub_gives_no_devices_away_before_running_jobs_have_reported():
    pool = ModelPool({"x": 2}, [job("w", "premium", 2)], adopt_s=10.0)
    pool.pass_(5)
    assert not pool.changes("w")
    assert pool.row("w")["why_waits"].startswith("the hub has just started")
    pool.add(job("b", "basic", 2, placed={"x": 2}))  # it has run all the time
    pool.pass_(12)
    assert pool.actions() == [("preempt", "b"), ("start", "w")]


@settings(max_examples=40, deadline=None)
@given(crowded(), st.data())
def test_no_machine_is_over_its_devices_in_whatever_order_changes_end(jobs, data):
    """And nothing waits for ever."""
    slots, small, large, leaves = jobs
    pool = ModelPool(slots, small)
    pool.pass_(4)
    for name in leaves:
        pool.jobs[name].over = True
    for demand in large:
        pool.add(demand)
    for _ in range(4):
        pool.look()
        pool.finish([name for name in sorted(pool.jobs) if data.draw(st.booleans())])
    pool.pass_(20)
    done = len(pool.driver.row()["actions"])
    pool.pass_(2)
    assert len(pool.driver.row()["actions"]) == done


def test_of_jobs_that_wait_for_each_other_the_lower_one_stops_first(monkeypatch):
    pool = ModelPool({"x": 1, "y": 1})
    pool.add(job("s", "standard", 1, placed={"x": 1}))
    pool.add(job("b", "basic", 1, placed={"y": 1}, order=1))
    swap = [
        PoolAction(what="migrate", job=name, before=before, after=after, reason="a test", price_device_s=1.0)
        for name, before, after in (("b", {"y": 1}, {"x": 1}), ("s", {"x": 1}, {"y": 1}))
    ]
    plan = [Decision(actions=tuple(swap), promised=frozenset(), waiting={})]
    nothing = Decision(actions=(), promised=frozenset(), waiting={})
    monkeypatch.setattr(pool_driver, "decide", lambda *_: plan.pop() if plan else nothing)
    pool.pass_(8)
    assert (pool.placed("s"), pool.placed("b")) == ({"y": 1}, {"x": 1})
    assert pool.actions() == [("preempt", "b"), ("migrate", "s"), ("migrate", "b")]
