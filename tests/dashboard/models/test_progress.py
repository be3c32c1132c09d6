"""The progress of a job over its steps."""

import math

import pytest

from pulsetrain.dashboard.models.charts import DARK, LIGHT
from pulsetrain.dashboard.models.progress import event_marks, headline, progress_chart


def step(number, attempt=0, **values):
    return {
        "attempt": attempt, "step": number, "start_ns": number * 10**9, "step_ns": 250_000_000, "worst_ns": 3,
        "tokens_per_s": 1000.0, "loss": 2.5, **values,
    }  # fmt: skip


def event(kind, ts_ns, attempt=1, node=""):
    return {"kind": kind, "ts_ns": ts_ns, "attempt": attempt, "node": node}


def test_each_attempt_has_a_line_and_each_interruption_a_mark():
    rows = [step(0), step(1), step(1, attempt=1), step(2, attempt=1)]
    events = [event("attempt_started", 0, attempt=0), event("node_lost", 1_500_000_000, 0, "n1")]
    drawn = progress_chart(rows, events, LIGHT, axis="step")
    lines = [series for series in drawn.option["series"] if series["data"]]
    assert len(lines) == 2 * 3
    assert [line["data"] for line in lines if line["name"] == "step time, ms"] == [
        [[0.0, 250.0], [1.0, 250.0]],
        [[1.0, 250.0], [2.0, 250.0]],
    ]
    assert [mark["xAxis"] for mark in marks(drawn)] == [1.0]
    assert [mark["label"]["formatter"] for mark in marks(drawn)] == ["node lost n1"]


def marks(drawn, panel=-1):
    """The marks of one panel, the one at the top if none is given."""
    return [s["markLine"]["data"] for s in drawn.option["series"] if "markLine" in s][panel]


def test_each_panel_has_all_marks_and_the_one_at_the_top_their_labels():
    drawn = progress_chart([step(0), step(9)], [event("hang", 5 * 10**9)], LIGHT, axis="step")
    assert [marks(drawn, panel)[0]["label"]["show"] for panel in range(3)] == [False, False, True]
    tops = {title["text"]: title["top"] for title in drawn.option["title"]}
    assert tops["loss"] < tops["step time, ms"] < tops["tokens/s"]


def test_a_loss_that_is_no_number_leaves_a_gap():
    drawn = progress_chart([step(0), step(1, loss=math.nan), step(2, loss=None)], [], LIGHT, axis="step")
    (loss,) = [s for s in drawn.option["series"] if s.get("name") == "loss"]
    assert loss["data"] == [[0.0, 2.5], [1.0, None], [2.0, None]]


def test_tokens_that_nobody_counted_are_not_drawn_as_none():
    drawn = progress_chart([step(0, tokens_per_s=0.0), step(1, tokens_per_s=0.0)], [], LIGHT, axis="step")
    (tokens,) = [s for s in drawn.option["series"] if s.get("name") == "tokens/s"]
    assert tokens["data"] == [[0.0, None], [1.0, None]]
    titles = [title["text"] for title in drawn.option["title"]]
    assert titles == ["tokens/s: not known", "step time, ms", "loss"]


def test_over_time_marks_are_at_their_moment():
    drawn = progress_chart([step(0), step(1)], [event("evict", 700_000_000, node="n2")], DARK, axis="time")
    assert {axis["type"] for axis in drawn.option["xAxis"]} == {"time"}
    assert marks(drawn)[0]["xAxis"] == pytest.approx(700.0)


def labels(events, steps=100):
    """The labels of marks: text, place beside the line, and what the mouse shows."""
    drawn = progress_chart([step(n) for n in range(steps)], events, LIGHT, axis="step")
    found = [(mark, mark["label"]) for mark in marks(drawn)]
    return [(text["formatter"], text["position"], mark["name"]) for mark, text in found if text["show"]]


def test_labels_at_the_left_edge_are_inside_of_the_chart():
    events = [event("evict", 0, node="n1"), event("evict", 50 * 10**9, node="n2")]
    assert [side for _, side, _ in labels(events)] == ["insideEndBottom", "insideEndTop"]


def test_a_label_is_no_longer_than_the_chart_is_high():
    events = [event("node_lost", 50 * 10**9 + n, node=f"gpu-cluster-7-node-{n}") for n in range(40)]
    ((text, _, hover),) = labels(events)
    assert text == "node lost gpu-cluster-7-node-0 and 39 more"
    assert "gpu-cluster-7-node-39" in hover
    ((text, _, hover),) = labels([event("evict", 50 * 10**9, node="n" * 80)])
    assert len(text) <= 56
    assert text.startswith("evicted nnn")
    assert text.endswith("n…")
    assert hover == f"evicted {'n' * 80}"


def test_marks_beside_each_other_share_a_label_and_keep_their_lines():
    events = [event("attempt_started", n * 10**9) for n in (50, 51, 51)] + [event("hang", 80 * 10**9)]
    assert [text for text, _, _ in labels(events)] == ["restart (3 times)", "hang"]
    drawn = progress_chart([step(n) for n in range(100)], events, LIGHT, axis="step")
    assert sorted(mark["xAxis"] for mark in marks(drawn)) == [50, 51, 80]


def test_a_chart_of_one_step_has_its_marks():
    assert [text for text, _, _ in labels([event("hang", 0)], steps=1)] == ["hang"]


def test_the_first_attempt_is_no_restart():
    assert event_marks([event("attempt_started", 5, attempt=0)]) == []
    assert [label for _, label, _ in event_marks([event("attempt_started", 5, attempt=1)])] == ["restart"]


def test_headline_says_what_is_not_known():
    assert set(headline([]).values()) == {"-"}
    assert headline([step(3, loss=None, tokens_per_s=0.0)]) == {
        "loss": "-",
        "step time": "250 ms",
        "tokens/s": "-",
        "step": "3",
    }
    assert headline([step(3, loss=math.nan)])["loss"] == "nan"
