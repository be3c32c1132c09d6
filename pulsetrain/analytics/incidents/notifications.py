"""When people are notified of alerts, and of which ones together. Times are UTC nanoseconds."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pulsetrain.analytics.incidents.alert_state import SECOND_NS, SEVERITY_ORDER, Alert, AlertConfig, AlertRow

MAX_RETRY_S = 600.0
MOST_DOUBLED = 30  # no wait is doubled more often
Group = tuple[str, str]  # job and kind: alerts of one group are sent together
Status = Literal["firing", "resolved"]


@dataclass(frozen=True, kw_only=True)
class Notification:
    """A message for one channel. Its alerts began or ended. `attempts` counts failed deliveries."""

    id: int
    channel: str
    group: Group
    status: Status
    alerts: tuple[AlertRow, ...]
    attempts: int = 0


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Alerts of one group that are sent together, the oldest first."""

    group: Group
    status: Status
    alerts: tuple[Alert, ...]


def batches(alerts: Iterable[Alert], muted: Collection[str], now_ns: int, config: AlertConfig) -> list[Batch]:
    """Return what is to be sent now. `muted` are the ids of alerts that nobody is notified of."""
    groups: dict[Group, list[Alert]] = {}
    for alert in alerts:
        groups.setdefault((alert.job, alert.kind), []).append(alert)
    made = []
    for group, members in groups.items():
        chosen = sorted(due(members, muted, now_ns, config), key=lambda a: a.since_ns)
        firing = tuple(a for a in chosen if a.state != "resolved")
        ended = tuple(a for a in chosen if a.state == "resolved")
        if firing:
            made.append(Batch(group=group, status="firing", alerts=firing))
        if ended:
            made.append(Batch(group=group, status="resolved", alerts=ended))
    return made


def renewals(alerts: Iterable[Alert], now_ns: int, config: AlertConfig) -> list[Batch]:
    """Return what channels that forget must be told again, as they would take it for over.

    So it is with alerts that are muted or acknowledged too, and with those of a detector that is blind or
    broken: that people need not hear of them does not end them. One that has become worse since is left out.
    It is news, which people hear of when they are to.
    """
    groups: dict[Group, list[Alert]] = {}
    for alert in alerts:
        told_ns = max(alert.notified_ns, alert.renewed_ns)
        told = alert.notified == "firing" and alert.notified_severity == alert.severity
        if alert.active and told and now_ns - told_ns >= config.renew_s * SECOND_NS:
            groups.setdefault((alert.job, alert.kind), []).append(alert)
    return [Batch(group=group, status="firing", alerts=tuple(open_)) for group, open_ in groups.items()]


def due(group: Iterable[Alert], muted: Collection[str], now_ns: int, config: AlertConfig) -> list[Alert]:
    """Return the alerts of one group to send now, empty where it is too early or there is nothing new.

    Muted alerts are left out. An acknowledged alert is sent again only where it has become
    worse. The end of an alert is sent only where its begin was, or could not be before the alert was over.
    """
    alerts = list(group)
    fresh = [a for a in alerts if a.id not in muted and _has_news(a)]
    last_ns = max((a.notified_ns for a in alerts), default=0)
    if fresh:
        waited = now_ns - min(a.changed_ns for a in fresh) >= config.group_wait_s * SECOND_NS
        spaced = not last_ns or now_ns - last_ns >= config.group_interval_s * SECOND_NS
        return fresh if waited and spaced else []
    return [a for a in alerts if a.id not in muted and _must_repeat(a, now_ns, config)]


def _has_news(alert: Alert) -> bool:
    if alert.state == "resolved":
        return alert.notified == "firing"
    if alert.state == "pending" or (alert.acknowledged_by and not _got_worse(alert)):
        return False
    sent = alert.notified == "firing" and alert.notified_severity == alert.severity
    return not sent and (alert.state == "firing" or alert.kind == "no_data")


def _got_worse(alert: Alert) -> bool:
    """Whether a milder alert was acknowledged. Who did that does not know of this one."""
    known = SEVERITY_ORDER.get(alert.acknowledged_severity or alert.notified_severity)
    told = SEVERITY_ORDER.get(alert.notified_severity, -1) if alert.notified == "firing" else -1
    return known is not None and SEVERITY_ORDER[alert.severity] > max(known, told)


def _must_repeat(alert: Alert, now_ns: int, config: AlertConfig) -> bool:
    open_ = alert.state == "firing" and not alert.acknowledged_by and alert.notified == "firing"
    return open_ and now_ns - alert.notified_ns >= config.repeat_interval_s * SECOND_NS


def notified(alert: Alert, now_ns: int) -> Alert:
    """Return the alert after it was put into a notification."""
    over = alert.state == "resolved"
    told = [s for s in alert.told_severities if s != alert.severity]
    return replace(
        alert,
        notified="resolved" if over else "firing",
        told_severities=[] if over else [*told, alert.severity],
        notified_ns=now_ns,
        notified_severity=alert.severity,
    )


def retry_wait_s(attempts: int, config: AlertConfig) -> float:
    """Return how long to wait after a failed delivery, in seconds. `attempts` counts those before it.

    >>> [retry_wait_s(n, AlertConfig(retry_s=5)) for n in (0, 1, 2, 20, 5000)]
    [5.0, 10.0, 20.0, 600.0, 600.0]
    """
    return min(config.retry_s * 2.0 ** min(attempts, MOST_DOUBLED), MAX_RETRY_S)


def rows(alerts: Sequence[Alert]) -> list[AlertRow]:
    """Return alerts as a notification shows them."""
    return [alert.row() for alert in alerts]
