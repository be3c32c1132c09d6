"""Updating what a job runs, against fake agents."""

import pytest

from pulsetrain.core.errors import UsageError
from pulsetrain.protocol.messages import Leave, OwnCheckpoint, SaveFrom, Start, Stop
from pulsetrain.recovery import updates
from pulsetrain.recovery.move_request import MoveRequest
from pulsetrain.recovery.policy import Policy
from pulsetrain.recovery.pool.config import PoolConfig
from pulsetrain.recovery.transitions import Phase
from pulsetrain.recovery.update_request import UpdateRequest
from tests.recovery.fakes import FakeMemory, Fleet, hang, run

DAY_S = 86400


def request(what="apply", **changes):
    return UpdateRequest(**{"what": what, "reason": "a fix", "actor": "ann"} | changes)


class Job:
    """A job of two nodes of two ranks each, and a standby."""

    def __init__(self, nodes="abz", **more):
        self.fleet = Fleet(nodes, **more)

    async def train(self, step=9):
        if self.fleet.job.phase is Phase.FORMING:
            await self.fleet.form()
        for name in ("a", "b"):
            self.fleet.agents[name].complete(step, peer_of=(0, 1, 2, 3))
        await self.fleet.settle()

    async def ask(self, what="apply", *, dry_run=False, **changes):
        answer = self.fleet.controller.update("j", request(what, **changes), dry_run=dry_run)
        await self.fleet.settle()
        return answer

    async def rank_ends(self, code=1, lines=()):
        """A rank ends, and the job is launched again."""
        self.fleet.agents["a"].rank_exits(0, code, lines)
        await self.fleet.settle()
        await self.fleet.wait_for_launch()

    async def wait(self, seconds):
        for _ in range(0, seconds, 2):
            for agent in self.fleet.agents.values():
                if agent.node.connected:
                    agent.send_heartbeat()
            await self.fleet.settle(2)

    def launched(self, name="a"):
        return self.fleet.of(name, Start)[-1].program

    def kinds(self):
        return [kind for kind in self.fleet.journal.kinds() if kind.startswith("update_")]

    def last(self, kind):
        return self.fleet.journal.last(kind)["detail"]

    @property
    def row(self):
        return self.fleet.controller.jobs["j"].snapshot().updates


def test_an_update_waits_for_a_restart_and_comes_into_force_with_it():
    async def scenario():
        job = Job()
        await job.train(9)
        answer = await job.ask(argv=["train.py", "--lr", "2"], environment={"TOKEN": "secret"})
        assert (answer["number"], answer["now"], answer["can_do"]) == (1, False, True)
        await job.wait(60)
        assert job.fleet.job.phase is Phase.RUNNING
        assert job.launched().number == 0
        await job.rank_ends()
        for name in ("a", "b"):
            program = job.launched(name)
            assert (program.argv, program.environment) == (("train.py", "--lr", "2"), {"TOKEN": "secret"})
        assert job.last("update_applied")["merged_into"] == "crash"
        assert job.kinds() == ["update_requested", "update_applied"]
        await job.train(25)
        assert job.kinds()[-1] == "update_confirmed"
        assert (job.row.in_force.number, job.row.pending, job.row.trial) == (1, None, None)
        assert "secret" not in str(job.fleet.journal.events)

    run(scenario)


def test_ranks_that_would_keep_their_old_code_are_not_kept():
    async def scenario():
        job = Job()
        await job.train(9)
        await job.ask()
        await job.rank_ends()
        assert not job.fleet.of("b", Stop)[-1].keep
        assert job.last("survivors")["none_kept"] == "an update of the program needs new processes"
        await job.train(25)
        await job.rank_ends()
        assert job.fleet.of("b", Stop)[-1].keep

    run(scenario)


def test_an_update_that_has_waited_a_day_stops_the_job_at_a_saved_step():
    async def scenario():
        job = Job()
        await job.train(9)
        await job.ask(argv=["b.py"])
        await job.fleet.settle(DAY_S - 1)
        assert job.fleet.job.move is None
        await job.train(20)
        await job.fleet.settle(2)
        assert job.fleet.job.move.request.what == "update"
        wanted = job.fleet.of("a", SaveFrom)[-1].step
        await job.train(wanted)
        assert job.launched().argv == ("b.py",)
        assert job.fleet.of("a", Start)[-1].restore_step == wanted
        recovery = job.last("recovery")
        assert (recovery["cause"], recovery["lost_steps"], recovery["actor"]) == ("update", 0, "ann")
        assert job.last("update_applied")["merged_into"] == ""
        assert job.fleet.job.move is None

    run(scenario)


def test_an_urgent_update_waits_for_a_newer_checkpoint_alone():
    async def scenario():
        job = Job()
        await job.train(9)
        answer = await job.ask(within_s=0.0)
        assert answer["now"]
        await job.train(job.fleet.of("a", SaveFrom)[-1].step)
        assert job.launched().number == 1
        assert job.fleet.job.phase is Phase.RUNNING

    run(scenario)


def test_an_urgent_update_that_would_lose_all_steps_is_refused():
    async def scenario():
        job = Job("ab")
        await job.fleet.form()
        for agent in job.fleet.agents.values():
            agent.steps, agent.held = dict.fromkeys(agent.steps, 4), ()
            agent.send_heartbeat()
        with pytest.raises(UsageError, match="5 steps would be lost"):
            await job.ask(within_s=0.0)
        await job.ask(within_s=1.0)
        await job.wait(10)
        assert job.fleet.job.phase is Phase.RUNNING
        assert job.fleet.job.attempt == 0

    run(scenario)


async def saves_by_itself(*, proven):
    """The script has saved step 9 by itself, and all ranks are at step 12."""
    job = Job("ab")
    await job.fleet.form()
    await job.fleet.write_own_checkpoints()
    job.fleet.controller.jobs["j"]._state.own_checkpoints.proven = proven
    return job


def test_an_urgent_update_does_not_wait_for_a_change_of_the_pool_that_no_promise_needs():
    async def scenario():
        job = Job("abc", nnodes=3, sizes=(1, 1), pool=PoolConfig(devices_per_machine=8))
        await job.fleet.settle(1.0)
        share = job.fleet.controller.jobs["j"].sharing
        share.give({"a": 1, "b": 1}, "a test", 5.0)
        await job.fleet.settle(1.0)
        await job.fleet.write_own_checkpoints()
        job.fleet.controller.jobs["j"]._state.own_checkpoints.proven = True
        share.give({"a": 1, "b": 1, "c": 1}, "devices are free", 5.0, optional=True)
        await job.wait(10)
        assert share.waits_for_step
        await job.ask(within_s=0.0)
        await job.wait(10)
        assert job.fleet.job.move.request.what == "update"
        await job.wait(130)  # the script saves nothing newer
        await job.fleet.wait_for_launch()
        assert (job.fleet.job.phase, job.launched().number) == (Phase.RUNNING, 1)
        assert share.holds() == {"a": 1, "b": 1, "c": 1}
        assert not share.waits_for_step  # the restart took the change up

    run(scenario)


async def saves(job, step, at):
    job.fleet.agents["a"].writes(OwnCheckpoint(step=step, bytes=7, path="/c/ckpt.pt", written_ns=step))
    for agent in job.fleet.agents.values():
        agent.steps = dict.fromkeys(agent.steps, at)
        agent.send_heartbeat()
    await job.wait(8)
    await job.fleet.wait_for_launch()


def test_an_update_that_nobody_wants_now_stops_no_script_that_may_not_read_its_checkpoint():
    async def scenario():
        job = await saves_by_itself(proven=False)
        answer = await job.ask(within_s=1.0)
        assert (answer["lost_steps"], answer["can_do"]) == (0, True)
        assert answer["risk"].endswith("until then the job is not stopped for it")
        await job.wait(10)
        await saves(job, 19, 21)
        assert (job.fleet.job.attempt, job.fleet.job.move) == (0, None)
        assert "no restart has shown yet" in updates.row(job.row)["why"]
        answer = await job.ask(within_s=0.0)
        assert (answer["lost_steps"], answer["can_do"]) == (22, True)
        assert answer["risk"].endswith("all 22 steps may be lost")
        await saves(job, 29, 31)
        assert job.launched().number == 2

    run(scenario)


def test_an_update_that_nobody_wants_now_waits_for_the_next_checkpoint_of_the_script():
    async def scenario():
        job = await saves_by_itself(proven=True)
        await job.ask(within_s=1.0)
        await job.wait(600)
        assert (job.fleet.job.attempt, job.fleet.job.move) == (0, None)
        assert "its next checkpoint is waited for" in updates.row(job.row)["why"]
        await saves(job, 19, 21)
        assert (job.fleet.job.attempt, job.launched().number) == (1, 1)
        assert updates.row(job.row)["why"] == ""

    run(scenario)


@pytest.mark.parametrize(("goes_on", "attempt"), [(False, 1), (True, 0)])
def test_a_checkpoint_that_came_while_a_hang_was_pending_counts_until_the_job_goes_on(goes_on, attempt):
    """A long save looks like a hang to those that wait for it."""

    async def scenario():
        job = await saves_by_itself(proven=True)
        await job.ask(within_s=1.0)
        await job.wait(4)
        fleet, controlled = job.fleet, job.fleet.controller.jobs["j"]
        for agent in fleet.agents.values():
            agent.steps = dict.fromkeys(agent.steps, 21)
            agent.send_heartbeat()
        waits = hang(1, certain=False)
        controlled.observe([waits])
        assert controlled._state.hangs.pending is not None
        fleet.agents["a"].writes(OwnCheckpoint(step=19, bytes=7, path="/c/ckpt.pt", written_ns=19))
        await fleet.settle(0.25)
        assert fleet.job.move is None
        fleet.agents["a"].send_heartbeat()
        controlled.observe([])
        assert controlled._state.hangs.pending is None
        if goes_on:
            for agent in fleet.agents.values():
                agent.steps = dict.fromkeys(agent.steps, 22)
                agent.send_heartbeat()
        await job.wait(8)
        await fleet.wait_for_launch()
        assert fleet.job.attempt == attempt

    run(scenario)


def test_an_urgent_update_says_what_it_costs_where_the_script_saves_by_itself():
    async def scenario():
        job = await saves_by_itself(proven=True)
        answer = await job.ask(within_s=0.0, dry_run=True)
        assert (answer["lost_steps"], answer["risk"]) == (
            3, "3 steps are done again if the script saves nothing within 120 s",
        )  # fmt: skip
        assert (await job.ask(dry_run=True))["risk"] == ""

    run(scenario)


def test_an_update_whose_checkpoint_is_gone_in_the_end_stops_nothing():
    async def scenario():
        job = Job("ab")
        await job.train(9)
        await job.ask(within_s=0.0)
        for agent in job.fleet.agents.values():
            agent.held = ()
            agent.send_heartbeat()
        await job.wait(130)
        assert (job.fleet.job.attempt, job.fleet.job.move) == (0, None)
        assert "10 steps would be lost" in job.last("update_dropped")["why_not"]
        assert job.row.pending is not None

    run(scenario)


def broken(job, number):
    for agent in job.fleet.agents.values():
        agent.broken_update = number


async def fail_twice(job):
    broken(job, 1)
    await job.ask(argv=["broken.py"])
    await job.rank_ends(-9)  # the restart that the update is merged into
    assert job.launched().argv == ("broken.py",)
    await job.rank_ends(1, ("NameError: x",))
    assert job.launched().argv == ("broken.py",)
    await job.rank_ends(1, ("NameError: y",))


def test_an_update_with_which_attempts_fail_is_rolled_back_and_costs_no_restart():
    async def scenario():
        job = Job(max_restarts=2)
        await job.train(9)
        await fail_twice(job)
        assert job.launched().number == 0
        assert job.fleet.job.phase is Phase.RUNNING
        assert job.fleet.of("a", Start)[-1].restore_step == 9
        told = job.last("update_rolled_back")
        assert told["why"] == "rank 0 on a ended with exit code 1: NameError: x"
        assert (told["argv"], told["back_to"]["argv"]) == (["broken.py"], [])
        assert len(told["failed_attempts"]) == 2
        assert job.row.outcome.end == "rolled_back"
        state = job.fleet.memory.recall("j")
        assert (state.restarts.used, state.restarts.failed_from) == (1, [])
        await job.train(40)
        await job.rank_ends(-9)  # it is not tried again
        assert job.launched().number == 0
        assert job.kinds().count("update_applied") == 1

    run(scenario)


def test_an_update_is_rolled_back_before_the_job_would_be_given_up():
    async def scenario():
        job = Job(max_restarts=1)
        await job.train(9)
        broken(job, 1)
        await job.ask(argv=["broken.py"])
        await job.rank_ends(-9)
        await job.rank_ends(1)
        assert job.launched().number == 0
        assert job.fleet.job.phase is Phase.RUNNING
        assert job.last("update_rolled_back")["why"].endswith("exit code 1")

    run(scenario)


def test_arguments_that_the_script_refuses_are_rolled_back_at_once():
    async def scenario():
        job = Job()
        await job.train(9)
        broken(job, 1)
        await job.ask(argv=["train.py", "--nonsense"])
        await job.rank_ends(-9)
        await job.rank_ends(2)
        assert (job.launched().number, job.fleet.job.phase) == (0, Phase.RUNNING)
        assert not job.fleet.of("a", Leave)

    run(scenario)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"lacks_program": "script 'c.py': no such file"}, "no such file"),
        ({"too_old": True}, "knows no updates"),
    ],
)
def test_a_node_that_cannot_launch_the_update_rolls_it_back_at_once(fault, words):
    async def scenario():
        job = Job()
        await job.train(9)
        for name, value in fault.items():
            setattr(job.fleet.agents["b"], name, value)
        await job.ask(argv=["c.py"])
        await job.rank_ends()
        await job.fleet.wait_for_launch()
        assert words in job.last("update_rolled_back")["why"]
        assert job.launched().number == 0
        assert job.fleet.job.phase is Phase.RUNNING

    run(scenario)


def test_a_lost_node_is_no_failure_of_the_update():
    async def scenario():
        job = Job("abz", policy=Policy(update_attempts=1, lost_state_wait_s=0))
        await job.train(9)
        await job.ask()
        await job.rank_ends()
        job.fleet.agents["b"].drop()
        for _ in range(4):
            await job.fleet.settle(0.6)
        await job.fleet.wait_for_launch()
        assert job.fleet.job.phase is Phase.RUNNING
        assert "update_rolled_back" not in job.kinds()
        assert job.launched("z").number == 1  # a standby launches it, too

    run(scenario)


def test_an_update_whose_launches_never_get_far_is_rolled_back_in_the_end():
    async def scenario():
        job = Job()
        await job.train(9)
        await job.ask()
        await job.rank_ends()
        for _ in range(12):
            fault = MoveRequest(what="preempt", reason="noon", actor="ann", wait_s=0.0)
            job.fleet.controller.move("j", fault)
            await job.fleet.settle()
            job.fleet.controller.move("j", MoveRequest(what="resume", reason="noon", actor="ann"))
            await job.fleet.settle()
            await job.fleet.settle()
        assert "10 attempts" in job.last("update_rolled_back")["why"]
        assert job.launched().number == 0

    run(scenario)


def test_updates_that_wait_are_merged_and_the_earlier_time_holds():
    async def scenario():
        job = Job()
        await job.train(9)
        first = await job.ask(argv=["b.py"], within_s=100.0)
        second = await job.ask(environment={"K": "1"})
        assert second["until_ns"] == first["until_ns"]
        assert (second["argv"], second["environment"]) == (["b.py"], ["K"])
        assert job.last("update_requested")["merged_with"] == 1
        await job.rank_ends()
        program = job.launched()
        assert (program.number, program.argv, program.environment) == (2, ("b.py",), {"K": "1"})

    run(scenario)


def test_an_update_can_be_taken_back_also_while_it_waits_for_a_checkpoint():
    async def scenario():
        job = Job()
        await job.train(9)
        with pytest.raises(UsageError, match="no update of job 'j' waits"):
            await job.ask("cancel")
        await job.ask(within_s=0.0)
        assert job.fleet.job.move is not None
        await job.ask("cancel")
        assert job.fleet.job.move is None
        assert job.fleet.of("a", SaveFrom)[-1].step == -1
        await job.rank_ends()
        assert job.launched().number == 0
        assert job.kinds() == ["update_requested", "update_cancelled"]

    run(scenario)


def test_a_good_update_can_be_reverted():
    async def scenario():
        job = Job()
        await job.train(9)
        with pytest.raises(UsageError, match="nothing to go back to"):
            await job.ask("revert")
        await job.ask(argv=["b.py"], environment={"K": "1"})
        await job.rank_ends()
        with pytest.raises(UsageError, match="is being tried"):
            await job.ask(argv=["c.py"])
        await job.train(25)
        await job.ask("revert")
        await job.rank_ends()
        assert (job.launched().number, job.launched().argv, job.launched().environment) == (2, (), {})

    run(scenario)


def test_a_dry_run_says_what_would_happen_and_does_nothing():
    async def scenario():
        job = Job()
        await job.train(9)
        answer = await job.ask(argv=["b.py"], environment={"K": "secret"}, dry_run=True)
        assert (answer["number"], answer["argv"], answer["environment"]) == (1, ["b.py"], ["K"])
        assert answer["until_ns"] == job.fleet.clock.wall_ns() + DAY_S * 10**9
        assert job.kinds() == []
        refused = await job.ask("cancel", dry_run=True)
        assert (refused["can_do"], refused["why_not"]) == (False, "no update of job 'j' waits")

    run(scenario)


def test_what_a_person_wants_of_the_job_goes_before_a_stop_for_an_update():
    async def scenario():
        job = Job()
        await job.train(9)
        await job.ask(within_s=0.0)
        with pytest.raises(UsageError, match="not pre-empted"):
            job.fleet.controller.move("j", MoveRequest(what="resume", reason="x", actor="ann"))
        with pytest.raises(UsageError, match="allowed: preempt, resume, migrate, resize"):
            job.fleet.controller.move("j", MoveRequest(what="update", reason="x", actor="ann"))
        job.fleet.controller.move("j", MoveRequest(what="preempt", reason="x", actor="ann", wait_s=0.0))
        await job.fleet.settle()
        assert job.fleet.job.phase is Phase.PREEMPTED
        assert job.row.pending is not None
        job.fleet.controller.move("j", MoveRequest(what="resume", reason="x", actor="ann"))
        await job.fleet.settle()
        await job.fleet.settle()
        assert job.launched().number == 1

    run(scenario)


def again(memory, attempt, names="ab", **more):
    """A new hub, to which agents come back that run `attempt`."""
    fleet = Fleet("", memory=memory, **more)
    for rank, name in enumerate(names):
        agent = fleet.agents[name] = fleet.join(name, attempt=attempt, node_rank=rank)
        agent.attempt = attempt
        agent.steps = {2 * rank: 9, 2 * rank + 1: 9}
        agent.complete(9, peer_of=(0, 1, 2, 3))
    job = Job("")
    job.fleet = fleet
    return job


def test_an_update_that_waits_survives_the_hub():
    async def scenario():
        memory = FakeMemory()
        job = Job(memory=memory)
        await job.train(9)
        await job.ask(argv=["b.py"], environment={"K": "1"})
        later = again(memory, 0)
        await later.fleet.settle()
        await later.fleet.settle(0.6)
        assert later.fleet.job.phase is Phase.RUNNING
        assert later.row.pending.reason == "a fix"
        await later.rank_ends()
        assert (later.launched().argv, later.launched().environment) == (("b.py",), {"K": "1"})

    run(scenario)


def test_an_update_that_is_tried_or_in_force_survives_the_hub_and_is_rolled_back_by_the_next_one():
    async def scenario():
        memory = FakeMemory()
        job = Job(memory=memory)
        await job.train(9)
        broken(job, 1)
        await job.ask(argv=["broken.py"])
        await job.rank_ends(-9)
        await job.rank_ends(1)
        later = again(memory, 2)
        broken(later, 1)
        await later.fleet.settle()
        await later.fleet.settle(0.6)
        assert later.row.trial.failures == ["rank 0 on a ended with exit code 1"]
        await later.rank_ends(1)
        assert later.launched().number == 0
        assert len(later.last("update_rolled_back")["failed_attempts"]) == 2

    run(scenario)


def test_a_new_hub_goes_on_to_launch_what_is_in_force():
    async def scenario():
        memory = FakeMemory()
        job = Job(memory=memory)
        await job.train(9)
        await job.ask(argv=["b.py"])
        await job.rank_ends()
        await job.train(25)
        later = again(memory, 1)
        await later.fleet.settle()
        await later.fleet.settle(0.6)
        await later.rank_ends()
        assert (later.launched().number, later.launched().argv) == (1, ("b.py",))

    run(scenario)


def test_another_run_of_the_same_name_has_its_own_program():
    async def scenario():
        memory = FakeMemory()
        job = Job(memory=memory)
        await job.train(9)
        await job.ask(argv=["b.py"])
        await job.rank_ends()
        await job.train(25)
        fleet = Fleet("", memory=memory)
        fleet.agents = {name: fleet.join(name, pid=7000 + ord(name)) for name in "ab"}
        await fleet.form()
        assert fleet.of("a", Start)[-1].program.number == 0
        assert memory.recall("j").update is None

    run(scenario)


def test_what_another_version_has_kept_does_not_keep_the_hub_from_beginning():
    async def scenario():
        memory = FakeMemory()
        job = Job(memory=memory)
        await job.train(9)
        await job.ask(argv=["b.py"])
        kept = memory.values["j", "update"]
        kept.pending["program"]["argv"] = [5]
        later = again(memory, 0)
        await later.fleet.settle()
        assert later.row.number == 0

    run(scenario)
