"""Why nobody is notified of an alert now: a silence covers it, or another alert explains it (inhibition)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pulsetrain.analytics.incidents import causality
from pulsetrain.analytics.incidents.alert_state import SEVERITY_ORDER, Alert, fingerprint, utc_text
from pulsetrain.analytics.incidents.causality import Symptom
from pulsetrain.analytics.incidents.locations import Location, Topology, location_of
from pulsetrain.core.errors import UsageError

MATCHABLE = ("id", "job", "kind", "subject_type", "subject", "severity", "node")
"""fields of an alert that a silence may match"""
_MACHINE_PARTS = ("node", "link", "gpu")
_TAKES_ALL = "node_lost"  # a kind that explains all alerts on its node, as a switch does for what is under it


@dataclass(frozen=True, kw_only=True)
class Silence:
    """Nobody is notified of alerts whose fields equal all `matchers`, until `expires_ns`."""

    id: str
    matchers: Mapping[str, str]
    author: str
    comment: str
    created_ns: int
    expires_ns: int

    def in_force(self, now_ns: int) -> bool:
        """Whether the silence has begun and not expired."""
        return self.created_ns <= now_ns < self.expires_ns

    def covers(self, alert: Alert, now_ns: int, topology: Topology | None = None) -> bool:
        """Whether the alert is silenced now. `topology` tells the node of a rank."""
        return self.in_force(now_ns) and all(
            (_node(alert, topology) if name == "node" else str(getattr(alert, name, ""))) == value
            for name, value in self.matchers.items()
        )


def _node(alert: Alert, topology: Topology | None) -> str:
    """The node of an alert. A rank was where its finding says, and may run elsewhere by now."""
    named = alert.evidence.get("nodes")
    if not alert.node and alert.subject_type == "rank" and isinstance(named, list) and len(named) == 1:
        return str(named[0])
    return _location(alert, topology).node or alert.node


def new_silence(
    matchers: Mapping[str, str], *, author: str, comment: str, now_ns: int, expires_ns: int
) -> Silence:
    """Return a silence from now on.

    Raises `UsageError` for an unknown field, for no field at all, and for an end that is not in the future.
    """
    unknown = sorted(set(matchers) - set(MATCHABLE))
    if unknown or not matchers:
        raise UsageError(f"silence on {', '.join(unknown) or 'nothing'}; allowed: {', '.join(MATCHABLE)}")
    if expires_ns <= now_ns:
        raise UsageError(f"silence expires_ns = {expires_ns}: not in the future")
    return Silence(
        id=fingerprint(json.dumps(dict(matchers), sort_keys=True), author, str(now_ns), comment),
        matchers=dict(matchers),
        author=author,
        comment=comment,
        created_ns=now_ns,
        expires_ns=expires_ns,
    )


def muted(
    alerts: Iterable[Alert], silences: Iterable[Silence], now_ns: int, topology: Topology | None = None
) -> dict[str, str]:
    """Return the id of every alert that nobody is notified of now, with the reason."""
    alerts, silences = list(alerts), list(silences)
    reasons: dict[str, str] = {}
    for alert in alerts:
        silence = next((s for s in silences if s.covers(alert, now_ns, topology)), None)
        if silence is not None:
            until = utc_text(silence.expires_ns)
            reasons[alert.id] = f"silenced by {silence.author} until {until}: {silence.comment}"
    audible = [alert for alert in alerts if alert.id not in reasons]
    causes = firing_causes(audible, topology)
    for alert in audible:
        if alert.active and (cause := inhibitor(alert, causes, topology)) is not None:
            reasons[alert.id] = f"inhibited by {cause.id} ({cause.summary})"
    return reasons


@dataclass(frozen=True, kw_only=True)
class FiringCauses:
    """Firing alerts that may explain others.

    `containers` are alerts on something that can contain other subjects, by that switch or node, each with
    its place among all. `members` are alerts on a subject that can be a member of a group or stage. Alerts of
    severity "info" explain nothing.
    """

    containers: Mapping[tuple[str, str], Sequence[tuple[int, Alert, Location]]]
    members: tuple[tuple[Alert, Symptom], ...]

    def around(self, where: Location) -> list[tuple[int, Alert, Location]]:
        """Containers under the same switch or on the same node, in the order of all."""
        near = [
            *self.containers.get(("switch", where.switch), ()),
            *self.containers.get(("node", where.node), ()),
        ]
        return sorted(near, key=lambda cause: cause[0])


def firing_causes(alerts: Iterable[Alert], topology: Topology | None = None) -> FiringCauses:
    """Return the possible causes among some alerts."""
    firing = [(a, _location(a, topology)) for a in alerts if a.state == "firing" and a.severity != "info"]
    containers: dict[tuple[str, str], list[tuple[int, Alert, Location]]] = {}
    for number, (alert, where) in enumerate(firing):
        if alert.subject_type in _MACHINE_PARTS:
            by = ("switch", where.switch) if where.scope == "switch" else ("node", where.node)
            containers.setdefault(by, []).append((number, alert, where))
    return FiringCauses(
        containers=containers,
        members=tuple(
            (a, _symptom(a, where)) for a, where in firing if a.subject_type in (*_MACHINE_PARTS, "rank")
        ),
    )


def inhibitor(alert: Alert, causes: FiringCauses, topology: Topology | None = None) -> Alert | None:
    """Return the alert that explains this one, or None where there is none.

    It is no less severe, and its kind can cause this kind. It is on a switch, node, port or GPU that contains
    the subject, or on a member of the group or stage. A lost node and a switch explain every kind inside. The
    cause may be inhibited itself: then people are notified of that one's cause, which is as severe.
    """
    where = _location(alert, topology)
    for _, cause, container in causes.around(where):
        if _may_explain(cause, alert) and container.contains(where) and _reaches(cause, container, alert):
            return cause
    if alert.subject_type not in causality.SHARED:
        return None
    effect = _symptom(alert, where)
    return next(
        (
            a
            for a, symptom in causes.members
            if _may_explain(a, alert) and causality.explains(symptom, effect)
        ),
        None,
    )


def _may_explain(cause: Alert, alert: Alert) -> bool:
    """Whether `cause` is another alert of the same job (or one of them names no job), and no less severe."""
    same_job = not cause.job or not alert.job or cause.job == alert.job
    as_severe = SEVERITY_ORDER[cause.severity] >= SEVERITY_ORDER[alert.severity]
    return same_job and as_severe and cause.id != alert.id


def _reaches(cause: Alert, container: Location, alert: Alert) -> bool:
    """Whether an alert on a container can be why there is one on a subject inside."""
    if container.scope == "switch" or cause.kind in (_TAKES_ALL, alert.kind):
        return True
    return alert.kind in causality.cause_of(cause.kind).explains


def _symptom(alert: Alert, where: Location) -> Symptom:
    return causality.symptom_of([(alert.kind, alert.evidence)], where, mild=alert.severity == "info")


def _location(alert: Alert, topology: Topology | None) -> Location:
    return location_of(
        subject_type=alert.subject_type,
        subject=alert.subject,
        job=alert.job,
        node=alert.node,
        topology=topology,
    )
