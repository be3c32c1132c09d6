"""The life of one alert as pure functions: pending, firing, resolved, no_data, error.

    pending ──▶ firing ──▶ resolved        no_data: its detector went blind; it cannot have resolved
       │           ▲  ▼         │          error:   its detector broke
       ▼           no_data      ▼
    resolved    (seen again)  firing       a resolved alert that comes back is a new occurrence

Nothing here reads a clock or touches a disk; times are UTC nanoseconds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pulsetrain.analytics.incidents import causality
from pulsetrain.analytics.incidents.causality import Symptom
from pulsetrain.analytics.incidents.locations import Location, Topology, place_of
from pulsetrain.analytics.verdict import Failed, Finding, Inconclusive, Severity

State = Literal["pending", "firing", "resolved", "no_data", "error"]
ACTIVE: frozenset[State] = frozenset({"pending", "firing", "no_data", "error"})
_WEIGHT: Mapping[str, int] = {"info": 0, "warning": 1, "critical": 2}
S = 1_000_000_000

_DETECTORS: Mapping[str, tuple[str, ...]] = {
    "node_lost": ("crash",),
    "nan": ("numerics",),
    "loss_spike": ("numerics",),
    "grad_norm_jump": ("numerics",),
    "mfu_decay": ("mfu",),
    "log_anomaly": ("logs",),
    "traffic_drop": ("network",),
    "port_down": ("network",),
    "congestion": ("network",),
    "link_errors": ("network", "gpu_health"),
    "link_flap": ("network", "kernel_log"),
    "host_fault": ("kernel_log",),
    "gpu_fault": ("kernel_log", "gpu_health"),
    "throttle": ("gpu_health",),
    "gpu_hang": ("gpu_health",),
    "pcie_degraded": ("gpu_health",),
}


def detectors(kind: str) -> tuple[str, ...]:
    """The names of the analyzers that can raise findings of a kind.

    >>> detectors("traffic_drop"), detectors("straggler")
    (('network',), ('straggler',))
    """
    return _DETECTORS.get(kind, (kind,))


@dataclass(frozen=True, kw_only=True)
class AlertConfig:
    """How long things take. Seconds; checked on creation."""

    pending_s: float = 0.0
    """How long a finding must last before it fires; findings are persistent already, so 0."""
    resolve_after_s: float = 300.0
    """An alert not seen for so long is resolved."""
    episode_gap_s: float = 10.0
    """A report after so long without one counts as another occurrence."""
    group_wait_s: float = 2.0
    """How long the first notification of a group waits for others to join it."""
    group_interval_s: float = 60.0
    """Least time between two notifications of one group."""
    repeat_interval_s: float = 14_400.0
    """A firing alert that nobody acknowledged is sent again after so long."""
    history_s: float = 604_800.0
    """How long a resolved alert stays in the list."""
    retry_s: float = 5.0
    """First wait before a failed delivery is tried again; it doubles up to ten minutes."""
    channels: tuple[str, ...] = ()
    """Names of the channels that every notification goes to."""

    def __post_init__(self) -> None:
        for name in ("pending_s", "resolve_after_s", "group_wait_s", "group_interval_s", "repeat_interval_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} = {getattr(self, name)}: allowed: 0 or more seconds")


@dataclass(frozen=True, kw_only=True)
class Alert:
    """One trouble of one subject, however often it was reported. `count` is how often it came (back)."""

    id: str
    job: str
    kind: str
    subject_type: str
    subject: str
    severity: Severity
    summary: str
    state: State
    since_ns: int
    last_seen_ns: int
    node: str = ""
    changed_ns: int = 0
    finding_ns: int = 0
    resolved_ns: int = 0
    count: int = 1
    acknowledged_by: str = ""
    acknowledged_ns: int = 0
    note: str = ""
    notified: Literal["", "firing", "resolved"] = ""
    notified_ns: int = 0
    notified_severity: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)

    @property
    def active(self) -> bool:
        return self.state in ACTIVE


@dataclass(frozen=True, kw_only=True)
class Silence:
    """Alerts whose every matcher field equals are not notified until `expires_ns`."""

    id: str
    matchers: Mapping[str, str]
    author: str
    comment: str
    created_ns: int
    expires_ns: int

    def covers(self, alert: Alert, now_ns: int) -> bool:
        if not self.created_ns <= now_ns < self.expires_ns:
            return False
        return all(str(getattr(alert, name, "")) == value for name, value in self.matchers.items())


def fingerprint(job: str, kind: str, subject_type: str, subject: str) -> str:
    """What makes two reports the same alert; the attempt is not part of it, so a restart does not start anew.

    >>> fingerprint("j", "hang", "rank", "3") == fingerprint("j", "hang", "rank", "3")
    True
    """
    return hashlib.sha256("\0".join((job, kind, subject_type, subject)).encode()).hexdigest()[:12]


def seen(alert: Alert | None, finding: Finding, now_ns: int, config: AlertConfig) -> Alert:
    """The alert after one more report of it; the same report twice changes nothing but `last_seen_ns`."""
    if alert is None:
        return _begin(finding, now_ns, config, count=1)
    if not alert.active:
        if finding.ts_ns <= alert.finding_ns:
            return alert  # an old report that arrives late does not wake what is over
        return replace(
            _begin(finding, now_ns, config, count=alert.count + 1),
            notified_ns=alert.notified_ns,
        )
    fresh = finding.ts_ns > alert.finding_ns
    worse = _WEIGHT[finding.severity] > _WEIGHT[alert.severity]
    back = alert.state in ("no_data", "error")
    return replace(
        alert,
        state="firing" if back else alert.state,
        severity=finding.severity if worse else alert.severity,
        summary=finding.summary if fresh else alert.summary,
        evidence=finding.evidence if fresh else alert.evidence,
        changed_ns=now_ns if back or worse else alert.changed_ns,
        count=alert.count + (fresh and now_ns - alert.last_seen_ns >= config.episode_gap_s * S),
        finding_ns=max(finding.ts_ns, alert.finding_ns),
        last_seen_ns=max(now_ns, alert.last_seen_ns),
    )


def _begin(finding: Finding, now_ns: int, config: AlertConfig, *, count: int) -> Alert:
    return Alert(
        id=fingerprint(finding.job, finding.kind, finding.subject_type, finding.subject),
        job=finding.job,
        kind=finding.kind,
        subject_type=finding.subject_type,
        subject=finding.subject,
        severity=finding.severity,
        summary=finding.summary,
        state="pending" if config.pending_s > 0 else "firing",
        since_ns=now_ns,
        last_seen_ns=now_ns,
        changed_ns=now_ns,
        finding_ns=finding.ts_ns,
        count=count,
        node=str(finding.evidence.get("node", "")),
        evidence=finding.evidence,
    )


def detector(verdict: Inconclusive | Failed, job: str, alert: Alert | None, now_ns: int) -> Alert:
    """The alert of a detector that is blind or broken; its subject is the detector."""
    broken = isinstance(verdict, Failed)
    state: State = "error" if broken else "no_data"
    reason = verdict.error if isinstance(verdict, Failed) else verdict.reason
    summary = f"{verdict.analyzer} {'failed' if broken else 'sees no data'}: {reason}"
    if alert is not None and alert.active:
        changed = alert.changed_ns if alert.state == state else now_ns
        return replace(alert, state=state, summary=summary, last_seen_ns=now_ns, changed_ns=changed)
    return Alert(
        id=fingerprint(job, "no_data", "job", verdict.analyzer),
        job=job,
        kind="no_data",
        subject_type="job",
        subject=verdict.analyzer,
        severity="warning" if broken else "info",
        summary=summary,
        state=state,
        since_ns=now_ns,
        last_seen_ns=now_ns,
        changed_ns=now_ns,
        count=1 if alert is None else alert.count + 1,
    )


def aged(alert: Alert, now_ns: int, config: AlertConfig, *, blind: bool) -> Alert:
    """The alert after time has passed. `blind`: no detector that could have raised it can see now."""
    if not alert.active:
        return alert
    absent = now_ns - alert.last_seen_ns >= config.resolve_after_s * S
    if alert.kind != "no_data":
        if absent and blind:
            return alert if alert.state == "no_data" else replace(alert, state="no_data", changed_ns=now_ns)
        if alert.state == "no_data" and not blind:
            alert = replace(alert, state="firing")
    if absent:
        return resolved(alert, now_ns)
    if alert.state == "pending" and now_ns - alert.since_ns >= config.pending_s * S:
        return replace(alert, state="firing", changed_ns=now_ns)
    return alert


def resolved(alert: Alert, now_ns: int) -> Alert:
    """The alert, over."""
    if not alert.active:
        return alert
    return replace(
        alert,
        state="resolved",
        resolved_ns=now_ns,
        changed_ns=now_ns,
        acknowledged_by="",
        acknowledged_ns=0,
    )


@dataclass(frozen=True, kw_only=True)
class Causes:
    """Firing alerts that may be why others fire: those of something that can contain something else, and all
    that can have a part in what several share."""

    containers: tuple[tuple[Alert, Location], ...]
    members: tuple[tuple[Alert, Symptom], ...]


def causes(alerts: Iterable[Alert], topology: Topology | None = None) -> Causes:
    """The causes among some alerts; information is none."""
    firing = [(a, _place(a, topology)) for a in alerts if a.state == "firing" and a.severity != "info"]
    types = ("node", "link", "gpu")
    return Causes(
        containers=tuple((a, place) for a, place in firing if a.subject_type in types),
        members=tuple((a, _trouble(a, place)) for a, place in firing if a.subject_type in (*types, "rank")),
    )


def inhibitor(alert: Alert, of: Causes, topology: Topology | None = None) -> Alert | None:
    """The one of `causes` that explains this alert: switch over node over port over GPU over rank, and over a
    group or stage the trouble of its member that brings this kind about."""
    here = _place(alert, topology)
    for other, place in of.containers:
        if _other(alert, other) and place.contains(here):
            return other
    if alert.subject_type not in causality.SHARED:
        return None
    effect = _trouble(alert, here)
    return next((o for o, c in of.members if _other(alert, o) and causality.explains(c, effect)), None)


def _other(alert: Alert, cause: Alert) -> bool:
    """Another alert of the same job, or of none."""
    return (not cause.job or not alert.job or cause.job == alert.job) and cause.id != alert.id


def _trouble(alert: Alert, place: Location) -> Symptom:
    return causality.trouble([(alert.kind, alert.evidence)], place, mild=alert.severity == "info")


def _place(alert: Alert, topology: Topology | None) -> Location:
    return place_of(
        subject_type=alert.subject_type,
        subject=alert.subject,
        job=alert.job,
        node=alert.node,
        topology=topology,
    )


@dataclass(frozen=True, kw_only=True)
class Notification:
    """What one channel is to be told: alerts of one group that began or ended."""

    id: int
    channel: str
    group: tuple[str, str]
    status: Literal["firing", "resolved"]
    alerts: tuple[Mapping[str, Any], ...]
    attempts: int = 0


def due(group: Iterable[Alert], muted: frozenset[str], now_ns: int, config: AlertConfig) -> list[Alert]:
    """The alerts of one group that a notification sent now would tell of; empty: not yet, or nothing new.

    Muted alerts (silenced or inhibited) are left out; what was acknowledged is not repeated; an end is told
    only of what was told to have begun.
    """
    alerts = list(group)
    fresh = [a for a in alerts if a.id not in muted and _untold(a)]
    last = max((a.notified_ns for a in alerts), default=0)
    if fresh:
        waited = now_ns - min(a.changed_ns for a in fresh) >= config.group_wait_s * S
        spaced = not last or now_ns - last >= config.group_interval_s * S
        return fresh if waited and spaced else []
    return [
        a
        for a in alerts
        if a.state == "firing"
        and a.id not in muted
        and not a.acknowledged_by
        and a.notified == "firing"
        and now_ns - a.notified_ns >= config.repeat_interval_s * S
    ]


def _untold(alert: Alert) -> bool:
    if alert.state == "resolved":
        return alert.notified == "firing"
    if alert.state == "pending" or alert.acknowledged_by:
        return False
    told = alert.notified == "firing" and alert.notified_severity == alert.severity
    return not told and (alert.state == "firing" or alert.kind == "no_data")


def told(alert: Alert, now_ns: int) -> Alert:
    """The alert after it was put into a notification."""
    return replace(
        alert,
        notified="resolved" if alert.state == "resolved" else "firing",
        notified_ns=now_ns,
        notified_severity=alert.severity,
    )
