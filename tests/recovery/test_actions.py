"""What each action of the transition table sends to the nodes and leads to."""

import asyncio

import pytest

from pulsetrain.diagnostics.node_check import FULL, LIGHT
from pulsetrain.protocol.messages import (
    ArithmeticCheck,
    DumpStacks,
    Leave,
    Leaving,
    PairCheck,
    ReadRas,
    Reply,
    SelfCheck,
    Stop,
)
from pulsetrain.recovery import actions, faults
from pulsetrain.recovery.attempt import Attempt
from pulsetrain.recovery.checks import CheckReport
from pulsetrain.recovery.membership import Membership
from pulsetrain.recovery.nodes import Node, NodeState
from pulsetrain.recovery.policy import Policy
from pulsetrain.recovery.silence import Silence
from pulsetrain.recovery.state import JobState, Services
from pulsetrain.recovery.transitions import Action, Event, Phase
from pulsetrain.recovery.world_sizes import WorldSizes
from tests.recovery.builders import S, hello, rank_exit
from tests.recovery.fakes import FakeClock, FakeMemory, KeptJournal


class FakeNode(Node):
    """Answers at once; `ok` is the outcome of its self-check."""

    def __init__(self, name, *, ok=True):
        async def send(text):
            raise AssertionError(text)

        super().__init__(hello(name), send, FakeClock().monotonic_s())
        self.ok, self.commands = ok, []

    async def ask(self, command, timeout_s):
        self.commands.append(command)
        return Reply(id=command.id, node=self.name, data={"ok": self.ok, "failed": ["gemm"], "port": 4242})


def job_of(*nodes, nnodes=2, max_restarts=3, **policy):
    services = Services(
        policy=Policy(**policy),
        journal=KeptJournal(),
        clock=FakeClock(),
        background=None,
        memory=FakeMemory(),
    )
    job = JobState(
        "j", sizes=WorldSizes(least=nnodes, most=nnodes), max_restarts=max_restarts, services=services
    )
    job.members = Membership()
    job.members.nodes = {node.name: node for node in nodes}
    job.members.fill_world(nnodes, job.resizing.sizes)
    job.attempt = Attempt(number=0, first_step_done=True)
    return job


def do(action, job):
    return asyncio.run(asyncio.wait_for(actions.carry_out(action, job), 10))


def crashed(job, code=1):
    job.begin_recovery(faults.rank_failed(rank_exit(0, code), job.now_ns()))


def kinds(node):
    return [type(command) for command in node.commands]


def test_suspending_ends_the_ranks_of_the_world_and_leaves_standbys_alone():
    a, b, z = FakeNode("a"), FakeNode("b"), FakeNode("z")
    job = job_of(a, b, z)
    crashed(job)
    assert do(Action.SUSPEND, job) is Event.STOPPED
    assert (kinds(a), kinds(b), kinds(z)) == ([Stop], [Stop], [])
    assert "exit code 1" in a.commands[0].reason


def test_who_is_silent_is_looked_at_once_for_all_nodes_that_are_to_stop(monkeypatch):
    """A look goes over all nodes. With one for each of them the stop of a large job would take minutes."""
    looks = []
    monkeypatch.setattr(actions, "Silence", lambda *of: looks.append(of) or Silence(*of))
    nodes = [FakeNode(f"n{number:02}") for number in range(20)]
    job = job_of(*nodes, nnodes=20)
    crashed(job)
    assert do(Action.SUSPEND, job) is Event.STOPPED
    assert (len(looks), {len(node.commands) for node in nodes}) == (1, {1})


def test_suspending_waits_until_a_closed_connection_is_decided():
    a, b = FakeNode("a"), FakeNode("b")
    job = job_of(a, b)
    b.disconnect(0.0)

    async def scenario():
        task = asyncio.create_task(actions.carry_out(Action.SUSPEND, job))
        await asyncio.sleep(0.001)
        waits = not task.done()
        b.state = NodeState.LOST
        return waits, await asyncio.wait_for(task, 5)

    assert asyncio.run(scenario()) == (True, Event.STOPPED)


def test_suspending_does_not_wait_for_a_node_that_leaves():
    a, b = FakeNode("a"), FakeNode("b")
    job = job_of(a, b)
    b.leaves(Leaving(node="b", reason="r", signal="SIGINT"), 0.0)
    b.disconnect(0.0)
    assert do(Action.SUSPEND, job) is Event.STOPPED


def test_the_check_says_whether_enough_healthy_nodes_are_left():
    assert do(Action.CHECK, job_of(FakeNode("a"), FakeNode("b"))) is Event.QUORUM
    job = job_of(FakeNode("a"), FakeNode("b", ok=False))
    assert do(Action.CHECK, job) is Event.SHORT
    assert job.members.failed == {"b": "self-check failed: gemm"}


class Cut(FakeNode):
    """Its connection closes so many times in self-checks, and is there again at once."""

    def __init__(self, name, times, **more):
        super().__init__(name, **more)
        self.times = times

    async def ask(self, command, timeout_s):
        reply = await super().ask(command, timeout_s)
        if isinstance(command, SelfCheck) and kinds(self).count(SelfCheck) <= self.times:
            return Reply(id=command.id, node=self.name, error="connection closed: 1006")
        return reply


@pytest.mark.parametrize(
    ("times", "ok", "failed"), [(1, True, False), (2, True, False), (9, True, False), (2, False, True)]
)
def test_a_node_whose_connection_closes_in_its_checks_has_not_failed(times, ok, failed):
    job = job_of(FakeNode("a"), Cut("b", times, ok=ok), FakeNode("z"))
    crashed(job)
    assert do(Action.CHECK, job) is Event.QUORUM
    assert ("b" in job.members.failed) is failed


@pytest.mark.parametrize(("code", "used", "words"), [(2, 0, "exit code 2"), (1, 3, "3 restarts are used up")])
def test_a_restart_that_cannot_help_is_not_tried(code, used, words):
    a = FakeNode("a")
    job = job_of(a, FakeNode("b"))
    crashed(job, code)
    job.restarts.used = used
    assert do(Action.CHECK, job) is Event.EXHAUSTED
    assert words in job.failure
    assert SelfCheck not in kinds(a)


@pytest.mark.parametrize(
    ("allowed", "words"), [(0, "no restart is allowed"), (1, "its one restart is used up")]
)
def test_the_reason_counts_restarts_as_a_person_would(allowed, words):
    job = job_of(FakeNode("a"), FakeNode("b"))
    crashed(job, 1)
    job.max_restarts, job.restarts.used = allowed, allowed
    assert do(Action.CHECK, job) is Event.EXHAUSTED
    assert job.failure.endswith(f"; {words}")


def test_a_job_that_completes_no_step_ends_unless_a_check_replaces_a_node():
    for healthy, standby, ends in ((True, "z", True), (False, "z", False), (True, "", True)):
        job = job_of(FakeNode("a"), FakeNode("b", ok=healthy), *map(FakeNode, standby))
        crashed(job, 1)
        job.restarts.idle = 3
        assert (do(Action.CHECK, job) is Event.EXHAUSTED) is ends
        assert ("3 attempts in a row completed no step" in job.failure) is ends


def test_the_policy_says_how_thorough_a_check_is(monkeypatch):
    levels = []

    async def run(nodes, policy, ids, *, level):
        levels.append(level)
        return CheckReport(failed={}, reports={})

    monkeypatch.setattr(actions.checks, "run", run)
    for policy in ({}, {"check_level": "full"}):
        job = job_of(FakeNode("a"), FakeNode("b"), **policy)
        do(Action.CHECK, job)
        job.begin_recovery(faults.evicted("b", "fan", "ada", 0, S))
        do(Action.CHECK, job)
    assert levels == [None, LIGHT, None, FULL]


def test_a_check_that_is_done_again_counts_its_restart_once():
    job = job_of(FakeNode("a"), FakeNode("b"), max_restarts=1)
    crashed(job)
    assert [do(Action.CHECK, job) for _ in range(3)] == [Event.QUORUM] * 3
    assert job.restarts.used == 1


def test_a_node_that_the_world_leaves_out_ends_the_processes_that_it_kept():
    a, b = FakeNode("a"), FakeNode("b")
    job = job_of(a, b)
    job.resizing.size = 1
    do(Action.REPLACE, job)
    assert [m.node for m in job.members.world] == ["a"]
    assert [(c.keep, c.reason) for c in b.commands] == [(False, "the job goes on without this node")]
    assert a.commands == []


def test_a_job_that_is_pre_empted_while_it_waits_ends_the_processes_that_it_kept():
    a = FakeNode("a")
    job = job_of(a, FakeNode("b"))
    crashed(job)
    do(Action.REST, job)
    assert [(c.keep, c.reason) for c in a.commands] == [(False, "pre-empted")]


def test_replacing_evicts_who_failed_and_promotes_a_standby():
    b = FakeNode("b")
    job = job_of(FakeNode("a"), b, FakeNode("z"))
    job.members.failed["b"] = "self-check failed"
    assert do(Action.REPLACE, job) is None
    assert [m.node for m in job.members.world] == ["a", "z"]
    assert [type(c) for c in b.commands] == [Leave]
    assert job.services.journal.kinds() == ["evict", "standby_promoted"]


def test_the_policy_may_refuse_an_eviction_but_not_a_persons():
    b = FakeNode("b")
    job = job_of(FakeNode("a"), b, FakeNode("z"), evictions_per_hour=0)
    job.members.failed["b"] = "self-check failed"
    do(Action.REPLACE, job)
    assert job.services.journal.kinds() == ["eviction_refused"]
    job.begin_recovery(faults.evicted("b", "fan", "ada", 0, S))
    job.members.failed["b"] = "evicted by ada: fan"
    do(Action.REPLACE, job)
    assert job.services.journal.last("evict")["actor"] == "ada"
    assert b.state is NodeState.EVICTED


@pytest.mark.parametrize(("sick", "evicted"), [("b", "b"), ("bc", "bc"), ("bcd", "")])
def test_the_floor_holds_for_all_who_failed_together_and_counts_nobody_twice(sick, evicted):
    nodes = [FakeNode(name) for name in "abcd"]
    job = job_of(*nodes, nnodes=4)
    job.members.failed = dict.fromkeys(sick, "self-check failed")
    do(Action.REPLACE, job)
    assert [n.name for n in nodes if n.state is NodeState.EVICTED] == list(evicted)


@pytest.mark.parametrize(
    ("phase", "failure", "ended_by", "code", "kind"),
    [
        (Phase.FINISHED, "", "", 0, "job_finished"),
        (Phase.FAILED, "bad", "", 1, "job_failed"),
        (Phase.FAILED, "ended by SIGTERM", "SIGTERM", 143, "job_ended"),
    ],
)
def test_the_end_is_told_to_every_agent_that_is_still_there(phase, failure, ended_by, code, kind):
    a, b, z = FakeNode("a"), FakeNode("b"), FakeNode("z")
    job = job_of(a, b, z)
    b.leaves(Leaving(node="b", reason="r", signal="SIGTERM"), 0.0)
    job.phase, job.failure, job.ended_by = phase, failure, ended_by
    assert do(Action.DISMISS, job) is None
    assert [c.exit_code for c in a.commands + z.commands] == [code, code]
    assert b.commands == []
    assert {n.state for n in (a, b, z)} == {NodeState.LEFT}
    assert job.services.journal.kinds() == [kind]


def test_a_failed_job_ends_with_the_exit_code_of_its_rank():
    a = FakeNode("a")
    job = job_of(a, FakeNode("b"))
    crashed(job, 7)
    job.phase = Phase.FAILED
    do(Action.DISMISS, job)
    assert a.commands[0].exit_code == 7


def test_missing_nodes_are_counted():
    job = job_of(FakeNode("a"), FakeNode("b"))
    job.members.nodes["b"].state = NodeState.LOST
    assert do(Action.ASK_FOR_NODES, job) is None
    assert job.services.journal.last("waiting")["detail"] == {"missing_nodes": 1}


def test_stacks_are_read_on_the_nodes_of_the_world():
    a, z = FakeNode("a"), FakeNode("z")
    job = job_of(a, FakeNode("b"), z)
    replies = asyncio.run(actions.read_stacks(job, 3.0, first_only=True))
    assert [r.node for r in replies] == ["a", "b"]
    assert [(type(c), c.first_only) for c in a.commands] == [(DumpStacks, True)]
    assert z.commands == []


def test_one_node_of_the_world_is_asked_for_ras():
    a, z = FakeNode("a"), FakeNode("z")
    job = job_of(a, FakeNode("b"), z)
    assert asyncio.run(actions.read_ras(job, "a", 9.0)).node == "a"
    assert [(type(c), c.limit_s) for c in a.commands] == [(ReadRas, 9.0)]
    assert asyncio.run(actions.read_ras(job, "z", 9.0)) is None
    assert z.commands == []


def test_a_node_that_was_replaced_ends_what_it_still_runs():
    a = FakeNode("a")
    asyncio.run(actions.clear_node(job_of(a, FakeNode("b")), a))
    assert a.commands[0].reason == "another node has replaced it"


def test_nodes_whose_ranks_may_be_taken_over_are_not_disturbed_by_checks():
    a, b, z = FakeNode("a"), FakeNode("b"), FakeNode("z")
    job = job_of(a, b, z)
    job.attempt.launched, b.state = True, NodeState.LOST
    job.begin_recovery(faults.node_lost("b", "silent", 0, job.now_ns()))
    job.arithmetic.suspect((0, "rank", "0"), ["a"], "nan")
    a.hello = hello("a", attempt=0, node_rank=0)
    job.phase = Phase.CHECKING
    assert do(Action.CHECK, job) is Event.SHORT
    assert (kinds(a), kinds(z)) == ([], [SelfCheck])
    a.hello = hello("a")
    assert do(Action.CHECK, job) is Event.QUORUM
    assert {ArithmeticCheck, PairCheck, SelfCheck} <= {*kinds(a)}
