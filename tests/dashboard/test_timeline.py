"""The page Timeline."""

import pytest

from pulsetrain.core.errors import Unavailable
from pulsetrain.dashboard import page, timeline
from tests.dashboard.models.timeline.rows import row

MS = 1_000_000
SPAN = row(10**18, 60 * MS, 3, node="node-1", step=118, spans_in_all=3)


@pytest.fixture
def spans(source, monkeypatch):
    monkeypatch.setattr(page, "now_ns", lambda: 10**18 + 10**9)
    source.stored |= {
        "jobs": [{"job": "gpt", "ranks": 8, "first_step": 0, "last_step": 119, "attempts": 1, "last_ns": 1}],
        "spans": [SPAN, {**SPAN, "phase": "all_reduce", "category": "communication", "open": True}],
    }
    return source


def canvas(shown):
    """What the canvas was told to draw."""
    (element,) = shown.app.get("bidi_component")
    return element.proto.bytes


def test_the_newest_steps_of_all_ranks_are_shown(draw, spans):
    shown = draw("timeline")
    assert "Ranks 0-7, steps 118 to 120." in shown.text
    assert "The 1 shortest spans are left out." in shown.text
    assert b"all_reduce" in canvas(shown)


def test_of_many_ranks_the_first_64_and_the_named_ones_are_shown(draw, spans):
    spans.stored["jobs"][0]["ranks"] = 512
    finding = {
        "kind": "straggler",
        "subject_type": "rank",
        "severity": "warning",
        "summary": "",
        "evidence": "{}",
    }
    spans.answers["status"]["jobs"][0]["findings"] = [{**finding, "subject": "371"}]
    assert "Ranks 0-62, 371, steps" in draw("timeline").text


def test_chosen_ranks_and_steps_are_in_the_address(draw, spans):
    assert "Ranks 0-2, 7, steps 40 to 45." in draw("timeline", ranks="0-2,7", steps="40:45").text


def test_ranks_that_cannot_be_read_are_one_sentence(draw, spans):
    assert "seven" in draw("timeline", ranks="seven").app.warning[0].value


def test_no_span_is_said(draw, spans):
    spans.stored["spans"] = []
    assert "No data: no span of ranks 4 in steps 1 to 2." in draw("timeline", ranks="4", steps="1:2").text


def test_a_hub_that_is_away_is_said(draw, spans):
    spans.error = Unavailable("the hub does not answer")
    assert "the hub does not answer" in draw("timeline").text


def test_the_same_stands_there_in_words_and_as_a_table(draw, spans):
    shown = draw("timeline")
    assert "Not ended: rank 3 is in all_reduce for at least 60.0 ms." in shown.text
    assert shown.rows()[0][:4] == ["3", "node-1", "-", "2"]


def test_what_has_not_changed_is_not_drawn_again(draw, spans, monkeypatch):
    calls = []
    fitting = timeline.fitting
    monkeypatch.setattr(timeline, "fitting", lambda *args: calls.append(1) or fitting(*args))
    shown = draw("timeline")
    shown.app.run()
    assert len(calls) == 1
    before = canvas(shown)
    spans.stored["spans"] = [*spans.stored["spans"], {**SPAN, "start_ns": 10**18 + 5}]
    shown.app.run()
    assert len(calls) == 2
    assert canvas(shown) != before


def test_the_last_steps_that_began_in_the_chosen_time_unless_steps_are_given(draw, spans):
    spans.stored["steps_during"] = [{"first_step": 40, "last_step": 60, "newest_step": 60}]
    text = draw("timeline", last="1 hour").text
    assert "steps 57 to 60." in text
    assert "the last ones that began in the chosen time" in text
    assert "steps 1 to 2." in draw("timeline", last="1 hour", steps="1:2").text
    spans.stored["steps_during"] = []
    assert "no step of this job began in this time" in draw("timeline", last="1 hour").text
