"""Alerts reach their channels, and know where ranks run."""

import asyncio

import pytest

from pulsetrain.analytics.incidents.alert_state import AlertConfig
from pulsetrain.analytics.incidents.alerts import AlertBook
from pulsetrain.core.errors import Unavailable
from pulsetrain.hub.notifier import NOTIFY_S, KeptTopology, Notifier, topology
from tests.hub.fakes import Clock, FakeJob, finding
from tests.recovery.builders import hello, job_snapshot, node_snapshot, world


class Channel:
    """Takes notifications; away while `error` is set."""

    def __init__(self):
        self.sent, self.error = [], None

    def send(self, notification):
        if self.error:
            raise self.error
        self.sent += [alert["subject"] for alert in notification.alerts]


@pytest.fixture
def site(tmp_path):
    class Site:
        clock, channel = Clock(), Channel()
        book = AlertBook(tmp_path / "alerts.db", AlertConfig(channels=("ops",)))
        notifier = Notifier(book, {"ops": channel}, KeptTopology({"j": FakeJob()}), clock)

        @staticmethod
        def turn(after_s):
            Site.clock.now_s += after_s
            return asyncio.run(Site.notifier.turn())

    Site.book.observe([finding()], Site.clock.wall_ns())
    yield Site
    Site.book.close()


def test_what_is_due_is_delivered_once(site):
    assert site.turn(3) == NOTIFY_S
    site.turn(3)
    assert site.channel.sent == ["3"]


def test_a_channel_that_is_away_gets_it_later(site):
    site.channel.error = Unavailable("away")
    site.turn(3)
    site.channel.error = None
    site.turn(30)
    assert site.channel.sent == ["3"]


def test_the_alert_of_a_rank_is_muted_by_that_of_its_node(site):
    lost = finding("node_lost", "b", subject_type="node")
    site.book.observe([lost], site.clock.wall_ns())
    site.turn(3)
    muted = {a["subject"]: a["muted"] for a in site.book.list()}
    assert "inhibited by" in muted["3"]
    assert muted["b"] == ""


def test_ranks_of_all_jobs_are_known_by_their_node():
    jobs = [job_snapshot(), job_snapshot(job="k", world=())]
    assert topology(jobs).node_of == {("j", 0): "a", ("j", 1): "a", ("j", 2): "b", ("j", 3): "b"}


def test_nodes_are_known_by_the_switch_that_their_agents_told():
    told = node_snapshot("a")._replace(hello=hello("a", switch="s3"))
    assert topology([job_snapshot(nodes=(told, node_snapshot("b")))]).switch_of == {"a": "s3"}


def test_where_ranks_are_is_worked_out_again_only_when_a_world_changes():
    job = FakeJob(world=world("a", "b"))
    kept = KeptTopology({"j": job})
    first = kept()
    assert first.node_of["j", 3] == "b"
    assert kept() is first
    job.changes = {"world": world("a", "c")}
    assert kept().node_of["j", 3] == "c"
