"""The demo's faults, with stand-ins for nodes and hub."""

from __future__ import annotations

import os
import time

import pytest

from pulsetrain.core.errors import PulsetrainError
from pulsetrain.demo import scenario
from pulsetrain.demo.job_monitor import JobStatus
from pulsetrain.demo.scenario import Scenario
from pulsetrain.demo.score import SeenFinding


class Cluster:
    """Nodes that only say what was done to them."""

    def __init__(self):
        self.started, self.killed, self.ended = [], [], None

    def start(self, node, address, *, standby=False):
        self.started.append((node, address, standby))

    def kill(self, node):
        self.killed.append(node)

    def pid(self, node):
        return os.getpid()

    def check(self):
        if self.ended:
            raise PulsetrainError(self.ended)


class Monitor:
    """A hub that goes through `statuses`, one for each poll, and finds what `on_poll` adds."""

    store = None

    def __init__(self, *statuses):
        self.statuses, self.findings, self.recoveries = list(statuses), [], []
        self.status = JobStatus()

    def poll(self):
        if self.statuses:
            self.status, found = self.statuses.pop(0)
            self.findings += [f for f in found if isinstance(f, SeenFinding)]
            self.recoveries += [f for f in found if isinstance(f, dict)]

    def wait(self, until, timeout_s, before_poll):
        while not until():
            if not self.statuses:
                return False
            before_poll()
            self.poll()
        return True


def status(step, *found, state="running"):
    return JobStatus(state=state, failure="rank 1 crashed", attempt=0, step=step), found


def finding(kind, subject):
    return SeenFinding(kind=kind, subject=subject, summary="", seen_ns=time.time_ns() + 10**9, step=30)


@pytest.fixture
def play(monkeypatch):
    """A scenario over a sequence of statuses."""
    monkeypatch.setattr(scenario.queries, "last_step", lambda store, job, attempt: 31)

    def play(*statuses):
        return Scenario(
            cluster=Cluster(), monitor=Monitor(*statuses), job="gpt", steps=120, say=lambda who, what: None
        )

    return play


def test_four_nodes_and_a_standby_start_at_addresses_of_their_own(play):
    played = play(status(-1), status(0))
    played.start()
    nodes = played.cluster.started
    assert [standby for _, _, standby in nodes] == [False] * 4 + [True]
    assert len({address for _, address, _ in nodes}) == 5


def test_a_killed_node_that_is_named_and_replaced_is_a_correct_outcome(play):
    later_ns = time.time_ns() + 5 * 10**9
    recovery = {"ts_ns": later_ns, "resumed_step": 30}
    played = play(status(31), status(31, finding("node_lost", ("node", scenario.KILLED_NODE)), recovery))
    played.monitor.poll()
    outcome = played.kill_a_node()
    assert played.cluster.killed == [scenario.KILLED_NODE]
    assert outcome.injection.kind == "killed_node"
    assert outcome.lost_steps == 1
    assert 4.0 < outcome.resumed_s < 6.0


@pytest.mark.parametrize(
    ("state", "ended", "message"),
    [
        ("failed", None, "the job failed: rank 1 crashed"),
        ("finished", None, "the job ended before the last fault: give more than --steps 120"),
        ("running", "node-b ended with status 1: boom", "node-b ended with status 1: boom"),
    ],
)
def test_what_ends_too_early_ends_the_demo(play, state, ended, message):
    played = play(status(-1, state=state), status(-1, state=state))
    played.monitor.poll()
    played.cluster.ended = ended
    with pytest.raises(PulsetrainError, match=message):
        played.start()


def test_a_job_that_does_not_get_there_is_said_to_be_where_it_is(play):
    played = play(status(-1), status(-1))
    with pytest.raises(
        PulsetrainError, match=r"did not complete its first step within 120 s \(step -1, running\)"
    ):
        played.start()
