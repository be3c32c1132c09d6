"""The life of one alert as pure functions.

    pending ──▶ firing ──▶ resolved        no_data: its detector sees nothing, so it cannot have resolved
       │           ▲  ▼         │          error:   its detector failed
       ▼           no_data      ▼
    resolved    (seen again)  firing       a resolved alert that comes back is a new occurrence

Nothing here reads a clock or touches a disk. Times are UTC nanoseconds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Literal, TypedDict

from pulsetrain.analytics.verdict import Failed, Finding, Inconclusive, Severity

State = Literal["pending", "firing", "resolved", "no_data", "error"]
ACTIVE: frozenset[State] = frozenset({"pending", "firing", "no_data", "error"})
SECOND_NS = 1_000_000_000
SEVERITY_ORDER: Mapping[str, int] = {"info": 0, "warning": 1, "critical": 2}

# Kinds of findings whose analyzer has another name than the kind.
_DETECTORS: Mapping[str, tuple[str, ...]] = {
    "node_lost": ("crash",),
    "nan": ("numerics",),
    "grad_overflow": ("numerics",),
    "loss_spike": ("numerics",),
    "grad_norm_jump": ("numerics",),
    "mfu_decay": ("mfu",),
    "log_anomaly": ("logs",),
    "traffic_drop": ("network",),
    "traffic_stop": ("network",),
    "traffic_fluctuation": ("network",),
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
    """Return the names of the analyzers that can raise findings of a kind.

    >>> detectors("traffic_drop"), detectors("straggler")
    (('network',), ('straggler',))
    """
    return _DETECTORS.get(kind, (kind,))


@dataclass(frozen=True, kw_only=True)
class AlertConfig:
    """How long alerts last and wait, in seconds. Raises `ValueError` for a negative time."""

    pending_s: float = 0.0
    """How long a finding must last before it fires. Findings are confirmed already, so 0."""
    resolve_after_s: float = 300.0
    """An alert that is not seen for so long is resolved."""
    episode_gap_s: float = 10.0
    """A report after so long without one counts as another occurrence."""
    group_wait_s: float = 2.0
    """How long the first notification of a group waits for other alerts to join it."""
    group_interval_s: float = 60.0
    """Least time between two notifications of one group."""
    repeat_interval_s: float = 14_400.0
    """A firing alert that nobody acknowledged is sent again after so long."""
    history_s: float = 604_800.0
    """How long a resolved alert stays in the list."""
    retry_s: float = 5.0
    """First wait before a failed delivery is tried again. It doubles up to ten minutes."""
    channels: tuple[str, ...] = ()
    """Names of the channels that every notification goes to."""
    forgetful: tuple[str, ...] = ()
    """Those of them whose receiver ends an alert by itself that it is not told of again within a day."""
    renew_s: float = 28_800.0
    """They are told again of what is still open after so long, whatever people did with it."""

    def __post_init__(self) -> None:
        for name in ("pending_s", "resolve_after_s", "group_wait_s", "group_interval_s", "repeat_interval_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} = {getattr(self, name)}: allowed: 0 or more seconds")


class AlertSubject(TypedDict):
    """What an alert is about."""

    job: str
    kind: str
    subject_type: str
    subject: str


class AlertRow(AlertSubject):
    """An alert as the hub's API and notifications show it. `resolved_ns` is None while it is active.

    `earlier_severities` are those that people were told of before this one.
    """

    id: str
    state: State
    severity: Severity
    summary: str
    since: str
    since_ns: int
    last_seen_ns: int
    resolved_ns: int | None
    count: int
    acknowledged_by: str
    note: str
    muted: str
    earlier_severities: Sequence[Severity]


@dataclass(frozen=True, kw_only=True)
class Alert:
    """One problem of one subject, however often it was reported.

    `count` is how often it came or came back. `finding_ns` is the time of the newest finding. `notified` is
    what people were told last: nothing, that it fires, or that it is resolved. `told_severities` are those
    with which they were told that it fires, until they are told of its end. `acknowledged_severity` is what
    it had when somebody acknowledged it. `unseen`: it ended because nobody saw it any more. `renewed_ns` is
    when channels that forget were told again that it is open.
    """

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
    unseen: bool = False
    count: int = 1
    acknowledged_by: str = ""
    acknowledged_ns: int = 0
    acknowledged_severity: str = ""
    note: str = ""
    notified: Literal["", "firing", "resolved"] = ""
    notified_ns: int = 0
    renewed_ns: int = 0
    notified_severity: str = ""
    told_severities: Sequence[Severity] = field(default_factory=list)
    evidence: Mapping[str, object] = field(default_factory=dict)

    @property
    def active(self) -> bool:
        return self.state in ACTIVE

    def row(self, muted: str = "") -> AlertRow:
        """Return the alert as people see it. `muted` says why nobody is notified of it now."""
        return {
            "id": self.id,
            "state": self.state,
            "severity": self.severity,
            "kind": self.kind,
            "job": self.job,
            "subject_type": self.subject_type,
            "subject": self.subject,
            "summary": self.summary,
            "since": utc_text(self.since_ns),
            "since_ns": self.since_ns,
            "last_seen_ns": self.last_seen_ns,
            "resolved_ns": self.resolved_ns or None,
            "count": self.count,
            "acknowledged_by": self.acknowledged_by,
            "note": self.note,
            "muted": muted,
            "earlier_severities": [s for s in self.told_severities if s != self.severity],
        }


def utc_text(ns: int) -> str:
    """Return a time as ISO 8601 text in UTC, to the second.

    >>> utc_text(1_790_000_000_000_000_000)
    '2026-09-21T14:13:20Z'
    """
    return datetime.fromtimestamp(ns / 1e9, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def fingerprint(job: str, kind: str, subject_type: str, subject: str) -> str:
    """Return the id of the alert for a subject. It has no attempt in it, so that a restart keeps the alert.

    >>> fingerprint("j", "hang", "rank", "3") == fingerprint("j", "hang", "rank", "3")
    True
    """
    return hashlib.sha256("\0".join((job, kind, subject_type, subject)).encode()).hexdigest()[:12]


def after_finding(alert: Alert | None, finding: Finding, now_ns: int, config: AlertConfig) -> Alert:
    """Return the alert after a finding. The same finding twice changes nothing but `last_seen_ns`.

    `alert` is None for the first finding. A resolved alert comes back with a newer finding. One that ended
    because nobody saw it comes back with the same finding too: it was open all the time.
    """
    if alert is None:
        return _begin(finding, now_ns, config, count=1)
    if not alert.active:
        if finding.ts_ns <= alert.finding_ns and not alert.unseen:
            return alert
        return replace(
            _begin(finding, now_ns, config, count=alert.count + 1),
            notified_ns=alert.notified_ns,
            told_severities=alert.told_severities,
        )
    fresh = finding.ts_ns > alert.finding_ns
    worse = SEVERITY_ORDER[finding.severity] > SEVERITY_ORDER[alert.severity]
    back = alert.state in ("no_data", "error")
    return replace(
        alert,
        state="firing" if back else alert.state,
        severity=finding.severity if worse else alert.severity,
        summary=finding.summary if fresh else alert.summary,
        evidence=finding.evidence if fresh else alert.evidence,
        changed_ns=now_ns if back or worse else alert.changed_ns,
        count=alert.count + (fresh and now_ns - alert.last_seen_ns >= config.episode_gap_s * SECOND_NS),
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


def after_detector_loss(verdict: Inconclusive | Failed, job: str, alert: Alert | None, now_ns: int) -> Alert:
    """Return the alert on a detector that is blind or failed. Its subject is the detector."""
    failed = isinstance(verdict, Failed)
    state: State = "error" if failed else "no_data"
    reason = verdict.error if isinstance(verdict, Failed) else verdict.reason
    summary = f"{verdict.analyzer} {'failed' if failed else 'sees no data'}: {reason}"
    if alert is not None and alert.active:
        same = alert.state == state
        return replace(
            alert,
            state=state,
            severity="warning" if failed else alert.severity,
            summary=summary,
            last_seen_ns=now_ns,
            changed_ns=alert.changed_ns if same else now_ns,
        )
    return Alert(
        id=detector_fingerprint(job, verdict.analyzer),
        job=job,
        kind="no_data",
        subject_type="job",
        subject=verdict.analyzer,
        severity="warning" if failed else "info",
        summary=summary,
        state=state,
        since_ns=now_ns,
        last_seen_ns=now_ns,
        changed_ns=now_ns,
        count=1 if alert is None else alert.count + 1,
        told_severities=[] if alert is None else alert.told_severities,
    )


def detector_fingerprint(job: str, analyzer: str) -> str:
    """Return the id of the alert on a detector of a job."""
    return fingerprint(job, "no_data", "job", analyzer)


def after_time(
    alert: Alert, now_ns: int, config: AlertConfig, *, blind: bool, watched_since_ns: int = 0
) -> Alert:
    """Return the alert at `now_ns`. `blind`: no detector that could have raised it sees anything now.

    An alert can be missed only while somebody looks, which is since `watched_since_ns`.
    """
    if not alert.active:
        return alert
    missed_ns = now_ns - max(alert.last_seen_ns, watched_since_ns)
    absent = missed_ns >= config.resolve_after_s * SECOND_NS
    if alert.kind != "no_data":
        if absent and blind:
            return alert if alert.state == "no_data" else replace(alert, state="no_data", changed_ns=now_ns)
        if alert.state == "no_data" and not blind:
            alert = replace(alert, state="firing")
    if absent:
        return replace(resolved(alert, now_ns), unseen=True)
    if alert.state == "pending" and now_ns - alert.since_ns >= config.pending_s * SECOND_NS:
        return replace(alert, state="firing", changed_ns=now_ns)
    return alert


def resolved(alert: Alert, now_ns: int) -> Alert:
    """Return the alert as resolved. Nobody has it in hand any more."""
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
