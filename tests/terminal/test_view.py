"""What a terminal shows of the hub's status."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.dashboard.models.states import JOB_STATES
from pulsetrain.terminal.printable import printable
from pulsetrain.terminal.view import Answers, view
from tests.terminal.answers import HANG, INCIDENT, NOW, PENDING, S, alert, job, status

PAST = {**job("old", "recorded"), "state": "past"}


def seen(*jobs, past=(), here_ns=0, **answers):
    return view(Answers(status=status(*jobs, past=past), **answers), here_ns=here_ns)


def test_a_job_has_its_verdict_its_progress_and_its_slowest_ranks():
    (shown,) = seen(job(detectors=[{"analyzer": "mfu", "numbers": {"mfu": 0.41}}])).jobs
    assert (shown.job, shown.state, shown.sentence) == ("gpt", "healthy", "gpt is healthy.")
    assert (shown.step, shown.step_s, shown.mfu, shown.to_do) == (1234, 0.82, 0.41, "Nothing.")
    assert [(s.name, s.node, s.slower_ratio) for s in shown.slowest_ranks] == [
        ("rank 3", "node-10", 0.123), ("rank 0", "node-2", None),
    ]  # fmt: skip
    assert [s.name for s in shown.slowest_nodes] == ["node-10"]


def test_a_finding_blames_its_rank_and_node_and_its_incident_says_what_to_do():
    (shown,) = seen(job(says="hung", findings=[HANG]), incidents=[INCIDENT]).jobs
    assert shown.to_do == "Read its stack."
    assert [s.blamed for s in shown.slowest_ranks] == ["culprit", ""]
    assert [(n.node, n.state) for n in shown.nodes] == [
        ("node-10", "culprit"), ("node-3", "lost"), ("spare", "standby"), ("node-2", "active"),
    ]  # fmt: skip


def test_nodes_are_in_natural_order():
    (shown,) = seen(job()).jobs
    assert [n.node for n in shown.nodes] == ["node-3", "spare", "node-2", "node-10"]


def test_the_time_that_is_left_follows_the_hubs_clock_and_not_this_machines():
    (shown,) = seen(job(pending_hang=PENDING), here_ns=NOW - 3600 * S, age_s=4.0).jobs
    assert shown.pending.left_s == pytest.approx(86.0)
    (shown,) = seen(job(pending_hang={**PENDING, "act_at_ns": None})).jobs
    assert shown.pending.left_s is None


def test_a_hub_that_does_not_tell_its_clock_is_taken_to_share_ours():
    assert view(Answers(status={"hub": {}}), here_ns=NOW).now_ns == NOW


def test_what_needs_a_person_comes_first_and_past_jobs_last():
    jobs = seen(job("a"), job("b", "hung"), job("c", "slow"), past=[PAST, {**PAST, "job": "older"}]).jobs
    assert [j.job for j in jobs] == ["b", "c", "a", "old", "older"]


@pytest.mark.parametrize("state", sorted(JOB_STATES))
def test_what_is_old_is_never_shown_as_a_state(state):
    shown = seen(job(says=state), age_s=12.0, problem="hub x does not answer")
    assert (shown.stale, shown.problem) == (True, "hub x does not answer")
    (one,) = shown.jobs
    assert one.state == "no_data"
    assert one.sentence == "No data for 12 s, because the hub does not answer."
    assert one.last_said == f"gpt is {state}."
    assert min(n.heard_age_s for n in one.nodes) > 12
    assert {n.state for n in one.nodes} == {"lost", "no data"}


def test_a_recording_does_not_become_stale():
    (shown,) = seen(past=[PAST], age_s=12.0).jobs
    assert (shown.state, shown.runs_here) == ("recorded", False)


def test_a_job_without_a_verdict_or_with_an_unknown_one_is_no_data():
    unknown = {"state": "splendid", "sentence": "S."}
    for changes in ({"verdict": None}, {"verdict": unknown}):
        (shown,) = seen(job(**changes)).jobs
        assert shown.state == "no_data"


def test_alerts_that_are_open_the_worst_first():
    alerts = [alert(id="r", state="resolved"), alert(id="w", severity="warning"), alert(id="c", muted="s1")]
    shown = seen(job(), alerts=alerts).alerts
    assert [(a.id, a.muted) for a in shown] == [("w", False), ("c", True)]


def test_one_job_has_its_own_alerts_and_those_of_the_hub():
    alerts = [alert(id="1"), alert(id="2", job="bert"), alert(id="3", job="")]
    only = seen(job(), job("bert"), alerts=alerts).only("gpt")
    assert [j.job for j in only.jobs] == ["gpt"]
    assert [a.id for a in only.alerts] == ["1", "3"]


def test_a_job_that_the_hub_does_not_know_any_more_has_no_data():
    (shown,) = seen(job()).only("bert").jobs
    assert (shown.job, shown.state) == ("bert", "no_data")
    assert "does not know" in shown.sentence


def test_an_older_hub_says_less():
    old = {"job": "gpt", "verdict": {"state": "healthy", "sentence": "S."}, "nodes": []}
    (shown,) = view(Answers(status={"jobs": [old]}), here_ns=NOW).jobs
    assert (shown.state, shown.slowest_ranks, shown.step_s) == ("healthy", (), 0.0)


def test_it_is_one_json_object():
    shown = seen(job(says="hung", findings=[HANG], pending_hang=PENDING), alerts=[alert()])
    answer = json.loads(json.dumps(shown.as_json()))
    assert answer["jobs"][0]["pending"]["left_s"] == 90.0
    assert answer["alerts"][0]["id"] == "a1"


def test_names_and_messages_cannot_move_the_cursor():
    bad = "no\x1b[2Jde\n\x9b1m\u202e"
    nodes = [{"node": bad, "state": "active", "ranks": [], "reason": bad}]
    verdict = {"state": "warning", "sentence": bad, "since_ns": 0}
    shown = seen(job(bad, verdict=verdict, nodes=nodes), alerts=[alert(summary=bad)])
    texts = [
        shown.jobs[0].job,
        shown.jobs[0].sentence,
        shown.jobs[0].nodes[0].reason,
        shown.alerts[0].summary,
    ]
    assert all(text.isprintable() for text in texts)


@given(st.text())
def test_printable_is_printable_on_one_line_and_keeps_what_was(text):
    assert printable(text).isprintable()
    assert printable(printable(text)) == printable(text)
