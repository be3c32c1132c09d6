"""Pre-empting, resuming and migrating a job, against fake agents."""

import asyncio
from dataclasses import replace

import pytest

from pulsetrain.core.errors import UsageError
from pulsetrain.protocol.messages import Held, HoldRanks, Leave, OwnCheckpoint, SaveFrom, Start, Stop
from pulsetrain.recovery.move_preview import lacking
from pulsetrain.recovery.move_request import MoveRequest
from pulsetrain.recovery.nodes import NodeState
from pulsetrain.recovery.saves import TORN_S
from pulsetrain.recovery.transitions import Phase
from tests.recovery.fakes import FakeMemory, Fleet, hang, run


def request(what="preempt", **changes):
    return MoveRequest(**{"what": what, "reason": "noon", "actor": "ann"} | changes)


class Job:
    """A job of two nodes and a standby whose ranks save every step."""

    def __init__(self, nodes="abz", **more):
        self.fleet = Fleet(nodes, **more)

    async def train(self, step=9, saved=None):
        """All ranks complete `step`. They save each step, or have saved `saved` alone."""
        if self.fleet.job.phase is Phase.FORMING:
            await self.fleet.form()
        for name in ("a", "b"):
            agent = self.fleet.agents[name]
            agent.complete(step if saved is None else saved, peer_of=(0, 1, 2, 3))
            if saved is None:
                agent.held += tuple(Held(rank=r, step=step - 1, tier="memory") for r in agent.steps)
            agent.steps = dict.fromkeys(agent.steps, step)
            agent.send_heartbeat()
        await self.fleet.settle()

    async def ask(self, what="preempt", seconds=0.0, *, dry_run=False, **changes):
        answer = self.fleet.controller.move("j", request(what, **changes), dry_run=dry_run)
        await self.fleet.settle(seconds)
        return answer

    async def wait(self, seconds):
        """Time passes, and all agents go on to report."""
        for _ in range(0, seconds, 2):
            for agent in self.fleet.agents.values():
                if agent.node.connected:
                    agent.send_heartbeat()
            await self.fleet.settle(2)

    @property
    def wanted(self):
        """The step from which ranks were asked to save last."""
        return self.fleet.of("a", SaveFrom)[-1].step

    def last(self, kind):
        return self.fleet.journal.last(kind)["detail"]

    @property
    def phase(self):
        return self.fleet.job.phase


def test_a_job_whose_newest_step_is_saved_stops_at_once_and_goes_on_there():
    async def scenario():
        job = Job()
        await job.train(9)
        await job.ask()
        assert job.phase is Phase.PREEMPTED
        assert job.fleet.of("a", Stop)
        assert not job.fleet.of("a", Leave)
        told = job.last("preempted")
        assert (told["step"], told["resume_step"], told["lost_steps"]) == (9, 9, 0)
        await job.wait(600)
        assert job.phase is Phase.PREEMPTED
        await job.ask("resume")
        assert job.phase is Phase.RUNNING
        assert job.fleet.of("a", Start)[-1].restore_step == 9
        recovery = job.last("recovery")
        assert (recovery["cause"], recovery["lost_steps"], recovery["actor"]) == ("preemption", 0, "ann")

    run(scenario)


def test_ranks_are_asked_to_save_and_the_job_trains_until_they_have():
    async def scenario():
        job = Job()
        await job.train(1, saved=0)
        await job.wait(2)
        await job.train(9, saved=0)
        await job.ask(seconds=5)
        assert job.phase is Phase.RUNNING
        assert job.wanted > 10  # no rank has reached it, so all save the same steps
        assert job.fleet.job.move.row()["newer_than"] == job.wanted
        await job.train(12, saved=11)  # by the script's own interval: steps after it would be lost
        assert job.phase is Phase.RUNNING
        await job.train(job.wanted + 3)
        assert job.phase is Phase.PREEMPTED
        assert job.last("preempted")["lost_steps"] == 0

    run(scenario)


def test_steps_that_an_earlier_attempt_was_asked_to_save_do_not_count_as_saving_every_step():
    async def scenario():
        job = Job()
        await job.train(9)
        await job.ask()
        await job.ask("resume")
        await job.train(9)
        for agent in job.fleet.agents.values():
            agent.held = tuple(replace(held, attempt=0) for held in agent.held)
            agent.send_heartbeat()
        await job.ask(seconds=2)
        assert job.phase is Phase.RUNNING
        assert job.wanted > 9
        await job.train(job.wanted + 1)
        assert job.phase is Phase.PREEMPTED
        assert job.last("preempted")["lost_steps"] == 0

    run(scenario)


def test_a_job_that_has_not_reported_a_step_since_its_launch_is_asked_for_one_that_is_not_saved():
    async def scenario():
        job = Job()
        await job.train(9)
        await job.ask()
        await job.ask("resume")
        for agent in job.fleet.agents.values():
            agent.steps = dict.fromkeys(agent.steps, -1)
            agent.held = tuple(replace(held, step=9, attempt=0) for held in agent.held)
            agent.send_heartbeat()
        await job.fleet.settle()
        assert job.fleet.job.last_step < 9
        await job.ask(seconds=2)
        assert job.phase is Phase.RUNNING
        assert job.wanted > 9

    run(scenario)


def test_after_the_wait_the_job_stops_with_what_there_is_and_says_what_is_lost():
    async def scenario():
        job = Job()
        await job.train(9, saved=3)
        await job.ask(wait_s=30.0)
        await job.wait(28)
        assert job.phase is Phase.RUNNING
        await job.wait(4)
        assert job.phase is Phase.PREEMPTED
        told = job.last("preempted")
        assert told["lost_steps"] == 6
        assert told["stages_ns"]["save"] == pytest.approx(32e9, rel=0.01)

    run(scenario)


def test_a_job_without_a_checkpoint_is_stopped_only_if_that_is_wanted():
    async def scenario():
        job = Job("ab")
        await job.fleet.form()
        for agent in job.fleet.agents.values():
            agent.steps = dict.fromkeys(agent.steps, 4)
            agent.held = ()
            agent.send_heartbeat()
        why = "has no checkpoint, and its processes are not dumped \\(images are off on a, b\\): 5 steps"
        with pytest.raises(UsageError, match=why):
            await job.ask()
        assert "images are off on a, b" in (await job.ask(dry_run=True))["why_not"]
        answer = await job.ask(lose_progress=True, wait_s=0.0)
        assert answer["process_dump"].endswith("the job goes on from what is saved until then")
        assert job.phase is Phase.PREEMPTED

    run(scenario)


def test_a_job_without_its_nodes_is_pre_empted_before_it_began():
    async def scenario():
        job = Job("a")
        await job.fleet.settle()
        await job.ask()
        assert job.phase is Phase.PREEMPTED
        job.fleet.agents["b"] = job.fleet.join("b")
        await job.wait(60)
        assert job.phase is Phase.PREEMPTED
        await job.ask("resume")
        await job.wait(30)  # what joined meanwhile is checked first
        assert job.phase is Phase.RUNNING

    run(scenario)


def test_a_new_hub_leaves_a_pre_empted_job_alone_until_it_is_resumed():
    async def scenario():
        memory = FakeMemory()
        job = Job(memory=memory)
        await job.train(9)
        await job.ask()
        again = Job(memory=memory)
        await again.wait(4)
        assert again.phase is Phase.PREEMPTED
        assert again.fleet.job.move.from_step == 9
        await again.ask("resume")
        await again.wait(30)
        assert again.phase is Phase.RUNNING
        third = Job(memory=memory)
        await third.fleet.form()

    run(scenario)


def test_a_node_that_goes_away_meanwhile_is_replaced_at_the_resume():
    async def scenario():
        job = Job()
        await job.train(9)
        await job.ask()
        job.fleet.agents["b"].drop()
        await job.wait(4)
        assert job.phase is Phase.PREEMPTED
        await job.ask("resume")
        assert job.phase is Phase.RUNNING
        assert [m.node for m in job.fleet.job.world] == ["a", "z"]

    run(scenario)


def test_a_move_that_still_waits_can_be_taken_back():
    async def scenario():
        job = Job()
        await job.train(9, saved=0)
        await job.ask()
        await job.ask("resume")
        assert job.fleet.job.move is None
        assert [c.step for c in job.fleet.of("a", SaveFrom)][1:] == [-1]
        assert job.fleet.memory.preemptions == {"j": None}
        await job.train(20)
        await job.wait(120)
        assert job.phase is Phase.RUNNING

    run(scenario)


@pytest.mark.parametrize("asked", [["preempt"], ["preempt", "resume"]])
def test_a_node_that_was_away_for_a_moment_saves_the_same_steps_as_the_others(asked):
    async def scenario():
        job = Job()
        await job.train(9, saved=0)
        for what in asked[:-1]:
            await job.ask(what)
        job.fleet.agents["b"].drop()
        await job.ask(asked[-1], seconds=0.2)
        job.fleet.agents["b"].reconnect(attempt=0, node_rank=1)
        await job.fleet.settle()
        assert job.fleet.of("b", SaveFrom)[-1].step == job.wanted
        assert job.wanted == -1 or asked == ["preempt"]

    run(scenario)


def test_a_new_hub_goes_on_to_wait_for_the_checkpoint_that_an_earlier_one_waited_for():
    async def scenario():
        memory = FakeMemory()
        job = Job("ab", memory=memory)
        await job.train(9, saved=0)
        await job.ask(wait_s=3600.0)
        again = Fleet((), memory=memory)
        for rank, name in enumerate("ab"):
            agent = again.agents[name] = again.join(name, attempt=0, node_rank=rank)
            agent.attempt, agent.steps = 0, dict.fromkeys((2 * rank, 2 * rank + 1), 9)
            agent.send_heartbeat()
            await again.settle()
            assert again.job.phase is (Phase.FORMING if rank == 0 else Phase.RUNNING)
        await again.settle()
        [asked] = again.of("a", SaveFrom)
        for agent in again.agents.values():
            agent.complete(asked.step, peer_of=(0, 1, 2, 3))
        await again.settle()
        assert again.job.phase is Phase.PREEMPTED

    run(scenario)


def test_a_new_hub_does_not_stop_a_job_whose_standby_is_back_before_its_ranks():
    async def scenario():
        memory = FakeMemory()
        job = Job("abz", memory=memory)
        await job.train(9, saved=0)
        await job.ask(wait_s=3600.0)
        again = Fleet((), memory=memory)
        again.agents["z"] = again.join("z")
        await again.settle(1)
        assert again.job.phase is Phase.FORMING
        for rank, name in enumerate("ab"):
            again.agents[name] = again.join(name, attempt=0, node_rank=rank)
            again.agents[name].attempt = 0
        await again.settle(1)
        assert again.job.phase is Phase.RUNNING
        assert not [*again.of("a", Stop), *again.of("b", Stop)]

    run(scenario)


def test_a_new_hub_takes_a_job_for_stopped_whose_nodes_do_not_come_back():
    async def scenario():
        memory = FakeMemory()
        job = Job("abz", memory=memory)
        await job.train(9, saved=0)
        await job.ask(wait_s=3600.0)
        again = Job("z", memory=memory)
        await again.wait(14)
        assert again.phase is Phase.PREEMPTED

    run(scenario)


def test_a_new_hub_ends_what_ranks_still_do_for_a_migration_that_nobody_knows_of():
    async def scenario():
        memory = FakeMemory()
        job = Job("abz", memory=memory)
        await job.train(9, saved=0)
        await job.ask("migrate", node="b", wait_s=3600.0)
        assert job.wanted > 9
        again = Fleet((), memory=memory)
        for rank, name in enumerate("ab"):
            again.agents[name] = again.join(name, attempt=0, node_rank=rank)
            again.agents[name].attempt = 0
        await again.settle(1)
        assert again.job.phase is Phase.RUNNING
        for name in "ab":
            assert [command.step for command in again.of(name, SaveFrom)] == [-1]
            assert [command.number for command in again.of(name, HoldRanks)] == [0]

    run(scenario)


def test_a_request_that_is_taken_back_before_its_turn_stops_nothing():
    async def scenario():
        job = Job("a")
        await job.fleet.settle()
        job.fleet.controller.move("j", request())
        job.fleet.controller.move("j", request("resume"))
        await job.fleet.settle()
        assert job.phase is Phase.FORMING

    run(scenario)


def test_a_node_that_was_away_while_the_others_stopped_is_stopped_too():
    async def scenario():
        job = Job("ab")
        await job.train(9)
        b = job.fleet.agents["b"]
        b.drop()
        job.fleet.controller.move("j", request(wait_s=0.0))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not job.fleet.of("b", Stop)
        b.reconnect(attempt=0, node_rank=1)
        await asyncio.sleep(0.1)
        await job.fleet.settle()
        assert job.phase is Phase.PREEMPTED
        assert job.fleet.of("b", Stop)
        assert job.last("preempted")["not_stopped"] == []

    run(scenario)


def test_a_standby_that_went_away_meanwhile_leaves_the_job_where_it_is():
    async def scenario():
        job = Job()
        await job.train(9, saved=5)
        await job.ask("migrate", node="b")
        job.fleet.agents["z"].drop()
        await job.wait(4)
        assert "no standby" in job.last("migrate_dropped")["why_not"]
        await job.train(12)
        assert [m.node for m in job.fleet.job.world] == ["a", "b"]
        assert job.fleet.of("a", SaveFrom)[-1].step == -1

    run(scenario)


@pytest.mark.parametrize("holder", ["", "b"])
def test_a_job_that_would_begin_anew_is_not_taken_off_a_node(holder):
    async def scenario():
        job = Job()
        await job.train(9)
        for name, agent in job.fleet.agents.items():
            agent.held = agent.held if name == holder else ()
            agent.send_heartbeat()
        await job.ask("migrate", node="b", wait_s=6.0)
        await job.wait(10)
        assert (job.phase, job.fleet.job.move) == (Phase.RUNNING, None)
        why = "no checkpoint that holds without node 'b': 10 steps would be lost"
        assert why in job.last("migrate_dropped")["why_not"]
        assert not job.fleet.of("a", Stop)
        assert job.fleet.of("a", SaveFrom)[-1].step == -1

    run(scenario)


def test_a_fault_while_it_waits_is_healed_first_and_the_ranks_are_asked_again():
    async def scenario():
        job = Job()
        await job.train(9, saved=2)
        await job.ask()
        job.fleet.controller.jobs["j"].observe([hang(1)])
        await job.fleet.settle()
        assert job.fleet.job.attempt == 1
        assert job.phase is Phase.RUNNING
        await job.fleet.settle(1)
        assert len(job.fleet.of("a", SaveFrom)) == 2
        await job.train(10)
        assert job.phase is Phase.PREEMPTED

    run(scenario)


def test_a_job_is_taken_off_a_node_at_a_saved_step():
    async def scenario():
        job = Job()
        await job.train(9, saved=5)
        answer = await job.ask("migrate", node="b")
        assert (answer["standby"], answer["lost_steps"]) == ("z", 4)
        assert job.phase is Phase.RUNNING
        assert job.fleet.node("b").state is NodeState.ACTIVE
        await job.train(job.wanted)
        assert [m.node for m in job.fleet.job.world] == ["a", "z"]
        recovery = job.last("recovery")
        assert (recovery["cause"], recovery["node"], recovery["lost_steps"]) == ("migration", "b", 0)
        await job.fleet.settle(1)
        assert job.fleet.job.move is None

    run(scenario)


@pytest.mark.parametrize(
    ("nodes", "changes", "words"),
    [
        ("ab", {"what": "migrate", "node": "b"}, "no standby"),
        ("abz", {"what": "migrate", "node": "q"}, "these do: a, b"),
        ("abz", {"what": "migrate", "node": "z"}, "runs no ranks"),
        ("ab", {"what": "resume"}, "is running, not pre-empted"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line_and_a_dry_run_says_why(nodes, changes, words):
    async def scenario():
        job = Job(nodes)
        await job.train(9)
        dry = job.fleet.controller.move("j", request(**changes), dry_run=True)
        assert words in dry["why_not"]
        assert not dry["can_do"]
        with pytest.raises(UsageError, match=words):
            await job.ask(**changes)
        assert job.phase is Phase.RUNNING

    run(scenario)


def test_a_job_that_is_over_cannot_be_pre_empted_nor_its_next_run_with_it():
    async def scenario():
        job = Job("ab")
        await job.train(9)
        own = OwnCheckpoint(path="/x/ckpt.pt", step=9, bytes=1, files=1, written_ns=1)
        job.fleet.agents["a"].writes(own)
        for rank in range(4):
            job.fleet.agents["ab"[rank // 2]].rank_exits(rank, 0)
        await job.fleet.settle()
        assert job.phase is Phase.FINISHED
        with pytest.raises(UsageError, match="job 'j' is over"):
            await job.ask()
        assert job.fleet.memory.recall("j").preemption is None
        again = Job("ab", memory=job.fleet.memory)
        await again.fleet.form()

    run(scenario)


def test_a_dry_run_changes_nothing():
    async def scenario():
        job = Job()
        await job.train(9, saved=7)
        answer = job.fleet.controller.move("j", request(), dry_run=True)
        assert (answer["resume_step"], answer["lost_steps"], answer["can_do"]) == (7, 2, True)
        await job.wait(100)
        assert job.phase is Phase.RUNNING
        assert "preempt" not in job.fleet.journal.kinds()

    run(scenario)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"what": "pause"}, "preempt, resume, migrate"),
        ({"what": "migrate"}, "needs the node"),
        ({"what": "preempt", "node": "b"}, "takes no node"),
        ({"wait_s": -1.0}, "0 to 86400"),
        ({"wait_s": float("nan")}, "0 to 86400"),
    ],
)
def test_a_request_that_means_nothing_is_refused(changes, words):
    with pytest.raises(UsageError, match=words):
        request(**changes)


@pytest.mark.parametrize("dry_run", [True, False])
def test_the_answer_says_what_hosts_lack_to_dump_processes(dry_run):
    async def scenario():
        job = Job("ab", dump_lacks="criu is not installed")
        await job.train(9)
        answer = await job.ask(dry_run=dry_run)
        assert answer["process_dump"] == (
            "processes are not dumped (criu is not installed on a, b): the job goes on from a saved step"
        )

    run(scenario)


@pytest.mark.parametrize(
    ("lacks", "words"),
    [
        ({"a": "", "b": ""}, ""),
        ({"a": "no capability", "b": "unknown"}, "no capability on a; unknown on b"),
        (dict.fromkeys("abcdef", "no criu"), "no criu on a, b, c, d, ..."),
    ],
)
def test_hosts_that_lack_the_same_are_named_together(lacks, words):
    assert lacking(lacks) == words


def test_a_hold_of_an_earlier_attempt_does_not_keep_the_next_one_from_saving():
    async def scenario():
        job = Job("abz")
        await job.train(9, saved=0)
        await job.ask(wait_s=1000.0)
        assert len(job.fleet.of("a", SaveFrom)) == 1
        await job.train(14, saved=13)  # saved, so ranks are asked to stand
        job.fleet.agents["b"].rank_exits(2, 1)
        await job.fleet.wait_for_launch()
        assert job.fleet.job.attempt == 1
        await job.train(20, saved=13)
        await job.wait(4)
        assert len(job.fleet.of("a", SaveFrom)) >= 2

    run(scenario)


@pytest.mark.parametrize(("wait_s", "stops"), [(30.0, False), (0.0, True)])
def test_nobody_is_ended_while_it_writes_a_checkpoint_unless_nothing_is_waited_for(wait_s, stops):
    async def scenario():
        job = Job()
        await job.fleet.form()
        for agent in job.fleet.agents.values():
            agent.held, agent.steps = (), dict.fromkeys(agent.steps, 9)
        job.fleet.agents["a"].phase = "checkpoint"
        await job.wait(2)
        await job.ask(wait_s=wait_s, lose_progress=True)
        await job.wait(60)
        assert (job.phase is Phase.PREEMPTED) == stops
        job.fleet.agents["a"].phase = "forward"
        await job.wait(4)
        assert job.phase is Phase.PREEMPTED

    run(scenario)


def test_a_call_that_writes_for_ever_holds_up_nobody_for_ever():
    async def scenario():
        job = Job()
        await job.fleet.form()
        for agent in job.fleet.agents.values():
            agent.held, agent.steps, agent.phase = (), dict.fromkeys(agent.steps, 9), "checkpoint"
        await job.wait(2)
        await job.ask(wait_s=30.0, lose_progress=True)
        await job.wait(int(30 + TORN_S) - 4)
        assert job.phase is Phase.RUNNING
        await job.wait(10)
        assert job.phase is Phase.PREEMPTED

    run(scenario)


def test_a_migration_whose_standby_fails_its_check_leaves_the_job_where_it_is():
    async def scenario():
        job = Job()
        await job.train()
        job.fleet.agents["z"].sick = True
        await job.ask("migrate", node="b")
        await job.wait(4)
        assert [member.node for member in job.fleet.job.world] == ["a", "b"]
        assert job.phase is Phase.RUNNING
        assert job.fleet.node("b").state is NodeState.ACTIVE
        assert "no standby" in job.last("migrate_dropped")["why_not"]

    run(scenario)


async def loads_for_long(job):
    """Node a has failed and was launched again. It loads, and has not answered so far."""
    await job.train()
    job.fleet.agents["a"].mute = (Start,)
    job.fleet.agents["b"].stepless = True  # its ranks wait for the others
    job.fleet.agents["a"].rank_exits(0, 1)
    await job.fleet.wait_for_launch()
    assert (job.phase, job.fleet.job.attempt) == (Phase.STARTING, 1)


def test_a_job_that_loads_for_long_is_pre_empted_at_once_and_goes_on_from_the_same_step():
    async def scenario():
        job = Job()
        await loads_for_long(job)
        await job.ask()
        await job.fleet.settle(0.5)
        assert job.phase is Phase.PREEMPTED
        assert isinstance(job.fleet.agents["b"].commands[-1], Stop)
        job.fleet.agents["a"].mute = ()
        await job.ask("resume", 1.0)
        assert job.phase is Phase.RUNNING
        assert job.fleet.of("b", Start)[-1].restore_step == 9

    run(scenario)


def test_a_pre_emption_of_a_job_that_loads_may_be_taken_back_at_once():
    async def scenario():
        job = Job()
        await loads_for_long(job)
        job.fleet.agents["a"].mute = ()
        job.fleet.controller.move("j", request())
        job.fleet.controller.move("j", request("resume"))
        await job.fleet.settle(0.5)
        await asyncio.sleep(1.1)  # the loop waits so long before it sees that nothing comes
        await job.fleet.settle(0.5)
        assert job.phase is Phase.RUNNING

    run(scenario)


def test_a_job_that_loads_for_long_is_stopped_for_a_node_that_dies_and_for_an_eviction():
    async def scenario():
        job = Job("abyz")
        await loads_for_long(job)
        job.fleet.agents["b"].drop()
        await asyncio.sleep(0.6)  # others may reply for so long
        await job.wait(4)
        await asyncio.sleep(0.1)
        await job.fleet.wait_for_launch()
        assert job.fleet.job.attempt == 2
        assert job.fleet.of("y", Start)
        assert job.phase is Phase.STARTING  # node a loads once more
        await job.fleet.controller.evict("a", "its fan", "ann")
        await job.fleet.settle(0.5)
        assert job.phase is Phase.RUNNING
        assert job.fleet.of("z", Start)

    run(scenario)
