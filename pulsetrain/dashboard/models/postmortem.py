"""The post-mortem of an incident as one Markdown text: what happened, who, when, what was done."""

from __future__ import annotations

from collections.abc import Sequence

from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard.models.explore import detail_text
from pulsetrain.dashboard.models.text import clock, duration

BEFORE_NS = 120 * 10**9
AFTER_NS = 600 * 10**9
_MOST = 200


def postmortem(incident: JsonObject, events: Sequence[JsonObject]) -> str:
    """The incident with its findings and the events around it in one order of time.

    `events` are rows of `views.events` of its job. Those from two minutes before it to ten minutes after its
    last finding belong to it.
    """
    first, last = _seen(incident)
    from_ns, to_ns = around_ns(incident)
    around = [e for e in events if from_ns <= e["ts_ns"] <= to_ns]
    parts = [
        f"# {_plain(incident['root'])}: {_plain(incident['summary'])}",
        _facts(incident, last - first),
        "## What to do\n\n" + _plain(incident["suggested_action"]),
        "## Who suffered\n\n" + (_plain(", ".join(incident["victims"][:_MOST])) or "Nobody was named."),
        "## Hypotheses\n\n" + _hypotheses(incident["hypotheses"]),
        "## What happened\n\n" + _history(incident["timeline"], around),
    ]
    return "\n\n".join(parts) + "\n"


def around_ns(incident: JsonObject) -> tuple[int, int]:
    """The time whose events belong to an incident, UTC nanoseconds."""
    first, last = _seen(incident)
    return first - BEFORE_NS, last + AFTER_NS


def _seen(incident: JsonObject) -> tuple[int, int]:
    """When its first and its last finding came."""
    first = int(incident["since_ns"])
    return first, max([first, *(int(line["ts_ns"]) for line in incident["timeline"])])


def during(incident: JsonObject, from_ns: int, to_ns: int) -> bool:
    """Whether an incident was seen at any moment of a time range. One that is open goes on."""
    last_ns = max((int(line["ts_ns"]) for line in incident["timeline"]), default=0)
    ended = incident["state"] != "open" and max(last_ns, int(incident["since_ns"])) < from_ns
    return int(incident["since_ns"]) <= to_ns and not ended


def file_name(incident: JsonObject) -> str:
    """A name for the file.

    >>> file_name({"job": "gpt 7b", "id": "ab12", "since_ns": 0})
    'incident-gpt_7b-ab12.md'
    """
    job = "".join(c if c.isalnum() or c in "-." else "_" for c in str(incident["job"] or "machines"))
    return f"incident-{job}-{incident['id']}.md"


def _facts(incident: JsonObject, lasted_ns: int) -> str:
    lines = {
        "Job": f"{incident['job'] or '-'}, attempt {incident['attempt']}",
        "Severity": f"{incident['severity']}, {incident['state']}",
        "Began": f"{clock(int(incident['since_ns']))} UTC",
        "First to last finding": duration(lasted_ns),
        "Id": str(incident["id"]),
    }
    return "\n".join(f"- **{name}**: {_plain(value)}" for name, value in lines.items())


def _hypotheses(hypotheses: Sequence[JsonObject]) -> str:
    rows = [
        f"| {_plain(h['root'])} | {float(h['confidence']):.0%} | {_plain('; '.join(h['because']))} |"
        for h in hypotheses
    ]
    return "\n".join(["| root | confidence | because |", "|---|---|---|", *rows])


def _history(findings: Sequence[JsonObject], events: Sequence[JsonObject]) -> str:
    """Findings and events in order of time."""
    lines = [
        (int(f["ts_ns"]), f"finding ({f['severity']})", f"{f['kind']} of {f['subject']}: {f['summary']}")
        for f in findings
    ]
    lines += [
        (e["ts_ns"], f"{e['kind']} by {e['actor']}", f"{e['node']} {detail_text(e['detail'])}".strip())
        for e in events
    ]
    rows = [
        f"| {clock(ts)} | {_plain(what)} | {_plain(words)} |" for ts, what, words in sorted(lines)[-_MOST:]
    ]
    left_out = len(lines) - len(rows)
    before = [f"The newest {_MOST} lines, {left_out:,} earlier ones are left out.\n"] if left_out else []
    return "\n".join([*before, "| time (UTC) | what | words |", "|---|---|---|", *rows])


def _plain(text: object) -> str:
    """A text on one line that is not taken for Markdown or HTML."""
    flat = " ".join(str(text).split())
    return (
        flat.replace("\\", "\\\\")
        .replace("|", "\\|")
        .replace("[", "\\[")
        .replace("<", "&lt;")
        .replace("`", "'")
    )
