"""Why nobody is notified of an alert: silences, and alerts that explain others."""

from __future__ import annotations

import pytest

from pulsetrain.analytics.incidents.locations import Topology
from pulsetrain.analytics.incidents.muting import firing_causes, inhibitor, muted, new_silence
from pulsetrain.core.errors import UsageError
from tests.analytics.incidents.findings import T0, S, alert

TOPOLOGY = Topology(node_of={("j", 3): "a"}, switch_of={"a": "sw"})


def test_a_silence_that_makes_no_sense_is_refused():
    for matchers, expires in (({}, T0 + S), ({"colour": "red"}, T0 + S), ({"kind": "hang"}, T0)):
        with pytest.raises(UsageError):
            new_silence(matchers, author="a", comment="", now_ns=T0, expires_ns=expires)


def silence(**matchers):
    return new_silence(matchers, author="ann", comment="known", now_ns=T0, expires_ns=T0 + 10 * S)


@pytest.mark.parametrize(("at", "covered"), [(T0 - 1, False), (T0, True), (T0 + 10 * S, False)])
def test_a_silence_holds_from_its_creation_to_its_end(at, covered):
    assert silence(kind="hang").covers(alert(), at) is covered


def test_a_silence_covers_what_matches_in_all_fields():
    assert silence(kind="hang", subject="3").covers(alert(), T0)
    assert not silence(kind="hang", subject="4").covers(alert(), T0)


@pytest.mark.parametrize(
    ("silenced", "node"),
    [
        (alert("straggler"), "a"),
        (alert("crash", evidence={"nodes": ["c"]}), "c"),
        (alert("node_lost", "node", "a"), "a"),
        (alert("gpu_fault", "gpu", "a/GPU-1"), "a"),
        (alert("hang", node="b"), "b"),
    ],
)
def test_a_silence_of_a_node_covers_what_is_found_on_it(silenced, node):
    known = silence(node=node)
    assert known.covers(silenced, T0, TOPOLOGY)
    assert list(muted([silenced], [known], T0, TOPOLOGY)) == [silenced.id]
    assert not silence(node="d").covers(silenced, T0, TOPOLOGY)


def test_a_silence_of_one_of_several_nodes_does_not_cover_what_names_them_all():
    several = alert("hang", subject="7", evidence={"nodes": ["a", "b"]})
    assert not silence(node="a").covers(several, T0, TOPOLOGY)


def test_the_reason_names_who_silenced_and_until_when():
    (reason,) = muted([alert()], [silence(kind="hang")], T0).values()
    assert reason == "silenced by ann until 2026-09-21T14:13:30Z: known"


@pytest.mark.parametrize(
    ("subject_type", "subject"),
    [("node", "a"), ("link", "switch/sw"), ("gpu", "a/GPU-1"), ("link", "a/mlx5_0")],
)
def test_what_contains_a_rank_explains_its_alert(subject_type, subject):
    cause = alert("gpu_fault", subject_type, subject)
    reasons = muted([alert("straggler"), cause], [], T0, TOPOLOGY)
    assert list(reasons) == [alert("straggler").id]
    assert cause.id in reasons[alert("straggler").id]


@pytest.mark.parametrize(
    "cause",
    [
        alert("gpu_fault", "node", "b"),
        alert("gpu_fault", "node", "a", severity="info"),
        alert("gpu_fault", "node", "a", job="other"),
        alert("gpu_fault", "node", "a", state="resolved"),
    ],
)
def test_alerts_elsewhere_of_no_weight_of_another_job_or_over_explain_nothing(cause):
    assert muted([alert("straggler"), cause], [], T0, TOPOLOGY) == {}


@pytest.mark.parametrize("silences", [[], [silence(kind="link_errors")]])
def test_errors_of_a_port_hide_no_crash_on_its_node(silences):
    small, crash = alert("link_errors", "link", "a/mlx5_0", severity="warning"), alert("crash")
    assert crash.id not in muted([small, crash], silences, T0, TOPOLOGY)


@pytest.mark.parametrize(
    ("cause", "effect"),
    [
        (alert("link_errors", "link", "a/mlx5_0"), alert("crash")),
        (alert("link_flap", "link", "a/mlx5_0", severity="warning"), alert("hang")),
        (alert("throttle", "gpu", "a/GPU-1"), alert("nan")),
        (alert("straggler", severity="warning"), alert("slow_link", "group", "dp", evidence={"ranks": [3]})),
    ],
)
def test_what_cannot_cause_an_alert_or_is_less_severe_does_not_mute_it(cause, effect):
    assert muted([cause, effect], [], T0, TOPOLOGY) == {}


@pytest.mark.parametrize("kind", ["nan", "link_errors", "log_anomaly"])
def test_a_lost_node_and_a_switch_explain_every_kind_inside(kind):
    inside = alert(kind) if kind != "link_errors" else alert(kind, "link", "a/mlx5_0")
    for cause in (alert("node_lost", "node", "a"), alert("switch_fault", "link", "switch/sw")):
        assert list(muted([inside, cause], [], T0, TOPOLOGY)) == [inside.id]


def test_a_node_explains_the_same_kind_of_its_parts():
    node, part = alert("straggler", "node", "a"), alert("straggler")
    assert list(muted([node, part], [], T0, TOPOLOGY)) == [part.id]


def test_a_silenced_cause_explains_nothing():
    lost, crash = alert("node_lost", "node", "a"), alert("crash")
    assert list(muted([lost, crash], [silence(kind="node_lost")], T0, TOPOLOGY)) == [lost.id]


def test_an_inhibited_cause_leads_to_the_one_that_people_are_told_of():
    switch, slow = alert("switch_fault", "link", "switch/sw"), alert("straggler")
    group = alert("slow_link", "group", "dp:8", evidence={"ranks": [3, 7]})
    assert set(muted([switch, slow, group], [], T0, TOPOLOGY)) == {slow.id, group.id}


def test_an_alert_of_no_job_explains_those_of_any_job():
    cause = alert("gpu_fault", "node", "a", job="")
    assert alert("straggler").id in muted([alert("straggler"), cause], [], T0, TOPOLOGY)


def test_a_member_explains_its_group_where_its_kind_can_cause_the_groups():
    group = alert("slow_link", "group", "dp:8", evidence={"ranks": [3, 7]})
    slow, hung = alert("straggler"), alert("nan")
    assert inhibitor(group, firing_causes([slow]), TOPOLOGY) == slow
    assert inhibitor(group, firing_causes([hung]), TOPOLOGY) is None


def test_an_alert_does_not_explain_itself():
    node = alert("gpu_fault", "node", "a")
    assert muted([node], [], T0, TOPOLOGY) == {}


def test_an_alert_that_is_over_needs_no_reason():
    over = alert("straggler", state="resolved")
    assert muted([over, alert("gpu_fault", "node", "a")], [], T0, TOPOLOGY) == {}
