"""From a job's snapshot to findings: a fake clock, no store, no processes."""

import asyncio
import dataclasses

import pytest

from pulsetrain.analytics.watch import WatchConfig
from pulsetrain.hub.live_watch import HURRY_S, LIVE_S, LiveWatch, job_view
from pulsetrain.recovery import faults
from pulsetrain.recovery.nodes import NodeState
from pulsetrain.recovery.transitions import Phase
from tests.hub.fakes import Clock, FakeJob, Sink
from tests.recovery.builders import S, heartbeat, job_snapshot, node_snapshot, rank_exit, status
from tests.recovery.fakes import FakeMemory


class Stacks:
    """Keeps the verdicts it is shown, and marks hangs."""

    def __init__(self):
        self.considered, self.views = [], []

    def consider(self, job, view, verdicts):
        self.views.append(view)
        self.considered.append([type(v).__name__ for v in verdicts])

    def attach(self, job, attempt, findings):
        return [dataclasses.replace(f, evidence={**f.evidence, "stacks": "here"}) for f in findings]


class Suspects:
    """Keeps whose stacks are wanted, and has the postures that a test gives it."""

    def __init__(self):
        self.wanted, self.known = [], {}

    def consider(self, job, attempt, suspects):
        self.wanted.append(tuple(suspects))

    def postures(self, job, attempt):
        return self.known


class Site:
    """A live watch over one job."""

    def __init__(self, *, memory=None, **changes):
        self.job, self.sink, self.stacks, self.clock = FakeJob(**changes), Sink(), Stacks(), Clock()
        self.jobs, self.suspects, self.memory = {"j": self.job}, Suspects(), memory or FakeMemory()
        config = WatchConfig(stall_s=3.0)
        self.watch = LiveWatch(
            self.jobs, self.stacks, self.sink, self.clock, config, self.suspects, self.memory
        )

    def look(self, **changes):
        self.job.changes |= changes
        return asyncio.run(self.watch.turn())


def still(seconds, stuck=2):
    """Both nodes, whose ranks have made no progress for so long; one is stopped."""
    ranks = [
        status(r, progress_age_ns=seconds * S, state="stopped" if r == stuck else "running") for r in range(4)
    ]
    return node_snapshot("a", *ranks[:2]), node_snapshot("b", *ranks[2:])


@pytest.mark.parametrize(("took_s", "wait_s"), [(0.001, 0.25), (0.05, 0.95), (3.0, 2.0)])
def test_looks_at_a_large_job_come_seldom_and_a_hang_is_named_within_seconds_all_the_same(took_s, wait_s):
    site = Site()
    snapshot = site.job.snapshot

    def slow_snapshot():
        site.clock.now_s += took_s
        return snapshot()

    site.job.snapshot = slow_snapshot
    assert site.look() == pytest.approx(wait_s)


def test_a_hub_that_comes_after_another_knows_how_long_the_job_has_paused_before():
    memory = FakeMemory()
    memory.pauses("j", {"evaluate (train.py:8)": 80 * S})
    site = Site(memory=memory)
    for seconds in (0, 20, 40, 0):
        site.look(nodes=still(seconds, stuck=None))
    assert memory.recall("j").pauses_ns == {"evaluate (train.py:8)": 80 * S, "": 40 * S}
    after = Site(memory=memory)
    after.look(nodes=still(1, stuck=None))
    assert after.stacks.views[-1].usual_ns == memory.recall("j").pauses_ns


def test_a_job_that_is_kept_no_longer_leaves_nothing_behind():
    memory = FakeMemory()
    site = Site(memory=memory)
    for seconds in (0, 20, 40, 0):
        site.look(nodes=still(seconds, stuck=None))
    site.watch.forget("j")
    assert (site.watch.verdicts("j"), site.watch.median_step_ns("j")) == ((), 0)
    memory.longest_ns.clear()
    site.look(nodes=still(1, stuck=None))
    assert site.stacks.views[-1].usual_ns == {}


def test_the_view_has_what_the_analyzers_need():
    nodes = (
        node_snapshot("a", status(0), status(1), heartbeat_age_s=1.5),
        node_snapshot("b", state=NodeState.LOST, heartbeat=heartbeat("b", status(2), attempt=9)),
    )
    exits = (rank_exit(1, 0), rank_exit(2, -9))
    view = job_view(job_snapshot(nodes=nodes, exits=exits), 7)
    assert [r.rank for r in view.ranks] == [0, 1]
    assert view.seen_ns == {0: 998_500_000_000, 1: 998_500_000_000}
    assert [e.rank for e in view.exits] == [2]
    assert (view.lost_nodes, view.median_step_ns, view.size()) == (("b",), 7, 4)


def test_a_job_that_trains_has_no_finding():
    site = Site()
    assert site.look() == LIVE_S
    assert (site.sink.new, site.stacks.considered) == ([], [["Healthy"]])


def test_a_hang_is_reported_once_with_the_stacks_and_stays_open():
    site = Site(nodes=still(20))
    site.look()
    site.look()
    (hang,) = site.sink.new
    assert (hang.kind, hang.subject, hang.evidence["stacks"]) == ("hang", "2", "here")
    assert site.sink.still_open["j", "live"] == [hang]


def test_a_hang_that_the_present_look_does_not_see_is_not_open_and_not_new_when_it_comes_back():
    site = Site(nodes=still(20))
    site.look()
    site.look(nodes=still(0, stuck=None))
    assert site.sink.still_open["j", "live"] == []
    site.look(nodes=still(21))
    assert len(site.sink.new) == 1
    assert [f.kind for f in site.sink.still_open["j", "live"]] == ["hang"]


def test_a_hang_in_the_next_attempt_is_another_finding():
    site = Site(nodes=still(20))
    site.look()
    again = tuple(n._replace(heartbeat=dataclasses.replace(n.heartbeat, attempt=1)) for n in still(20))
    site.look(attempt=1, nodes=again)
    assert [f.attempt for f in site.sink.new] == [0, 1]


CRASHED = faults.rank_failed(rank_exit(0, 1), 1000 * S)


def test_a_crash_is_explained_once_the_exits_have_settled():
    site = Site(phase=Phase.SUSPENDING, fault=CRASHED, exits=(rank_exit(0, 1), rank_exit(3, -11)))
    assert site.look() == HURRY_S
    assert site.sink.new == []
    assert site.look(now_ns=1000 * S + 250_000_000) == LIVE_S
    (crash,) = site.sink.new
    assert (crash.kind, crash.subject) == ("crash", "3")  # it died of a signal of its own
    site.look()
    assert len(site.sink.new) == 1


def test_a_crash_is_not_explained_while_a_connection_is_undecided():
    nodes = (node_snapshot("a", status(0)), node_snapshot("b", connected=False, unsettled=True))
    site = Site(phase=Phase.SUSPENDING, fault=CRASHED, exits=(rank_exit(0, 1),), nodes=nodes, now_ns=1009 * S)
    assert site.look() == HURRY_S
    lost = nodes[1]._replace(unsettled=False, state=NodeState.LOST)
    assert site.look(nodes=(nodes[0], lost)) == LIVE_S
    assert [(f.kind, f.subject) for f in site.sink.new] == [("node_lost", "b")]


def test_a_crash_that_is_only_observed_is_explained_while_the_job_counts_as_running():
    site = Site(left_alone=CRASHED, exits=(rank_exit(0, 1),))
    assert site.look() == HURRY_S
    site.look(now_ns=1000 * S + 250_000_000)
    site.look()
    assert [(f.kind, f.subject) for f in site.sink.new] == [("crash", "0")]


def test_a_node_that_was_lost_came_back_and_is_lost_again_is_told_twice():
    nodes = (node_snapshot("a", status(0)), node_snapshot("b", status(2)))
    without = (nodes[0], nodes[1]._replace(state=NodeState.LOST, connected=False))
    site = Site(nodes=nodes)
    lost = faults.node_lost("b", "gone", 0, 1000 * S)
    for _ in range(2):
        site.look(nodes=without, left_alone=lost)
        for _ in range(3):
            site.look(nodes=nodes, left_alone=None)
    assert [(f.kind, f.subject) for f in site.sink.new] == [("node_lost", "b")] * 2


@pytest.mark.parametrize("phase", [Phase.FINISHED, Phase.FAILED])
def test_a_job_that_is_over_is_not_looked_at(phase):
    site = Site(phase=phase, nodes=still(20), fault=CRASHED, exits=(rank_exit(0, 1),))
    assert site.look() == LIVE_S
    assert (site.sink.new, site.stacks.considered) == ([], [])


def test_one_job_that_raises_does_not_blind_the_others():
    site = Site(nodes=still(20))
    site.jobs["broken"] = FakeJob(broken=RuntimeError("no snapshot"))
    with pytest.raises(RuntimeError) as raised:
        site.look()
    assert raised.value.__notes__ == ["job broken"]
    assert [f.kind for f in site.sink.new] == ["hang"]


def test_the_time_of_a_step_is_the_median_of_this_attempt():
    site = Site()
    assert site.watch.median_step_ns("j") == 0
    for step, now_s in ((1, 0.0), (2, 2.0), (3, 4.0), (3, 9.0), (4, 14.0)):
        site.clock.now_s = now_s
        site.look(nodes=(node_snapshot("a", status(0, last_step=step)),))
    assert site.watch.median_step_ns("j") == 2 * S
    site.look(attempt=1)
    assert site.watch.median_step_ns("j") == 0
