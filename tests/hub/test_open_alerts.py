"""An alert on a machine or link lasts as long as its finding, whatever the job does and who reports."""

import asyncio

import pytest

from pulsetrain.analytics.incidents.alerts import AlertBook
from pulsetrain.hub.open_alerts import PERIOD_S, OpenAlerts
from pulsetrain.hub.reporter import Reporter
from pulsetrain.recovery.nodes import NodeState
from pulsetrain.recovery.transitions import Phase
from tests.hub.fakes import Clock, FakeJob, finding
from tests.hub.test_reporter import Writer
from tests.recovery.builders import node_snapshot

DOWN = finding("port_down", "b/mlx5_0", subject_type="link", attempt=-1, evidence={"node": "b"})
HOT = finding("throttle", "b/GPU-1", subject_type="gpu", evidence={"node": "b"})
RANK = finding("straggler", "3")


@pytest.fixture
def site(tmp_path):
    class Site:
        clock, job = Clock(), FakeJob()

        def __init__(self):
            self.alerts = AlertBook(tmp_path / "alerts.db")
            self.reporter = Reporter({"j": self.job}, Writer(), self.alerts, self.clock)
            self.open = OpenAlerts({"j": self.job}, self.reporter, self.alerts, self.clock)

        def passes(self, seconds):
            for _ in range(int(seconds / PERIOD_S)):
                self.clock.now_s += asyncio.run(self.open.turn())
                self.alerts.tick(self.clock.wall_ns())

        def states(self):
            return {row["kind"]: row["state"] for row in self.alerts.list(self.clock.wall_ns())}

    site = Site()
    yield site
    site.alerts.close()


@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.WAITING, Phase.PREEMPTED])
def test_an_alert_on_a_link_stays_open_while_nothing_new_is_reported(site, phase):
    site.job.changes["phase"] = phase
    site.reporter.report("j", "stored", [DOWN, RANK], [DOWN, RANK])
    site.reporter.report("j", "hardware", [HOT], [HOT])
    site.passes(3600)
    assert site.states() == {"port_down": "firing", "throttle": "firing", "straggler": "resolved"}


def test_it_ends_once_its_source_sees_it_no_more(site):
    site.reporter.report("j", "stored", [DOWN], [DOWN])
    site.passes(600)
    site.reporter.report("j", "stored", [], [])
    site.passes(240)
    assert site.states() == {"port_down": "firing"}
    site.passes(120)
    assert site.states() == {"port_down": "resolved"}


def test_it_ends_with_its_node_and_with_the_job(site):
    site.reporter.report("j", "stored", [DOWN], [DOWN])
    site.job.changes["nodes"] = (node_snapshot("a"), node_snapshot("b", state=NodeState.EVICTED))
    site.passes(600)
    assert site.states() == {"port_down": "resolved"}
    del site.job.changes["nodes"]
    site.reporter.report("j", "hardware", [HOT], [HOT])
    site.job.changes["phase"] = Phase.FINISHED
    site.passes(600)
    assert site.states()["throttle"] == "resolved"


def test_what_a_check_found_goes_on_after_the_job(site):
    wrong = finding("wrong_arithmetic", "b", subject_type="node", evidence={"node": "b"})
    site.job.changes |= {"phase": Phase.FAILED, "nodes": (node_snapshot("b", state=NodeState.LEFT),)}
    site.reporter.report("j", "checks", [wrong], [wrong])
    site.passes(3600)
    assert site.states() == {"wrong_arithmetic": "firing"}


def test_a_sign_of_a_node_that_was_away_is_an_alert_again_though_the_sign_is_old(site):
    site.reporter.report("j", "stored", [DOWN], [DOWN])
    site.job.changes["nodes"] = (node_snapshot("a"), node_snapshot("b", state=NodeState.LOST))
    site.passes(600)
    assert site.states() == {"port_down": "resolved"}
    del site.job.changes["nodes"]
    site.passes(30)
    assert site.states() == {"port_down": "firing"}
