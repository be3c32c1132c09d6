"""One job's counters and its open recovery."""

import asyncio
from types import SimpleNamespace

import pytest

from pulsetrain.protocol.messages import FirstStep, OwnCheckpoint, Reply, SelfCheck
from pulsetrain.recovery import faults, liveness
from pulsetrain.recovery.attempt import Attempt
from pulsetrain.recovery.policy import Policy
from pulsetrain.recovery.state import JobState, Services
from pulsetrain.recovery.transitions import Phase
from pulsetrain.recovery.world_sizes import WorldSizes
from tests.recovery.builders import S, heartbeat, rank_exit, status
from tests.recovery.fakes import FakeClock, FakeMemory, KeptJournal
from tests.recovery.test_membership import formed


@pytest.fixture
def job():
    services = Services(
        policy=Policy(stepless_s=30, reply_timeout_s=8),
        journal=KeptJournal(),
        clock=FakeClock(),
        background=None,
        memory=FakeMemory(),
    )
    state = JobState("j", sizes=WorldSizes(least=2, most=2), max_restarts=3, services=services)
    state.members = formed("a", "b")
    state.attempt = Attempt(number=0)
    return state


def report(job, **changes):
    for name, ranks in (("a", (0, 1)), ("b", (2, 3))):
        ranks = [status(r, **changes) for r in ranks]
        job.members.nodes[name].take_heartbeat(heartbeat(name, *ranks), job.services.clock.now_s)


def test_an_attempt_that_ends_before_its_first_step_counts_as_idle(job):
    fault = faults.rank_failed(rank_exit(0, 1), S)
    job.begin_recovery(fault)
    job.begin_recovery(fault)
    assert job.restarts.idle == 2
    job.under_way()
    assert job.restarts.idle == 0
    job.begin_recovery(fault)
    assert job.restarts.idle == 0


def test_nodes_that_are_lost_before_the_first_step_are_counted_for_each_node(job):
    lost = [faults.node_lost(name, "gone", job.attempt.number, S) for name in "ab"]
    job.begin_recovery(lost[0])
    job.begin_recovery(faults.evicted("b", "fan", "ada", job.attempt.number, S))
    assert (job.restarts.idle, job.restarts.idle_lost) == (0, {"a": 1})
    job.begin_recovery(faults.rank_failed(rank_exit(0, 1), S))
    assert job.restarts.idle == 1
    job.blame(lost[1])
    assert (job.restarts.idle, job.restarts.idle_lost) == (0, {"a": 1, "b": 1})
    job.under_way()
    assert job.restarts.idle_lost == {}


def test_a_recovery_ends_with_the_first_step_and_is_written_down_once(job):
    report(job, last_step=7)
    job.begin_recovery(faults.rank_failed(rank_exit(3, -9), 1000 * S))
    job.restarts.unrestorable.add((0, 7))
    job.under_way()
    job.under_way()
    assert job.services.journal.kinds() == ["recovery"]
    assert (job.history[0]["from_step"], job.history[0]["culprit"]) == (7, "rank 3")
    assert (job.recovery, job.restarts.unrestorable) == (None, set())


@pytest.mark.parametrize(
    ("change", "after_s", "expected"),
    [
        ({}, 31, True),
        ({}, 29, False),
        ({"last_step": 0}, 31, False),
        ({"progress": 0}, 31, False),
        ({"progress_age_ns": 11 * S}, 31, False),
    ],
)
def test_a_script_that_names_no_step_has_to_work_for_a_while(job, change, after_s, expected):
    job.enter(Phase.RUNNING)
    job.attempt.launched, job.attempt.started_ns = True, job.now_ns()
    job.services.clock.now_s += after_s
    report(job, **({"last_step": -1, "progress": 3} | change))
    assert job.works_without_steps() is expected


@pytest.mark.parametrize(
    ("steps", "change", "expected"),
    [
        ((50, -1, -1, -1), {}, True),
        ((50, 7, 7, 7), {"resumed_step": 7}, True),
        ((50, -1, -1, -1), {"progress_age_ns": 11 * S}, False),
        ((7, 7, 7, 7), {"resumed_step": 7}, False),
    ],
)
def test_a_job_in_which_only_some_ranks_step_is_under_way_once_the_others_have_worked_for_a_while(
    job, steps, change, expected
):
    job.enter(Phase.RUNNING)
    job.attempt.launched, job.attempt.started_ns = True, job.now_ns()
    for after_s in (2, 29):
        job.services.clock.now_s += after_s
        for name, ranks in (("a", (0, 1)), ("b", (2, 3))):
            ranks = [status(r, last_step=steps[r], **change) for r in ranks]
            job.members.nodes[name].take_heartbeat(heartbeat(name, *ranks), job.services.clock.now_s)
        job.note_stepping()
    assert job.works_without_steps() is expected


def test_ranks_whose_first_steps_are_reported_one_after_the_other_are_waited_for(job):
    job.enter(Phase.RUNNING)
    job.attempt.launched, job.attempt.started_ns = True, job.now_ns()
    job.services.clock.now_s += 300
    report(job, last_step=-1)
    node = job.members.nodes["a"]
    node.take_heartbeat(heartbeat("a", status(0, last_step=0), status(1, last_step=0)), 0.0)
    job.note_stepping()
    assert not job.works_without_steps()


@pytest.mark.parametrize(("silent_s", "idle"), [(1, 0), (60, 3)])
def test_an_attempt_whose_ranks_worked_for_long_is_not_idle_though_it_was_never_seen_under_way(
    job, silent_s, idle
):
    job.restarts.idle = 2
    job.attempt.started_ns = job.now_ns()
    job.services.clock.now_s += 630
    report(job, last_step=-1, progress_age_ns=silent_s * S)
    job.begin_recovery(faults.rank_failed(rank_exit(0, 1), S))
    assert job.restarts.idle == idle


def test_a_rank_that_has_not_reported_keeps_the_attempt_from_being_under_way(job):
    job.enter(Phase.RUNNING)
    job.attempt.launched = True
    job.members.nodes["a"].take_heartbeat(
        heartbeat("a", status(0, last_step=-1), status(1, last_step=-1)), 0.0
    )
    assert not job.works_without_steps()


@pytest.mark.parametrize(("last", "under_way"), [((-1, -1), False), ((4, -1), False), ((4, 4), True)])
def test_an_adopted_attempt_starts_until_each_rank_has_done_a_step(job, last, under_way):
    job.enter(Phase.RUNNING)
    job.attempt.adopted = True
    job.attempt.number = 0
    report(job, last_step=last[0])
    node = job.members.nodes["a"]
    node.take_heartbeat(heartbeat("a", *(status(r, last_step=step) for r, step in enumerate(last))), 0.0)
    assert liveness.is_starting(job)
    assert job.adopted_under_way() is under_way


def test_commands_have_different_ids_and_a_time_limit_from_the_policy(job):
    class Node(SimpleNamespace):
        async def ask(self, command, timeout_s):
            self.limits.append(timeout_s)
            return Reply(id=command.id, node="a")

    node = Node(limits=[])

    async def scenario():
        first = await job.ask(node, SelfCheck(id=job.next_id()))
        second = await job.ask(node, SelfCheck(id=job.next_id()), 60.0)
        return first.id, second.id

    first, second = asyncio.run(scenario())
    assert first != second
    assert node.limits == [8, 60.0]


def test_events_carry_the_attempt(job):
    job.attempt = Attempt(number=4)
    job.write("waiting", {"missing_nodes": 1}, node="b")
    event = job.services.journal.last("waiting")
    assert (event["attempt"], event["node"], event["actor"]) == (4, "b", "controller")


def test_a_restart_can_go_on_from_the_scripts_own_checkpoint(job):
    assert not job.can_resume()
    for step in (10, 20):
        own = OwnCheckpoint(step=step, bytes=1, path="/c/x.pt", written_ns=step)
        job.own_checkpoints.note(0, [status(0, saved=(own,))])
    assert job.can_resume()


def begins(job, resumed_step=-1):
    """Every node says that its ranks have done the first step of attempt 1."""
    job.attempt = Attempt(number=1)
    job.attempt.launched = True
    for node in (member.node for member in job.members.world):
        job.attempt.first_steps[node] = FirstStep(
            node=node, ts_ns=0, attempt=1, step=0, stages_ns={}, resumed_step=resumed_step
        )
    job.under_way()


def test_a_new_hub_knows_that_the_script_goes_on_from_its_checkpoint(job):
    for step in (10, 20):
        own = OwnCheckpoint(step=step, bytes=1, path="/c/x.pt", written_ns=step)
        job.own_checkpoints.note(0, [status(0, saved=(own,))])
    report(job)
    job.begin_recovery(faults.rank_failed(rank_exit(0, 1), S))
    begins(job, resumed_step=20)
    under_a_new_hub = JobState(
        job.name, sizes=job.resizing.sizes, max_restarts=job.max_restarts, services=job.services
    )
    assert under_a_new_hub.own_checkpoints.proven


def test_a_restart_that_begins_anew_beside_a_checkpoint_is_the_last_one_for_a_pause(job):
    for step in (10, 20):
        own = OwnCheckpoint(step=step, bytes=1, path="/c/x.pt", written_ns=step)
        job.own_checkpoints.note(0, [status(0, saved=(own,))])
    report(job)
    job.begin_recovery(faults.rank_failed(rank_exit(0, 1), S))
    begins(job)
    assert (job.history[-1]["resumed_by"], job.history[-1]["lost_steps"]) == ("nothing", 6)
    assert not job.can_resume()
    under_a_new_hub = JobState(
        job.name, sizes=job.resizing.sizes, max_restarts=job.max_restarts, services=job.services
    )
    for step in (30, 40):
        own = OwnCheckpoint(step=step, bytes=1, path="/c/x.pt", written_ns=step)
        under_a_new_hub.own_checkpoints.note(1, [status(0, saved=(own,))])
    assert not under_a_new_hub.can_resume()


def test_steps_are_done_again_until_the_newest_one_before_the_fault_also_before_a_heartbeat_tells_of_them(
    job,
):
    report(job, last_step=7)
    job.phase = Phase.RUNNING
    job.under_way()
    job.note_time()
    job.begin_recovery(faults.rank_failed(rank_exit(3, -9), 1000 * S))
    job.attempt = Attempt(number=1)
    job.under_way()
    uses = []
    for step in (None, 0, 6, 7, 8):
        if step is not None:
            for name, ranks in (("a", (0, 1)), ("b", (2, 3))):
                beat = heartbeat(name, *(status(r, last_step=step) for r in ranks), attempt=1)
                job.members.nodes[name].take_heartbeat(beat, job.services.clock.now_s)
        job.note_time()
        job.services.clock.now_s += 1
        uses.append(round(job.time.use(job.now_ns()).row()["seconds"]["recompute"]))
    assert uses == [1, 2, 3, 3, 3]


def test_the_nodes_of_a_world_are_gone_through_once_the_last_has_stepped_and_not_for_each(job, monkeypatch):
    asked, all_stepped = [], Attempt.all_stepped
    monkeypatch.setattr(Attempt, "all_stepped", lambda *given: asked.append(1) or all_stepped(*given))
    job.attempt.launched = True
    for done, name in enumerate("ab"):
        assert (job.attempt.first_step_done, len(asked)) == (False, 0), done
        job.attempt.first_steps[name] = FirstStep(node=name, ts_ns=0, attempt=0, step=1)
        job.note_first_step()
    assert (job.attempt.first_step_done, len(asked)) == (True, 1)
