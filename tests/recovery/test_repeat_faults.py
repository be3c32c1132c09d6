"""A node that stops its job again and again, and errors that are the job's own."""

from dataclasses import replace

import pytest

from pulsetrain.protocol.messages import HardwareSign
from pulsetrain.recovery import actions, faults
from pulsetrain.recovery.checks import CheckReport
from pulsetrain.recovery.hang_patience import PendingHang
from pulsetrain.recovery.repeat_faults import MOST_ERRORS, REMEMBERED_S
from pulsetrain.recovery.transitions import Action, Event
from tests.recovery.builders import heartbeat, rank_exit
from tests.recovery.test_actions import FakeNode, do, job_of


@pytest.fixture
def check_after(monkeypatch):
    """Which nodes have failed after the check that follows so many faults of node b. All are healthy."""

    async def run(nodes, policy, ids, *, level):
        return CheckReport(failed={}, reports={})

    monkeypatch.setattr(actions.checks, "run", run)

    def check_after(job, times, *, users_own=False, lines=(), code=1, rank=2, hung=None):
        for _ in range(times):
            job.hangs.pending = hung
            job.attempt.exits = [rank_exit(rank, code, last_lines=lines)]
            crash = faults.rank_failed(job.attempt.exits[0], job.now_ns())
            job.begin_recovery(crash)
            job.recovery.users_own = users_own
            do(Action.CHECK, job)
        return job.members.failed

    return check_after


@pytest.mark.parametrize(
    ("times", "nodes", "more", "failed"),
    [
        (2, "abz", {}, []),
        (3, "abz", {}, ["b"]),
        (3, "ab", {}, []),
        (3, "abz", {"faults_of_a_node": 0}, []),
        (2, "abz", {"faults_of_a_node": 2}, ["b"]),
    ],
)
def test_a_node_that_is_often_at_fault_is_replaced(check_after, times, nodes, more, failed):
    job = job_of(*map(FakeNode, nodes), max_restarts=9, **more)
    assert list(check_after(job, times)) == failed


def test_a_node_whose_rank_dies_before_each_first_step_is_replaced_and_the_job_goes_on(check_after):
    job = job_of(*map(FakeNode, "abz"), max_restarts=9)
    check_after(job, 2)
    job.restarts.idle = 3
    assert list(check_after(job, 1)) == ["b"]
    assert job.failure == ""


def test_what_ends_a_job_that_hangs_counts_against_no_node(check_after):
    """torch ends the ranks that wait, and not the one that they wait for."""
    job = job_of(*map(FakeNode, "abz"), max_restarts=9)
    named = PendingHang(rank=0, since_ns=1, act_at_ns=None, why="It may only pause.")
    assert list(check_after(job, 4, code=-6, hung=named)) == []
    assert job.restarts.by_node == {}


WATCHDOG = "[Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9) ran for 600019 ms"


@pytest.mark.parametrize(("named", "node"), [(0, "a"), (-1, "")])
def test_a_rank_that_torchs_timeout_ends_is_no_fault_beside_a_hang_that_was_named(named, node):
    job = job_of(*map(FakeNode, "ab"))
    job.hangs.pending = PendingHang(rank=named, since_ns=1, act_at_ns=None, why="It may only pause.")
    job.attempt.exits = [rank_exit(2, -6, last_lines=(WATCHDOG, "  frame #0", "Fatal Python error: Aborted"))]
    job.begin_recovery(faults.rank_failed(job.attempt.exits[0], job.now_ns()))
    fault = job.recovery.fault
    assert (fault.event, fault.cause, fault.rank, fault.node) == (Event.HANG, "hang", named, node)
    assert "timeout ended rank 2" in fault.reason


@pytest.mark.parametrize(
    ("named", "line"), [(2, WATCHDOG), (0, "Fatal Python error: Aborted"), (None, WATCHDOG)]
)
def test_a_rank_that_ends_otherwise_is_the_fault_also_while_a_hang_is_named(named, line):
    job = job_of(*map(FakeNode, "ab"))
    if named is not None:
        job.hangs.pending = PendingHang(rank=named, since_ns=1, act_at_ns=None, why="It may only pause.")
    job.attempt.exits = [rank_exit(2, -6, last_lines=(line,))]
    job.begin_recovery(faults.rank_failed(job.attempt.exits[0], job.now_ns()))
    assert (job.recovery.fault.event, job.recovery.fault.rank) == (Event.RANK_FAILED, 2)


def test_faults_that_come_to_all_nodes_alike_are_no_fault_of_one(check_after):
    job = job_of(*map(FakeNode, "abz"), max_restarts=19)
    job.restarts.by_node["a"] = [job.services.clock.monotonic_s()] * 2
    assert check_after(job, 4) == {}
    assert list(check_after(job, 1)) == ["b"]


def test_an_error_that_other_nodes_ended_with_too_is_the_jobs(check_after):
    job = job_of(*map(FakeNode, "abz"), max_restarts=29)
    assert check_after(job, 1, rank=0, lines=("DataEnded: row 17 of 900",)) == {}
    assert check_after(job, 5, lines=("DataEnded: row 21 of 900",)) == {}
    assert list(check_after(job, 3, lines=("DriverError: a card is gone",))) == ["b"]


def test_signals_say_nothing_that_two_nodes_could_share(check_after):
    job = job_of(*map(FakeNode, "abz"), max_restarts=29)
    check_after(job, 1, rank=0, lines=("step 9",), code=-11)
    assert list(check_after(job, 3, lines=("step 9",), code=-11)) == ["b"]


def test_errors_that_are_remembered_are_bounded(check_after):
    job = job_of(*map(FakeNode, "abz"), max_restarts=9)
    job.restarts.errors.update({f"Error {chr(97 + n % 26)} {n}": frozenset("a") for n in range(MOST_ERRORS)})
    check_after(job, 1, lines=("NewError: x",))
    assert len(job.restarts.errors) == MOST_ERRORS
    assert job.restarts.errors["NewError: x"] == {"b"}


def test_the_users_own_exceptions_are_no_fault_of_a_node(check_after):
    job = job_of(*map(FakeNode, "abz"), max_restarts=9)
    assert check_after(job, 5, users_own=True) == {}


NAN = ("FloatingPointError: the loss is nan",)


def test_a_nan_is_no_fault_of_a_node_that_multiplies_rightly(check_after):
    job = job_of(*map(FakeNode, "abz"), max_restarts=9)
    assert check_after(job, 5, lines=NAN) == {}


@pytest.mark.parametrize(
    ("code", "more"), [(-11, {}), (1, {"arithmetic_check_s": 0}), (1, {"observe_only": True})]
)
def test_a_signal_beside_a_nan_and_a_nan_without_products_count_as_faults(check_after, code, more):
    job = job_of(*map(FakeNode, "abz"), max_restarts=9, **more)
    assert list(check_after(job, 3, lines=NAN, code=code)) == ["b"]


def test_a_rank_that_alone_is_killed_for_memory_is_the_jobs(check_after):
    job = job_of(MemoryShort("a"), MemoryShort("b"), MemoryShort("z"), max_restarts=29)
    assert check_after(job, 5, code=-9) == {}
    assert list(check_after(job, 3, code=-9, rank=3)) == ["b"]


def test_ranks_that_somebody_kills_count(check_after):
    job = job_of(*map(FakeNode, "abz"), max_restarts=29)
    assert list(check_after(job, 3, code=-9)) == ["b"]


def test_a_kill_long_after_the_kernels_line_counts(check_after):
    job = job_of(FakeNode("a"), MemoryShort("b", ago_s=60.0), FakeNode("z"), max_restarts=29)
    assert list(check_after(job, 3, code=-9)) == ["b"]


def test_the_only_rank_of_a_node_is_the_jobs_once_it_was_killed_for_memory_on_another_too(check_after):
    job = job_of(*(MemoryShort(name, nproc=1) for name in "abz"), max_restarts=29)
    job.restarts.killed_for_memory["a"] = frozenset({0})
    assert list(check_after(job, 3, code=-9)) == ["b"]
    job.members.failed = {}
    job.restarts.killed_for_memory["a"] = frozenset({2})
    assert check_after(job, 5, code=-9) == {}


class MemoryShort(FakeNode):
    """Its kernel kills processes for memory, the last one so long ago."""

    def __init__(self, name, *, nproc=2, ago_s=1.0):
        super().__init__(name)
        self.hello = replace(self.hello, nproc_per_node=nproc)
        at_ns = rank_exit(0, -9).ts_ns - int(ago_s * 1e9)
        sign = HardwareSign(kind="cgroup_out_of_memory", first_ns=0, last_ns=at_ns, times_ns=(at_ns,))
        self.heartbeat = heartbeat(name, hardware=(sign,))


def test_faults_of_another_day_are_not_kept(check_after):
    job = job_of(*map(FakeNode, "abz"), max_restarts=9)
    now_s = job.services.clock.monotonic_s()
    job.restarts.by_node = {"gone": [now_s - REMEMBERED_S - 1], "b": [now_s - 2 * REMEMBERED_S, now_s - 9]}
    check_after(job, 1)
    assert job.restarts.by_node == {"b": [now_s - 9, now_s]}


@pytest.fixture
def check_after_loss(monkeypatch):
    """The job after the checks that follow so many losses of a node, none of which came before a step."""

    async def run(nodes, policy, ids, *, level):
        return CheckReport(failed={}, reports={})

    monkeypatch.setattr(actions.checks, "run", run)

    def check_after_loss(job, *nodes, stepped=False):
        job.attempt.first_step_done = stepped
        for node in nodes:
            job.begin_recovery(faults.node_lost(node, f"node {node} is lost", 0, job.now_ns()))
            do(Action.CHECK, job)
        return job

    return check_after_loss


def test_a_node_whose_agent_dies_again_and_again_is_replaced(check_after_loss):
    job = check_after_loss(job_of(*map(FakeNode, "abz"), max_restarts=9), "b", "b")
    assert (job.members.failed, job.failure) == ({}, "")
    assert list(check_after_loss(job, "b").members.failed) == ["b"]
    assert job.failure == ""


def test_a_job_ends_that_one_node_leaves_before_each_first_step_where_none_can_take_its_place(
    check_after_loss,
):
    job = check_after_loss(job_of(*map(FakeNode, "ab"), max_restarts=9), "b", "b")
    assert job.failure == ""
    assert "3 attempts in a row completed no step" in check_after_loss(job, "b").failure


def test_a_job_goes_on_when_one_node_after_the_other_is_lost(check_after_loss):
    job = check_after_loss(job_of(*map(FakeNode, "abcdez"), max_restarts=9), *"abcde")
    assert (job.members.failed, job.failure) == ({}, "")


def test_a_node_that_is_lost_while_the_job_trains_is_no_offender(check_after_loss):
    job = check_after_loss(job_of(*map(FakeNode, "abz"), max_restarts=9), *"bbbb", stepped=True)
    assert (job.members.failed, job.failure) == ({}, "")
