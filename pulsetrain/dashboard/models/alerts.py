"""Alerts: their order, who they are about, and how often they were seen."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard.models.states import SEVERITIES, look


def ordered_alerts(alerts: Sequence[JsonObject]) -> list[JsonObject]:
    """What needs a person first, then what fires and is in hand, then what is over.

    Each by severity, then the newest. So an acknowledged critical alert stays above information.
    """
    return sorted(
        alerts,
        key=lambda a: (
            a.get("state") == "resolved",
            not needs_a_person(a),
            -look(str(a.get("severity", "")), SEVERITIES).urgency,
            -moment_ns(a.get("since_ns", a.get("since"))),
            str(a.get("id", "")),
        ),
    )


def open_alerts(alerts: Sequence[JsonObject]) -> int:
    """How many alerts need a person."""
    return sum(needs_a_person(alert) for alert in alerts)


def needs_a_person(alert: JsonObject) -> bool:
    """It fires, is more than information, and nobody has acknowledged or silenced it."""
    return (
        alert.get("state") != "resolved"
        and alert.get("severity") != "info"
        and not alert.get("acknowledged_by")
        and not alert.get("muted")
    )


def silence_of(alert: JsonObject) -> dict[str, str]:
    """Matchers that cover this alert and no other: its job, kind and subject."""
    fields = ("job", "kind", "subject_type", "subject")
    return {name: str(alert[name]) for name in fields if alert.get(name)}


def about(alert: JsonObject) -> str:
    """What an alert is about: "rank 5". The subject alone if its type adds nothing."""
    kind, subject = str(alert.get("subject_type") or ""), str(alert.get("subject", ""))
    return subject if kind in ("", "job") or subject.startswith(kind) else f"{kind} {subject}"


def times(count: int | None) -> str:
    """How often, in words.

    >>> times(1), times(3)
    ('once', '3 times')
    """
    return "once" if count in (None, 0, 1) else f"{count:,} times"


def during(alert: JsonObject, from_ns: int, to_ns: int, now_ns: int) -> bool:
    """Whether an alert was there at any moment of a time range. One that is not resolved goes on until now.

    >>> during({"state": "resolved", "since_ns": 2 * 10**18, "resolved_ns": 3 * 10**18}, 0, 10**18, 0)
    False
    """
    begin = moment_ns(alert.get("since_ns", alert.get("since")))
    over = alert.get("state") == "resolved"
    end = moment_ns(alert.get("resolved_ns") or alert.get("last_seen_ns")) if over else now_ns
    return begin <= to_ns and max(end, begin) >= from_ns


def moment_ns(value: float | str | None) -> int:
    """Return a time from the hub's JSON as UTC nanoseconds, 0 for anything else.

    It may be a number of nanoseconds or seconds, or an ISO text.
    """
    if isinstance(value, int | float):
        return int(value) if value > 1e15 else int(value * 1e9)
    try:
        return int(_parsed(str(value)).timestamp() * 1e9)
    except ValueError:
        return 0


def _parsed(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
