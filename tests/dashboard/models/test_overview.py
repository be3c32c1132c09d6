"""The overview's sentences and course."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.dashboard.models.charts import DARK, LIGHT
from pulsetrain.dashboard.models.overview import (
    course,
    evidence,
    headline,
    job_lines,
    live_facts,
    marks,
    stale,
)
from pulsetrain.dashboard.models.states import JOB_STATES, NODE_STATES, RANK_STATES, job_state, look, pill

STORED = {"job": "old", "attempts": 2, "last_step": 99, "last_ns": 1_700_000_000_000_000_000}


def live(state="healthy", job="gpt"):
    return {"job": job, "attempt": 1, "step": 7, "verdict": {"state": state, "sentence": "S.", "since_ns": 5}}


def test_a_job_the_hub_runs_says_what_the_hub_says():
    (line,) = job_lines([live("slow")], [])
    assert (line.state, line.sentence, line.since_ns, line.step) == ("slow", "S.", 5, 7)


def test_a_job_only_on_record_has_no_data():
    lines = job_lines([live()], [STORED, {**STORED, "job": "gpt"}])
    assert [line.job for line in lines] == ["gpt", "old"]
    assert lines[1].state == "no_data"
    assert "2023-11-14 22:13:20" in lines[1].sentence


@given(st.one_of(st.none(), st.text(), st.sampled_from(sorted(JOB_STATES))))
def test_only_the_word_healthy_is_healthy(word):
    state = job_state({"verdict": {"state": word}})
    assert state in JOB_STATES
    assert (state == "healthy") == (word == "healthy")


@pytest.mark.parametrize("job", [{}, {"verdict": None}, {"verdict": {}}])
def test_a_job_without_a_verdict_has_no_data(job):
    assert job_state(job) == "no_data"


def test_an_old_answer_expires():
    lines = job_lines([live("healthy")], [])
    assert stale(lines, 9.0) == lines
    (line,) = stale(lines, 11.0)
    assert line.state == "no_data"
    assert line.sentence == "No data for 11 s. The hub last said: S."


@pytest.mark.parametrize("states", [JOB_STATES, RANK_STATES, NODE_STATES])
def test_states_are_told_apart_without_colour(states):
    signs = [(state.label, state.glyph) for state in states.values()]
    assert len({label for label, _ in signs}) == len(signs)
    assert all(label and glyph for label, glyph in signs)


def test_a_state_this_table_does_not_know_keeps_its_word_and_is_escaped():
    assert look("odd", NODE_STATES).label == "odd"
    assert "<b>" not in pill("<b>", NODE_STATES)


def step(number, attempt=0, **values):
    return {
        "attempt": attempt, "step": number, "start_ns": number * 10**9, "step_ns": 250_000_000, "worst_ns": 3,
        "tokens_per_s": 1000.0, "loss": 2.5, **values,
    }  # fmt: skip


def event(kind, ts_ns, attempt=1, node=""):
    return {"kind": kind, "ts_ns": ts_ns, "attempt": attempt, "node": node}


def test_course_has_a_line_for_each_attempt_and_marks_for_what_broke():
    rows = [step(0), step(1), step(1, attempt=1), step(2, attempt=1)]
    events = [event("attempt_started", 0, attempt=0), event("node_lost", 1_500_000_000, 0, "n1")]
    figure = course(rows, events, LIGHT, axis="step")
    assert len(figure.data) == 2 * 3
    assert list(figure.data[1].y) == [250.0, 250.0]
    assert [shape.x0 for shape in figure.layout.shapes] == [1.0]
    assert "node lost n1" in [a.text for a in figure.layout.annotations]


def test_course_over_time_places_marks_at_their_moment():
    figure = course([step(0), step(1)], [event("evict", 700_000_000, node="n2")], DARK, axis="time")
    assert figure.layout.xaxis.type == "date"
    assert figure.layout.shapes[0].x0 == pytest.approx(700.0)


def test_the_first_attempt_is_no_restart():
    assert marks([event("attempt_started", 5, attempt=0)]) == []
    assert [label for _, label, _ in marks([event("attempt_started", 5, attempt=1)])] == ["restart"]


def test_headline_says_what_is_not_known():
    assert set(headline([]).values()) == {"-"}
    assert headline([step(3, loss=None, tokens_per_s=0.0)]) == {
        "loss": "-",
        "step time": "250 ms",
        "tokens/s": "-",
        "step": "3",
    }
    assert headline([step(3, loss=math.nan)])["loss"] == "nan"


def test_evidence_links_to_what_proves_it():
    row = {
        "kind": "hang", "subject_type": "rank", "subject": "5", "summary": "s", "confidence": 0.9, "ts_ns": 1,
        "times": 2, "severity": "critical",
    }  # fmt: skip
    (rank,) = evidence([row], job="a b", last_step=40)
    assert rank.href == "timeline?job=a+b&ranks=5&steps=37%3A40"
    (node,) = evidence([{**row, "subject_type": "node", "subject": "n&1"}], job="j", last_step=0)
    assert node.href == "heatmap?job=j&find=n%261"
    (group,) = evidence([{**row, "subject_type": "group", "subject": "tp"}], job="j", last_step=0)
    assert group.href.startswith("topology?")


def test_the_mfu_is_shown_where_the_hub_knows_the_device():
    job = {"step": 3, "detectors": [{"analyzer": "mfu", "state": "healthy", "numbers": {"mfu": 0.414}}]}
    assert live_facts(job)["MFU"] == "41.4%"
    assert "MFU" not in live_facts({"step": 3, "detectors": [{"analyzer": "mfu", "numbers": {}}]})
