"""The progress of a job over its steps."""

import math

import pytest

from pulsetrain.dashboard.models.charts import DARK, LIGHT
from pulsetrain.dashboard.models.progress import event_marks, headline, progress_figure


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
    figure = progress_figure(rows, events, LIGHT, axis="step")
    assert len(figure.data) == 2 * 3
    assert list(figure.data[1].y) == [250.0, 250.0]
    assert [shape.x0 for shape in figure.layout.shapes] == [1.0]
    assert "node lost n1" in [a.text for a in figure.layout.annotations]


def test_over_time_marks_are_at_their_moment():
    figure = progress_figure([step(0), step(1)], [event("evict", 700_000_000, node="n2")], DARK, axis="time")
    assert figure.layout.xaxis.type == "date"
    assert figure.layout.shapes[0].x0 == pytest.approx(700.0)


def labels(events, steps=100):
    """The labels of marks: text, side of the line, and what the mouse shows."""
    figure = progress_figure([step(n) for n in range(steps)], events, LIGHT, axis="step")
    return [(a.text, a.xanchor, a.hovertext) for a in figure.layout.annotations if a.textangle == -90]


def test_labels_at_the_left_edge_are_inside_of_the_chart():
    events = [event("evict", 0, node="n1"), event("evict", 50 * 10**9, node="n2")]
    assert [side for _, side, _ in labels(events)] == ["left", "right"]


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
    figure = progress_figure([step(n) for n in range(100)], events, LIGHT, axis="step")
    assert sorted(shape.x0 for shape in figure.layout.shapes) == [50, 51, 80]


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
