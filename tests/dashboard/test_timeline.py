"""The page Timeline."""

import pytest

SPAN = {
    "rank": 3, "lane": "host", "node": "node-1", "step": 118, "microbatch": -1, "phase": "forward",
    "category": "compute", "group": "", "seq": -1, "bytes": 0, "start_ns": 10**18, "duration_ns": 60_000_000,
    "open": False, "parent": "", "attempt": 1, "spans_in_all": 3,
}  # fmt: skip


@pytest.fixture
def spans(source):
    source.stored |= {
        "jobs": [{"job": "gpt", "ranks": 8, "first_step": 0, "last_step": 119, "attempts": 1, "last_ns": 1}],
        "spans": [SPAN, {**SPAN, "phase": "all_reduce", "category": "communication", "open": True}],
    }
    return source


def test_the_newest_steps_of_the_first_ranks_are_shown(draw, spans):
    shown = draw("timeline")
    assert "Ranks 0-7, steps 118 to 120." in shown.text
    assert "The 1 shortest spans are left out." in shown.text
    assert len(shown.app.get("plotly_chart")) == 1


def test_chosen_ranks_and_steps_are_in_the_address(draw, spans):
    assert "Ranks 0-2, 7, steps 40 to 45." in draw("timeline", ranks="0-2,7", steps="40:45").text


def test_ranks_that_cannot_be_read_are_one_sentence(draw, spans):
    assert "seven" in draw("timeline", ranks="seven").app.warning[0].value


def test_no_span_is_said(draw, spans):
    spans.stored["spans"] = []
    assert "No data: no span of ranks 4 in steps 1 to 2." in draw("timeline", ranks="4", steps="1:2").text
