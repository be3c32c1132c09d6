"""The book of alerts: what fires, who has it in hand, what was sent. In SQLite: a restart forgets nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sqlite3
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog

from pulsetrain.analytics.incidents import alert_state as state
from pulsetrain.analytics.incidents.alert_state import Alert, AlertConfig, Notification, Silence
from pulsetrain.analytics.incidents.locations import Topology
from pulsetrain.analytics.verdict import Failed, Finding, Healthy, Inconclusive, Verdict
from pulsetrain.core.errors import Unavailable, UsageError

log = structlog.get_logger()

__all__ = ["Alert", "AlertBook", "AlertConfig", "Notification", "Silence"]

MATCHABLE = ("id", "job", "kind", "subject_type", "subject", "severity", "node")
_LONGEST_RETRY_S = 600.0
_DAMAGE = (sqlite3.DatabaseError, ValueError, TypeError, AttributeError)  # of the file, or of what a row says
_TABLES = """
CREATE TABLE IF NOT EXISTS alerts (id TEXT PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS silences (id TEXT PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS history (ts_ns INTEGER, id TEXT, state TEXT, actor TEXT, note TEXT);
CREATE TABLE IF NOT EXISTS outbox (id INTEGER PRIMARY KEY AUTOINCREMENT, channel TEXT, body TEXT,
                                   attempts INTEGER DEFAULT 0, next_ns INTEGER DEFAULT 0);
CREATE INDEX IF NOT EXISTS history_of ON history (id, ts_ns);
"""


class AlertBook:
    """Alerts of one hub. Calls may come from any thread; time is an argument and may step back.

    A notification is in the outbox, in the same transaction that marks its alerts as told, until `delivered`
    is called for it: each channel hears of each alert at least once, also over a restart in between.
    """

    def __init__(self, path: Path, config: AlertConfig | None = None) -> None:
        """A damaged file is set aside under another name, and the book begins anew. Raises `Unavailable`
        where the file cannot be opened or written."""
        self.config = config or AlertConfig()
        self.topology = Topology()
        self._lock = threading.RLock()
        try:
            self._open(path)
        except _DAMAGE as error:
            self._db.close()
            log.warning("alerts_damaged", path=str(path), error=str(error), kept_as=str(_set_aside(path)))
            self._open(path)

    def _open(self, path: Path) -> None:
        try:
            self._db = sqlite3.connect(path, check_same_thread=False)
            self._load()
        except sqlite3.OperationalError as error:
            raise Unavailable(f"alerts {path}: {error}") from error

    def _load(self) -> None:
        self._db.executescript(f"PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; {_TABLES}")
        self._alerts = {i: Alert(**_of(Alert, b)) for i, b in self._db.execute("SELECT id, body FROM alerts")}
        self._silences = {
            i: Silence(**_of(Silence, b)) for i, b in self._db.execute("SELECT id, body FROM silences")
        }
        known = self._alerts.values()
        self._blind = {(a.job, a.subject) for a in known if a.kind == "no_data" and a.active}
        self._now_ns = max((a.last_seen_ns for a in self._alerts.values()), default=0)

    def close(self) -> None:
        """Close the file; nothing is lost by not calling it."""
        with self._lock:
            self._db.close()

    # -- what happens --

    def observe(self, verdicts: Iterable[Verdict], now_ns: int, *, job: str = "") -> None:
        """Take in verdicts. A finding begins or renews its alert; a blind or failed detector has an alert of
        its own until it is healthy or finds something. `job` is for verdicts that name none."""
        with self._lock, self._db:
            now_ns = self._forward(now_ns)
            for verdict in verdicts:
                if isinstance(verdict, Finding):
                    self._see(verdict, now_ns)
                elif isinstance(verdict, Failed) or (isinstance(verdict, Inconclusive) and verdict.blind):
                    self._lose(verdict, job, now_ns)
                elif isinstance(verdict, Healthy):
                    self._sighted(verdict.analyzer, job, now_ns)
            self._age(now_ns)

    def tick(self, now_ns: int) -> Sequence[Notification]:
        """Let time pass; returns the notifications that are due for delivery now, failed ones included."""
        with self._lock, self._db:
            now_ns = self._forward(now_ns)
            self._age(now_ns)
            self._enqueue(now_ns)
            rows = self._db.execute(
                "SELECT id, channel, body, attempts FROM outbox WHERE next_ns <= ? ORDER BY id", (now_ns,)
            ).fetchall()
        return [_notification(*row) for row in rows]

    def delivered(self, notification: int) -> None:
        """The channel has it; it is not sent again."""
        with self._lock, self._db:
            self._db.execute("DELETE FROM outbox WHERE id = ?", (notification,))

    def failed(self, notification: int, now_ns: int) -> None:
        """The channel did not take it; try again later, each time twice as late."""
        with self._lock, self._db:
            row = self._db.execute("SELECT attempts FROM outbox WHERE id = ?", (notification,)).fetchone()
            if row is None:
                return
            wait_s = min(self.config.retry_s * 2 ** row[0], _LONGEST_RETRY_S)
            self._db.execute(
                "UPDATE outbox SET attempts = attempts + 1, next_ns = ? WHERE id = ?",
                (now_ns + int(wait_s * state.S), notification),
            )

    # -- what people do --

    def acknowledge(
        self, alert: str, actor: str, note: str = "", now_ns: int | None = None
    ) -> dict[str, Any]:
        """Somebody has it in hand: no more repeats until it is over. `alert` may be the beginning of an id.

        Raises `KeyError` for an alert that is not known, `UsageError` for one that is over or a beginning
        that several alerts share.
        """
        with self._lock, self._db:
            now_ns = self._forward(now_ns or 0)
            found = self._find(alert)
            if not found.active:
                raise UsageError(
                    f"alert {found.id} is {found.state}; allowed: {', '.join(sorted(state.ACTIVE))}"
                )
            changed = dataclasses.replace(found, acknowledged_by=actor, acknowledged_ns=now_ns, note=note)
            self._put(changed, now_ns, "acknowledged", actor, note)
            return _row(changed)

    def silence(
        self, matchers: Mapping[str, str], *, actor: str, comment: str, now_ns: int, expires_ns: int
    ) -> Silence:
        """Mute the alerts that match until `expires_ns`. Raises `UsageError` for an unknown field, no field
        at all, or an end that is not in the future."""
        unknown = sorted(set(matchers) - set(MATCHABLE))
        if unknown or not matchers:
            raise UsageError(f"silence on {', '.join(unknown) or 'nothing'}; allowed: {', '.join(MATCHABLE)}")
        if expires_ns <= now_ns:
            raise UsageError(f"silence expires_ns = {expires_ns}: not in the future")
        with self._lock, self._db:
            name = state.fingerprint(json.dumps(dict(matchers), sort_keys=True), actor, str(now_ns), comment)
            made = Silence(
                id=name,
                matchers=dict(matchers),
                author=actor,
                comment=comment,
                created_ns=now_ns,
                expires_ns=expires_ns,
            )
            self._silences[name] = made
            self._store("silences", name, dataclasses.asdict(made))
            self._remember(now_ns, name, "silenced", actor, comment)
            return made

    def expire_silence(self, silence: str, actor: str, now_ns: int) -> None:
        """End a silence now. Raises `KeyError` for one that is not known."""
        with self._lock, self._db:
            ended = dataclasses.replace(self._silences[silence], expires_ns=now_ns)
            self._silences[silence] = ended
            self._store("silences", silence, dataclasses.asdict(ended))
            self._remember(now_ns, silence, "silence_ended", actor, "")

    def resolve(self, alert: str, actor: str, now_ns: int) -> None:
        """Somebody says that it is over. Raises as `acknowledge`."""
        with self._lock, self._db:
            self._put(state.resolved(self._find(alert), now_ns), now_ns, "resolved", actor)

    # -- what it knows --

    def history(self, alert: str) -> Sequence[dict[str, Any]]:
        """Every change of an alert or silence: ts_ns, state, actor, note; oldest first."""
        with self._lock:
            rows = self._db.execute(
                "SELECT ts_ns, state, actor, note FROM history WHERE id = ? ORDER BY rowid", (alert,)
            ).fetchall()
        return [dict(zip(("ts_ns", "state", "actor", "note"), row, strict=True)) for row in rows]

    def silences(self, now_ns: int) -> Sequence[Silence]:
        """Silences in force."""
        with self._lock:
            return [s for s in self._silences.values() if s.created_ns <= now_ns < s.expires_ns]

    @property
    def undelivered(self) -> int:
        """Notifications that no channel has taken yet."""
        with self._lock:
            return int(self._db.execute("SELECT count(*) FROM outbox").fetchone()[0])

    def list(self, now_ns: int | None = None) -> Sequence[dict[str, Any]]:
        """One object an alert, active ones first, then newest first; resolved ones stay for `history_s`."""
        with self._lock:
            now_ns = max(self._now_ns, now_ns or 0)
            alerts = sorted(self._alerts.values(), key=lambda a: (not a.active, -a.since_ns, a.id))
            muted = self._muted(now_ns)
            return [_row(a, muted.get(a.id, "")) for a in alerts]

    # -- inside --

    def _forward(self, now_ns: int) -> int:
        """A clock that steps back stands still instead."""
        self._now_ns = max(self._now_ns, now_ns)
        return self._now_ns

    def _see(self, finding: Finding, now_ns: int) -> None:
        name = state.fingerprint(finding.job, finding.kind, finding.subject_type, finding.subject)
        before = self._alerts.get(name)
        after = state.seen(before, finding, now_ns, self.config)
        self._put(after, now_ns)
        sighted = state.detectors(finding.kind)
        if len(sighted) == 1:
            self._sighted(sighted[0], finding.job, now_ns)

    def _lose(self, verdict: Inconclusive | Failed, job: str, now_ns: int) -> None:
        name = state.fingerprint(job, "no_data", "job", verdict.analyzer)
        self._put(state.detector(verdict, job, self._alerts.get(name), now_ns), now_ns)
        self._blind.add((job, verdict.analyzer))

    def _sighted(self, analyzer: str, job: str, now_ns: int) -> None:
        self._blind.discard((job, analyzer))
        alert = self._alerts.get(state.fingerprint(job, "no_data", "job", analyzer))
        if alert is not None and alert.active:
            self._put(state.resolved(alert, now_ns), now_ns)

    def _age(self, now_ns: int) -> None:
        for alert in list(self._alerts.values()):
            blind = all((alert.job, name) in self._blind for name in state.detectors(alert.kind))
            self._put(state.aged(alert, now_ns, self.config, blind=blind), now_ns)
            if not alert.active and now_ns - alert.resolved_ns > self.config.history_s * state.S:
                del self._alerts[alert.id]
                self._db.execute("DELETE FROM alerts WHERE id = ?", (alert.id,))

    def _enqueue(self, now_ns: int) -> None:
        groups: dict[tuple[str, str], list[Alert]] = {}
        for alert in self._alerts.values():
            groups.setdefault((alert.job, alert.kind), []).append(alert)
        muted = frozenset(self._muted(now_ns))
        for group, members in groups.items():
            tell = state.due(members, muted, now_ns, self.config)
            for status in ("firing", "resolved"):
                part = [a for a in tell if (a.state == "resolved") == (status == "resolved")]
                if part:
                    self._post(group, status, part, now_ns)

    def _post(self, group: tuple[str, str], status: str, alerts: Sequence[Alert], now_ns: int) -> None:
        rows = [_row(a) for a in sorted(alerts, key=lambda a: a.since_ns)]
        body = json.dumps({"group": group, "status": status, "alerts": rows}, default=str)
        for channel in self.config.channels:
            self._db.execute("INSERT INTO outbox (channel, body) VALUES (?, ?)", (channel, body))
        for alert in alerts:
            self._put(state.told(alert, now_ns), now_ns)

    def _muted(self, now_ns: int) -> dict[str, str]:
        """Id of every alert that is not notified now, with the reason."""
        causes = state.causes(self._alerts.values(), self.topology)
        muted: dict[str, str] = {}
        for alert in self._alerts.values():
            silence = next((s for s in self._silences.values() if s.covers(alert, now_ns)), None)
            if silence is not None:
                until = _clock(silence.expires_ns)
                muted[alert.id] = f"silenced by {silence.author} until {until}: {silence.comment}"
            elif alert.active and (by := state.inhibitor(alert, causes, self.topology)) is not None:
                muted[alert.id] = f"inhibited by {by.id} ({by.summary})"
        return muted

    def _find(self, alert: str) -> Alert:
        found = [a for name, a in self._alerts.items() if alert and name.startswith(alert)]
        if not found:
            raise KeyError(alert)
        if len(found) > 1:
            raise UsageError(f"alert {alert!r} is the beginning of {len(found)} ids; give more of it")
        return found[0]

    def _put(self, alert: Alert, now_ns: int, change: str = "", actor: str = "", note: str = "") -> None:
        before = self._alerts.get(alert.id)
        if before == alert:
            return
        self._alerts[alert.id] = alert
        self._store("alerts", alert.id, dataclasses.asdict(alert))
        if before is None or before.state != alert.state or change:
            self._remember(now_ns, alert.id, change or alert.state, actor, note)

    def _store(self, table: str, name: str, body: Mapping[str, Any]) -> None:
        self._db.execute(
            f"INSERT OR REPLACE INTO {table} VALUES (?, ?)", (name, json.dumps(body, default=str))
        )

    def _remember(self, now_ns: int, name: str, change: str, actor: str, note: str) -> None:
        self._db.execute("INSERT INTO history VALUES (?, ?, ?, ?, ?)", (now_ns, name, change, actor, note))


def _set_aside(path: Path) -> Path:
    """Give the file, and what SQLite keeps beside it, another name; the new name of the file."""
    aside = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
    for suffix in ("-wal", "-shm", ""):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(f"{aside}{suffix}")
    return aside


def _of(kind: type[Alert | Silence], body: str) -> dict[str, Any]:
    """The fields of `kind` in a stored body, which a newer version may have written."""
    known = {field.name for field in dataclasses.fields(kind)}
    return {name: value for name, value in json.loads(body).items() if name in known}


def _row(alert: Alert, muted: str = "") -> dict[str, Any]:
    return {
        "id": alert.id,
        "state": alert.state,
        "severity": alert.severity,
        "kind": alert.kind,
        "job": alert.job,
        "subject_type": alert.subject_type,
        "subject": alert.subject,
        "summary": alert.summary,
        "since": _clock(alert.since_ns),
        "since_ns": alert.since_ns,
        "last_seen_ns": alert.last_seen_ns,
        "resolved_ns": alert.resolved_ns or None,
        "count": alert.count,
        "acknowledged_by": alert.acknowledged_by,
        "note": alert.note,
        "muted": muted,
    }


def _notification(row: int, channel: str, body: str, attempts: int) -> Notification:
    parts = json.loads(body)
    return Notification(
        id=row,
        channel=channel,
        group=tuple(parts["group"]),
        status=parts["status"],
        alerts=tuple(parts["alerts"]),
        attempts=attempts,
    )


def _clock(ns: int) -> str:
    return datetime.fromtimestamp(ns / 1e9, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
