"""The life of alerts: states, grouping, inhibition, acknowledgement, silences, delivery and restarts."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pulsetrain.analytics.incidents.alert_state import AlertConfig
from pulsetrain.analytics.incidents.alerts import AlertBook
from pulsetrain.analytics.incidents.locations import Topology
from pulsetrain.analytics.verdict import Failed, Healthy, Inconclusive
from pulsetrain.core.errors import UsageError
from tests.analytics.incidents.findings import T0, S, finding

HOURS = 8 * 3600 * S


@pytest.fixture
def book(tmp_path):
    made = AlertBook(tmp_path / "alerts.db", AlertConfig(channels=("pager",)))
    yield made
    made.close()


def states(book):
    return {(a["kind"], a["subject"]): a["state"] for a in book.list()}


def deliver(book, now_ns):
    sent = book.tick(now_ns)
    for notification in sent:
        book.delivered(notification.id)
    return sent


def passes(book, from_ns, to_ns):
    """Let a hub that looks all the time go on from one moment to just before another. Return what is sent."""
    return [sent for at in range(from_ns, to_ns, 50 * S) for sent in deliver(book, at)]


def test_a_finding_fires_and_resolves_when_it_is_no_longer_seen(book):
    book.observe([finding()], T0)
    passes(book, T0, T0 + 299 * S)
    book.tick(T0 + 299 * S)
    assert states(book) == {("hang", "3"): "firing"}
    book.tick(T0 + 300 * S)
    assert states(book) == {("hang", "3"): "resolved"}


def test_an_alert_pends_where_it_must_last(tmp_path):
    book = AlertBook(tmp_path / "a.db", AlertConfig(pending_s=10))
    book.observe([finding()], T0)
    assert states(book) == {("hang", "3"): "pending"}
    book.tick(T0 + 10 * S)
    assert states(book) == {("hang", "3"): "firing"}


def test_what_resolved_stays_in_the_list_and_counts_again_when_it_is_back(book):
    book.observe([finding()], T0)
    passes(book, T0, T0 + 400 * S)
    book.observe([finding(at=T0 + 400 * S)], T0 + 400 * S)
    (alert,) = book.list()
    assert (alert["state"], alert["count"]) == ("firing", 2)
    assert [h["state"] for h in book.history(alert["id"])] == ["firing", "resolved", "firing"]


def test_the_same_finding_delivered_twice_counts_once(book):
    for _ in range(3):
        book.observe([finding(), finding()], T0)
    assert [a["count"] for a in book.list()] == [1]


def test_a_finding_that_is_open_brings_an_alert_back_that_nobody_saw_for_a_while(book):
    book.observe([finding()], T0)
    passes(book, T0, T0 + 400 * S)
    assert states(book) == {("hang", "3"): "resolved"}
    book.observe([finding()], T0 + 401 * S)
    assert [(a["state"], a["count"]) for a in book.list()] == [("firing", 2)]


def test_what_a_person_ended_comes_back_with_a_newer_finding_only(book):
    book.observe([finding()], T0)
    book.resolve(book.list()[0]["id"], "ann", T0 + S)
    book.observe([finding()], T0 + 2 * S)
    assert states(book) == {("hang", "3"): "resolved"}
    book.observe([finding(at=T0 + 3 * S)], T0 + 3 * S)
    assert states(book) == {("hang", "3"): "firing"}


def test_time_without_a_hub_ends_no_alert(tmp_path):
    with contextlib.closing(AlertBook(tmp_path / "a.db", AlertConfig(channels=("pager",)))) as before:
        before.observe([finding()], T0)
        deliver(before, T0 + 2 * S)
    with contextlib.closing(AlertBook(tmp_path / "a.db", AlertConfig(channels=("pager",)))) as book:
        assert passes(book, T0 + 400 * S, T0 + 690 * S) == []
        assert states(book) == {("hang", "3"): "firing"}
        assert [n.status for n in passes(book, T0 + 690 * S, T0 + 900 * S)] == ["resolved"]


def test_what_was_open_before_a_hub_was_away_is_told_again_only_once_it_is_seen(tmp_path):
    config = AlertConfig(repeat_interval_s=100, channels=("pager",))
    with contextlib.closing(AlertBook(tmp_path / "a.db", config)) as before:
        before.observe([finding(), finding("nan")], T0)
        assert len(deliver(before, T0 + 2 * S)) == 2
    with contextlib.closing(AlertBook(tmp_path / "a.db", config)) as book:
        assert passes(book, T0 + HOURS, T0 + HOURS + 100 * S) == []
        book.observe([finding()], T0 + HOURS + 100 * S)
        assert [n.group for n in deliver(book, T0 + HOURS + 101 * S)] == [("j", "hang")]


def test_time_in_which_the_hub_stood_still_ends_no_alert(book):
    book.observe([finding()], T0)
    passes(book, T0, T0 + 100 * S)
    book.observe([finding("nan")], T0 + HOURS)  # suspended, or the clock stepped forward
    assert states(book) == {("hang", "3"): "firing", ("nan", "3"): "firing"}
    passes(book, T0 + HOURS, T0 + HOURS + 400 * S)
    assert set(states(book).values()) == {"resolved"}


def test_a_worse_report_raises_the_severity_and_a_milder_one_does_not_lower_it(book):
    for severity in ("warning", "critical", "info"):
        book.observe([finding(severity=severity)], T0)
    assert book.list()[0]["severity"] == "critical"


def test_a_blind_detector_is_a_state_and_holds_its_alerts(book):
    book.observe([finding("fail_slow")], T0)
    blind = Inconclusive(analyzer="fail_slow", reason="no steps", blind=True)
    for t in range(0, 700, 50):
        book.observe([blind], T0 + t * S, job="j")
    assert states(book) == {("fail_slow", "3"): "no_data", ("no_data", "fail_slow"): "no_data"}
    book.observe([Healthy(analyzer="fail_slow")], T0 + 700 * S, job="j")
    assert states(book) == {("fail_slow", "3"): "resolved", ("no_data", "fail_slow"): "resolved"}


def test_a_detector_that_is_blind_in_one_job_holds_nothing_of_another(book):
    book.observe([finding("straggler", job="a"), finding("straggler", job="b")], T0)
    for t in range(0, 700, 50):
        book.observe([Inconclusive(analyzer="straggler", reason="x", blind=True)], T0 + t * S, job="a")
        book.observe([Healthy(analyzer="straggler")], T0 + t * S, job="b")
    assert {(a["job"], a["kind"], a["state"]) for a in book.list()} == {
        ("a", "straggler", "no_data"),
        ("a", "no_data", "no_data"),
        ("b", "straggler", "resolved"),
    }


def test_an_alert_is_held_by_the_detector_that_raised_it_whatever_its_name(book):
    book.observe([finding("traffic_drop", "link", "n/mlx5_0/1"), finding("gpu_fault", "gpu", "g")], T0)
    for t in range(0, 700, 50):
        blind = [Inconclusive(analyzer=name, reason="x", blind=True) for name in ("network", "gpu_health")]
        book.observe([*blind, Healthy(analyzer="kernel_log")], T0 + t * S, job="j")
    assert states(book)["traffic_drop", "n/mlx5_0/1"] == "no_data"
    assert states(book)["gpu_fault", "g"] == "resolved"  # the kernel's log could still have shown
    book.observe([finding("traffic_drop", "link", "n/mlx5_0/1", at=T0 + 700 * S)], T0 + 700 * S)
    assert states(book)["no_data", "network"] == "resolved"


def test_a_broken_detector_is_an_error_and_abstaining_is_not(book):
    book.observe([Failed(analyzer="hang", error="ValueError: x")], T0, job="j")
    book.observe([Inconclusive(analyzer="mfu", reason="too few steps")], T0, job="j")
    assert states(book) == {("no_data", "hang"): "error"}


def test_a_detector_that_was_blind_and_is_broken_now_is_told_as_a_warning(book):
    book.observe([Inconclusive(analyzer="hang", reason="no rows", blind=True)], T0, job="j")
    deliver(book, T0 + 2 * S)
    book.observe([Failed(analyzer="hang", error="ValueError: x")], T0 + 70 * S, job="j")
    (sent,) = deliver(book, T0 + 73 * S)
    assert [(a["state"], a["severity"]) for a in sent.alerts] == [("error", "warning")]


def test_alerts_of_one_group_are_sent_together_after_the_wait(book):
    book.observe([finding(subject="1")], T0)
    assert deliver(book, T0) == []
    book.observe([finding(subject="2", at=T0 + S)], T0 + S)
    (sent,) = deliver(book, T0 + 2 * S)
    assert (sent.channel, sent.status, [a["subject"] for a in sent.alerts]) == ("pager", "firing", ["1", "2"])
    assert deliver(book, T0 + 3 * S) == []


def test_a_joiner_waits_for_the_interval_and_the_end_is_sent(book):
    book.observe([finding(subject="1")], T0)
    deliver(book, T0 + 2 * S)
    book.observe([finding(subject="2", at=T0 + 5 * S)], T0 + 5 * S)
    assert deliver(book, T0 + 10 * S) == []
    (sent,) = deliver(book, T0 + 62 * S)
    assert [a["subject"] for a in sent.alerts] == ["2"]
    assert passes(book, T0 + 100 * S, T0 + 300 * S) == []
    assert deliver(book, T0 + 305 * S) == []
    (over,) = deliver(book, T0 + 307 * S)
    assert (over.status, {a["subject"] for a in over.alerts}) == ("resolved", {"1", "2"})


def test_an_alert_that_ends_during_the_wait_is_never_sent(tmp_path):
    book = AlertBook(tmp_path / "a.db", AlertConfig(group_wait_s=600, channels=("pager",)))
    book.observe([finding()], T0)
    assert passes(book, T0, T0 + 10_000 * S) == []
    assert states(book) == {("hang", "3"): "resolved"}


def test_an_unacknowledged_alert_repeats_and_an_acknowledged_one_does_not(tmp_path):
    config = AlertConfig(resolve_after_s=1e6, repeat_interval_s=100, channels=("pager",))
    book = AlertBook(tmp_path / "a.db", config)
    book.observe([finding()], T0)
    assert len(deliver(book, T0 + 2 * S)) == 1
    assert deliver(book, T0 + 50 * S) == []
    assert len(deliver(book, T0 + 102 * S)) == 1
    row = book.acknowledge(book.list()[0]["id"][:4], "ann", "on it", T0 + 103 * S)
    assert (row["acknowledged_by"], row["note"]) == ("ann", "on it")
    assert deliver(book, T0 + 900 * S) == []


def test_acknowledging_what_is_unknown_or_over_is_an_error(book):
    with pytest.raises(KeyError):
        book.acknowledge("feed", "ann")
    book.observe([finding()], T0)
    passes(book, T0, T0 + 400 * S)
    with pytest.raises(UsageError, match="is resolved"):
        book.acknowledge(book.list()[0]["id"], "ann")


def test_a_silence_mutes_what_matches_until_it_expires(book):
    book.silence({"kind": "hang"}, actor="ann", comment="known", now_ns=T0, expires_ns=T0 + 100 * S)
    book.observe([finding(), finding("nan")], T0)
    assert [s.group for s in deliver(book, T0 + 2 * S)] == [("j", "nan")]
    assert book.list(T0 + 3 * S)[0]["muted"] or book.list(T0 + 3 * S)[1]["muted"]
    assert passes(book, T0 + 50 * S, T0 + 100 * S) == []
    assert [s.group for s in deliver(book, T0 + 100 * S)] == [("j", "hang")]


def test_a_silence_can_be_ended_early(book):
    made = book.silence({"job": "j"}, actor="a", comment="", now_ns=T0, expires_ns=T0 + 1000 * S)
    book.observe([finding()], T0)
    book.expire_silence(made.id, "ann", T0 + 5 * S)
    assert len(deliver(book, T0 + 6 * S)) == 1
    assert book.silences(T0 + 6 * S) == []


def test_a_switch_explains_its_ports_and_they_explain_their_ranks(book):
    book.topology = Topology(
        node_of={("j", 0): "a", ("j", 1): "b"}, switch_of={"a": "sw1", "b": "sw1", "c": "sw2"}
    )
    ranks = [finding("straggler", subject=str(r)) for r in range(2)]
    book.observe(ranks, T0)
    book.observe([finding("link_flap", "link", "a/mlx5_0/1")], T0)
    shown = {(a["subject"], bool(a["muted"])) for a in book.list()}
    assert shown == {("0", True), ("1", False), ("a/mlx5_0/1", False)}
    book.observe([finding("port_down", "link", "switch/sw1")], T0)
    (sent,) = deliver(book, T0 + 2 * S)
    assert [a["subject"] for a in sent.alerts] == ["switch/sw1"]


def test_a_slow_node_explains_its_link_and_its_stage(book):
    link = finding("slow_link", "group", "dp:8", severity="warning", ranks=[3, 7], nodes=["b", "d"])
    stage = finding("stage_imbalance", "stage", "0", severity="warning", ranks=[0, 1, 2, 3])
    apart = finding("slow_link", "group", "dp:9", severity="warning", ranks=[4, 6], nodes=["c", "d"])
    book.observe([link, stage, apart], T0)
    assert not any(a["muted"] for a in book.list())
    book.observe([finding("straggler", "node", "b", severity="info", ranks=[2, 3], nodes=["b"])], T0)
    assert not any(a["muted"] for a in book.list())
    book.observe([finding("straggler", "node", "b", at=T0 + 1, ranks=[2, 3], nodes=["b"])], T0 + 1)
    assert {a["subject"] for a in book.list() if a["muted"]} == {"dp:8", "0"}
    (sent, other) = deliver(book, T0 + 3 * S)
    assert {a["subject"] for n in (sent, other) for a in n.alerts} == {"b", "dp:9"}


def test_a_storm_of_ranks_under_one_switch_is_one_notification(book):
    book.topology = Topology(
        node_of={("j", r): f"n{r // 8}" for r in range(4096)}, switch_of={f"n{i}": "sw" for i in range(512)}
    )
    book.observe([finding("straggler", subject=str(r)) for r in range(4096)], T0)
    book.observe([finding("port_down", "link", "switch/sw")], T0)
    assert [len(s.alerts) for s in deliver(book, T0 + 2 * S)] == [1]


def test_thousands_of_alerts_on_parts_of_machines_do_not_hold_the_hub_up(book):
    hot = [finding("throttle", "gpu", f"n{i // 8}/GPU-{i}", severity="warning") for i in range(5000)]
    book.observe(hot, T0)
    began_s = time.process_time()
    assert [len(sent.alerts) for sent in book.tick(T0 + 2 * S)] == [5000]
    assert time.process_time() - began_s < 5  # 25 million pairs take far longer


def test_a_notification_is_offered_again_until_it_is_delivered(book):
    book.observe([finding()], T0)
    (sent,) = book.tick(T0 + 2 * S)
    assert book.tick(T0 + 3 * S) == [sent]
    book.failed(sent.id, T0 + 3 * S)
    assert book.tick(T0 + 4 * S) == []
    (again,) = book.tick(T0 + 8 * S)
    assert (again.id, again.attempts) == (sent.id, 1)
    book.delivered(sent.id)
    assert book.undelivered == 0


def test_a_restart_between_two_lines_of_code_loses_nothing(tmp_path):
    config = AlertConfig(channels=("pager", "mail"))
    first = AlertBook(tmp_path / "a.db", config)
    first.observe([finding(node="a", nested={"x": [1, 2]})], T0)
    first.silence({"kind": "nan"}, actor="a", comment="c", now_ns=T0, expires_ns=T0 + 100 * S)
    first.acknowledge(first.list()[0]["id"], "ann", "mine", T0 + S)
    first.observe([finding("crash")], T0 + S)
    sent = first.tick(T0 + 4 * S)
    second = AlertBook(tmp_path / "a.db", config)  # the first one was killed
    assert second.list() == first.list()
    assert second.silences(T0 + 4 * S) == first.silences(T0 + 4 * S)
    assert second.tick(T0 + 4 * S) == sent
    assert {n.channel for n in sent} == {"pager", "mail"}


def test_a_clock_that_steps_back_resolves_and_repeats_nothing(book):
    book.observe([finding()], T0)
    deliver(book, T0 + 2 * S)
    assert deliver(book, T0 - 10_000 * S) == []
    assert states(book) == {("hang", "3"): "firing"}


def test_what_begins_after_a_step_back_of_the_clock_is_sent_at_once(book):
    book.tick(T0 + HOURS)
    book.observe([finding()], T0)
    assert [a["subject"] for n in deliver(book, T0 + 5 * S) for a in n.alerts] == ["3"]


def test_what_comes_again_after_a_step_back_of_the_clock_is_sent_again(book):
    book.observe([finding(at=T0 + HOURS)], T0 + HOURS)
    assert len(deliver(book, T0 + HOURS + 2 * S)) == 1
    ends = passes(book, T0 + HOURS + 50 * S, T0 + HOURS + 400 * S)
    assert [n.status for n in ends] == ["resolved"]
    book.observe([finding(at=T0 + 6 * S)], T0 + 6 * S)
    assert states(book) == {("hang", "3"): "firing"}


def test_an_alert_that_ends_after_a_step_back_of_the_clock_ends_in_time(book):
    book.observe([finding()], T0 + HOURS)
    deliver(book, T0 + HOURS + 2 * S)
    assert passes(book, T0, T0 + 302 * S) == []
    assert [n.status for n in passes(book, T0 + 302 * S, T0 + 400 * S)] == ["resolved"]


def test_a_silence_holds_after_a_step_back_of_the_clock(book):
    book.tick(T0 + HOURS)
    book.silence({"kind": "hang"}, actor="a", comment="", now_ns=T0, expires_ns=T0 + 100 * S)
    book.observe([finding()], T0 + S)
    assert deliver(book, T0 + 5 * S) == []
    assert passes(book, T0 + 50 * S, T0 + 100 * S) == []
    assert len(deliver(book, T0 + 100 * S)) == 1


def test_a_failed_delivery_waits_after_a_step_back_of_the_clock(book):
    book.tick(T0 + HOURS)
    book.observe([finding()], T0)
    (sent,) = book.tick(T0 + 2 * S)
    book.failed(sent.id, T0 + 2 * S)
    assert book.tick(T0 + 6 * S) == []
    assert len(book.tick(T0 + 7 * S)) == 1


class Life(RuleBasedStateMachine):
    """Any order of reports, silences, acknowledgements, time and restarts keeps the promises."""

    def __init__(self):
        super().__init__()
        import tempfile
        from pathlib import Path

        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "a.db"
        self.config = AlertConfig(
            resolve_after_s=50, group_interval_s=10, repeat_interval_s=100, channels=("c",)
        )
        self.book = AlertBook(self.path, self.config)
        self.now = T0
        self.notified: dict[str, list[str]] = {}
        self.missed: set[str] = set()  # of which a message could not be sent at once
        self.counts: dict[str, int] = {}

    def teardown(self):
        self.book.close()
        self.folder.cleanup()

    @rule(subject=st.sampled_from("123"), severity=st.sampled_from(["info", "warning", "critical"]))
    def report(self, subject, severity):
        self.book.observe([finding(subject=subject, at=self.now, severity=severity)], self.now)

    @rule(subject=st.sampled_from("123"))
    def report_old(self, subject):
        self.book.observe([finding(subject=subject, at=T0)], self.now)

    @rule(seconds=st.integers(0, 70))
    def wait(self, seconds):
        self.now += seconds * S

    @rule(fails=st.booleans())
    def tick(self, fails):
        muted = {a["id"] for a in self.book.list(self.now) if a["muted"]}
        known = {n.id for n in self.book.tick(self.now)} if fails else set()
        for notification in self.book.tick(self.now):
            if notification.id in known:
                self.book.failed(notification.id, self.now)
                self.missed |= {alert["id"] for alert in notification.alerts}
                continue
            for alert in notification.alerts:
                assert notification.attempts or alert["id"] not in muted or notification.status == "resolved"
                self.notified.setdefault(alert["id"], []).append(notification.status)
            self.book.delivered(notification.id)

    @precondition(lambda self: any(a["state"] == "firing" for a in self.book.list()))
    @rule()
    def acknowledge(self):
        firing = next(a for a in self.book.list() if a["state"] == "firing")
        self.book.acknowledge(firing["id"], "ann", now_ns=self.now)

    @rule(subject=st.sampled_from("123"), seconds=st.integers(1, 60))
    def silence(self, subject, seconds):
        until = self.now + seconds * S
        self.book.silence({"subject": subject}, actor="a", comment="", now_ns=self.now, expires_ns=until)

    @rule()
    def restart(self):
        before = self.book.list(self.now)
        self.book.close()
        self.book = AlertBook(self.path, self.config)
        assert self.book.list(self.now) == before

    @invariant()
    def an_end_is_sent_only_where_the_begin_was_or_came_too_late_to_be_sent(self):
        for alert, statuses in self.notified.items():
            assert statuses[0] == "firing" or alert in self.missed
            assert all(a == "firing" or b == "firing" for a, b in pairwise(statuses)) or alert in self.missed

    @invariant()
    def counts_never_fall_and_states_are_known(self):
        for alert in self.book.list():
            assert alert["state"] in {"pending", "firing", "resolved", "no_data", "error"}
            assert alert["count"] >= self.counts.get(alert["id"], 1)
            self.counts[alert["id"]] = alert["count"]


Life.TestCase.settings = settings(stateful_step_count=30)
TestLife = Life.TestCase


def test_every_firing_alert_is_sent_in_the_end(book):
    for i in range(20):
        book.observe([finding(subject=str(i), at=T0 + i * S)], T0 + i * S)
        deliver(book, T0 + i * S)
    deliver(book, T0 + 100 * S)
    shown = {h["id"] for h in book.list() if h["state"] == "firing"}
    assert len(shown) == 20
    assert deliver(book, T0 + 101 * S) == []


def test_an_alert_outlives_the_attempt(book):
    book.observe([finding(), replace(finding(at=T0 + 20 * S), attempt=1)], T0 + 20 * S)
    assert len(book.list()) == 1
