"""The post-mortem of an incident as one Markdown text."""

import json

from pulsetrain.dashboard.models.postmortem import file_name, postmortem

S = 10**9
T0 = 1_790_000_000 * S
INCIDENT = {
    "id": "ab12", "job": "gpt", "attempt": 1, "state": "over", "severity": "critical", "since_ns": T0,
    "root": "rank 5", "victims": ["rank 0", "rank 1"], "summary": "Rank 5 is stopped | <b>.",
    "hypotheses": [{"root": "rank 5", "confidence": 0.97, "because": ["It is stopped."]}],
    "timeline": [
        {"ts_ns": T0 + 9 * S, "severity": "critical", "kind": "hang", "subject": "rank 5", "summary": "Late."}
    ],
    "suggested_action": "Read its stack.",
}  # fmt: skip


def event(kind, at_s, **detail):
    return {
        "ts_ns": T0 + at_s * S,
        "kind": kind,
        "actor": "controller",
        "node": "n1",
        "detail": json.dumps(detail),
    }


def test_findings_and_events_are_one_story_in_order_of_time():
    text = postmortem(INCIDENT, [event("evict", 20, reason="hang"), event("rank_exit", 4)])
    lines = [line for line in text.splitlines() if line.startswith("| 2026")]
    assert [line.split("|")[2].strip() for line in lines] == [
        "rank_exit by controller",
        "finding (critical)",
        "evict by controller",
    ]
    for words in ("Read its stack.", "rank 0, rank 1", "97%", "reason: hang", "**Job**: gpt, attempt 1"):
        assert words in text


def test_what_happened_long_before_or_after_is_another_story():
    text = postmortem(INCIDENT, [event("evict", -500), event("evict", 5000)])
    assert "evict" not in text


def test_of_a_long_story_the_end_is_told_and_how_much_is_left_out():
    text = postmortem(INCIDENT, [event("noise", 1) for _ in range(300)] + [event("evict", 20)])
    assert "evict by controller" in text
    assert "The newest 200 lines, 102 earlier ones are left out." in text


def test_nothing_in_it_is_markup():
    text = postmortem({**INCIDENT, "suggested_action": "[Read](http://elsewhere)"}, [])
    assert "\\[Read](http" in text
    assert "<b>" not in text
    assert "stopped \\| &lt;b>" in text


def test_the_file_has_a_plain_name():
    assert file_name(INCIDENT) == "incident-gpt-ab12.md"
    assert "/" not in file_name({**INCIDENT, "job": "../etc"})
