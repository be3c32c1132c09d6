"""Nodes of one switch that are lost, crash, slow down or lose traffic together."""

import asyncio

import pytest

from pulsetrain.analytics.incidents.correlate import join
from pulsetrain.analytics.incidents.locations import Topology
from pulsetrain.hub.switch_watch import SOURCE, WINDOW_S, SwitchWatch
from pulsetrain.records.findings import Finding
from pulsetrain.recovery.hardware_verdicts import HardwareVerdicts
from pulsetrain.recovery.link_suspicion import LinkSuspicions
from pulsetrain.recovery.nodes import NodeState
from pulsetrain.recovery.transitions import Phase
from tests.hub.fakes import Clock, FakeJob, Sink
from tests.recovery.builders import S, hello, node_snapshot, rank_exit, world

NODES = [f"n{i}" for i in range(32)]  # four under each of eight switches, one rank on each
SWITCH_OF = {name: f"s{i // 4}" for i, name in enumerate(NODES)}
UNDER_S3 = ["n12", "n13", "n14"]


def members(**states):
    return tuple(
        node_snapshot(
            name,
            hello=hello(name, switch=SWITCH_OF[name], nproc_per_node=1),
            state=states.get(name, NodeState.ACTIVE),
        )
        for name in NODES
    )


def finding(kind, subject_type, subject, *, severity="warning", at_s=1000, **evidence):
    return Finding(
        ts_ns=at_s * S, job="j", attempt=0, kind=kind, subject_type=subject_type, subject=subject,
        severity=severity, confidence=0.9, summary="s", evidence=evidence,
    )  # fmt: skip


class Found:
    def __init__(self):
        self.open = []

    def all_open(self):
        return list(self.open)


class Site:
    def __init__(self):
        self.sink, self.clock, self.found = Sink(), Clock(), Found()
        self.job = FakeJob(world=world(*NODES, nproc=1), nodes=members())
        self.jobs = {"j": self.job}
        self.watch = SwitchWatch(self.jobs, self.found, self.sink, self.clock)

    def look(self, seconds=1.0, **changes):
        self.clock.now_s += seconds
        self.job.changes |= changes
        asyncio.run(self.watch.turn())
        return self.sink.still_open.get(("j", SOURCE), [])


@pytest.fixture
def site():
    site = Site()
    assert site.look() == []
    return site


def lost(*names):
    return members(**dict.fromkeys(names, NodeState.LOST))


def test_three_lost_nodes_under_one_switch_are_one_finding_on_the_switch(site):
    site.look(nodes=lost("n12"))
    assert site.look(nodes=lost("n12", "n13")) == []
    (found,) = site.look(nodes=lost(*UNDER_S3))
    assert (found.kind, found.subject_type, found.subject) == ("switch_fault", "link", "switch/s3")
    assert found.summary.startswith("3 of the 4 nodes under switch s3 are lost, and none under 7 others")
    assert (found.severity, found.evidence["nodes"]) == ("critical", UNDER_S3)
    site.look()
    assert len(site.sink.new) == 1  # told once


def test_nodes_that_are_lost_minutes_apart_are_not_lost_together(site):
    site.look(nodes=lost("n12"))
    site.look(WINDOW_S, nodes=lost("n12", "n13"))
    assert site.look(WINDOW_S, nodes=lost(*UNDER_S3)) == []


def test_what_was_found_is_over_once_nothing_new_came_for_a_while(site):
    assert site.look(nodes=lost(*UNDER_S3))
    assert site.look(WINDOW_S + 1) == []


@pytest.mark.parametrize(
    ("kind", "subject_type", "about", "words"),
    [
        ("straggler", "rank", lambda node: node.removeprefix("n"), "are slow"),
        ("fail_slow", "node", str, "are slow"),
        ("traffic_stop", "node", str, "have trouble with their network"),
        ("port_down", "link", lambda node: f"{node}/mlx5_0", "have trouble with their network"),
        ("bad_link", "link", lambda node: f"{node}/net", "have trouble with their network"),
    ],
)
def test_nodes_in_trouble_suspect_their_switch(site, kind, subject_type, about, words):
    site.found.open = [finding(kind, subject_type, about(node)) for node in UNDER_S3]
    (found,) = site.look()
    assert found.subject == "switch/s3"
    assert words in found.summary


def test_trouble_of_several_kinds_and_switches_suspects_none(site):
    site.found.open = [finding("straggler", "rank", str(rank)) for rank in (0, 5, 12, 21)]
    assert site.look(nodes=lost("n30")) == []


def test_one_node_with_many_findings_suspects_nothing(site):
    site.found.open = [finding("port_down", "link", f"n12/mlx5_{i}") for i in range(8)]
    assert site.look() == []


def test_ranks_that_crash_together_under_one_switch(site):
    def exits(nodes, lines=()):
        return tuple(rank_exit(0, -6, node=n, last_lines=lines) for n in nodes)

    assert site.look(exits=exits(NODES)) == []  # all alike
    site = Site()
    blames = ("RuntimeError: Connection reset by peer",)
    (found,) = site.look(exits=(*exits(UNDER_S3), *exits(["n0", "n5"], blames)))
    assert found.evidence["trouble"] == "crashed"


def test_a_job_that_is_over_and_a_fleet_without_known_switches_say_nothing(site):
    assert site.look(nodes=lost(*UNDER_S3), phase=Phase.FAILED) == []
    unknown = tuple(n._replace(hello=hello(n.name)) for n in lost(*UNDER_S3))
    assert Site().look(nodes=unknown) == []


def test_it_evicts_nobody_and_suspects_links_where_nodes_are_slow(site):
    (about_lost,) = site.look(nodes=lost(*UNDER_S3))
    other = Site()
    other.found.open = [finding("fail_slow", "node", node) for node in UNDER_S3]
    (about_slow,) = other.look()
    hardware = HardwareVerdicts()
    hardware.take([about_lost, about_slow])
    assert hardware.evicting() == []
    assert LinkSuspicions().take([about_lost], (), 0.0) == []
    (suspicion,) = LinkSuspicions().take([about_slow], (), 0.0)
    assert suspicion.nodes == tuple(UNDER_S3)


def test_the_switch_is_the_root_of_the_incident_and_its_nodes_are_victims(site):
    gone = [finding("node_lost", "node", node, severity="critical") for node in UNDER_S3]
    (found,) = site.look(nodes=lost(*UNDER_S3))
    (incident,) = join([*gone, found], Topology(switch_of=SWITCH_OF))
    assert incident["root"] == "link switch/s3"
    assert incident["victims"] == [f"node {node}" for node in UNDER_S3]
    assert "log of link switch/s3" in incident["suggested_action"]


def test_a_job_that_cannot_be_looked_at_does_not_hide_the_others(site):
    site.jobs["broken"] = FakeJob(broken=ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        site.look(nodes=lost(*UNDER_S3))
    assert [f.subject for f in site.sink.new] == ["switch/s3"]


def test_nothing_is_kept_of_a_job_that_is_forgotten(site):
    site.look(nodes=lost(*UNDER_S3))
    del site.jobs["j"]
    site.watch.forget("j")
    site.look(seconds=WINDOW_S + 1)
    assert (site.watch._dedup, site.watch._hits.lost, site.watch._hits.seen_s) == ({}, {}, {})
