"""The alerts of a hub: what fires, who has it in hand, what was sent. A restart keeps them."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pulsetrain.analytics.incidents import alert_state as state
from pulsetrain.analytics.incidents import muting
from pulsetrain.analytics.incidents.alert_state import Alert, AlertConfig, AlertRow
from pulsetrain.analytics.incidents.alert_store import Change, open_store
from pulsetrain.analytics.incidents.alert_tracker import AlertTracker
from pulsetrain.analytics.incidents.locations import Topology
from pulsetrain.analytics.incidents.muting import Silence, new_silence
from pulsetrain.analytics.incidents.notifications import (
    Notification,
    batches,
    notified,
    renewals,
    retry_wait_s,
)
from pulsetrain.analytics.verdict import Finding, Verdict
from pulsetrain.core.errors import UsageError


class AlertBook:
    """Alerts of one hub. Calls may come from any thread. Time is an argument and may step back.

    One transaction marks alerts as notified and puts the notification into the outbox. It stays there until
    `delivered` is called. So each channel gets each notification at least once, also after a restart.
    """

    def __init__(self, path: Path, config: AlertConfig | None = None) -> None:
        """Open the file at `path`. A damaged file is renamed, and the alerts begin anew.

        Raises `Unavailable` where the file cannot be opened or written.
        """
        self.config = config or AlertConfig()
        self.topology = Topology()
        self._lock = threading.RLock()
        self._store = open_store(path)
        self._tracker = AlertTracker(self._store, self.config)
        self._silences = self._store.silences()

    def close(self) -> None:
        """Close the file. Nothing is lost without it."""
        with self._lock:
            self._store.close()

    # -- what happens --

    def observe(self, verdicts: Iterable[Verdict], now_ns: int, *, job: str = "") -> None:
        """Apply verdicts. `job` is that of verdicts which name none.

        A finding begins or renews its alert. A detector that is blind or failed has an alert of its own,
        until it is healthy or finds something.
        """
        with self._lock, self._store.transaction():
            now_ns = self._tracker.forward(now_ns)
            for verdict in verdicts:
                self._tracker.observe(verdict, job, now_ns)
            self._tracker.age(now_ns)

    def tick(self, now_ns: int) -> Sequence[Notification]:
        """Let time pass. Return the notifications to deliver now, those that failed before included."""
        with self._lock, self._store.transaction():
            now_ns = self._tracker.forward(now_ns)
            self._tracker.age(now_ns)
            seen = self._tracker.seen()
            muted = self._muted(seen, self._tracker.wall_ns)
            for batch in batches(seen, muted, now_ns, self.config):
                for channel in self.config.channels:
                    self._store.enqueue(channel, batch)
                for alert in batch.alerts:
                    self._tracker.update(notified(alert, now_ns), now_ns)
            if self.config.forgetful:
                self._renew(now_ns)
            return self._due(now_ns)

    def _renew(self, now_ns: int) -> None:
        for batch in renewals(self._tracker.seen(), now_ns, self.config):
            for channel in self.config.forgetful:
                self._store.enqueue(channel, batch)
            for alert in batch.alerts:
                self._tracker.update(dataclasses.replace(alert, renewed_ns=now_ns), now_ns)

    def _due(self, now_ns: int) -> Sequence[Notification]:
        """The notifications to deliver, as things are now. A begin of alerts that are over is not sent."""
        due = []
        for queued in self._store.pending(now_ns):
            fresh = queued
            if queued.status == "firing":
                known = (self._tracker.get(row["id"]) for row in queued.alerts)
                rows = tuple(alert.row() for alert in known if alert is not None and alert.active)
                fresh = dataclasses.replace(queued, alerts=rows)
            if fresh.alerts:
                due.append(fresh)
            else:
                self._store.remove(queued.id)
        return due

    def delivered(self, notification: int) -> None:
        """Note that the channel has a notification. It is not sent again."""
        with self._lock, self._store.transaction():
            self._store.end_pause(notification)
            self._store.remove(notification)

    def failed(self, notification: int, now_ns: int, *, away: bool = True) -> None:
        """Note that the channel did not take a notification. It is offered again, each time twice as late.

        `away`: the channel itself does not answer, so that all of its notifications wait.
        """
        with self._lock, self._store.transaction():
            found = self._store.attempts(notification)
            if found is None:
                return
            channel, attempts = found
            now_ns = self._tracker.forward(now_ns)
            self._store.postpone(notification, self._retry_ns(attempts, now_ns))
            if away:
                self._store.pause(channel, self._retry_ns(self._store.failures(channel), now_ns))

    def _retry_ns(self, failures: int, now_ns: int) -> int:
        return now_ns + int(retry_wait_s(failures, self.config) * state.SECOND_NS)

    # -- what people do --

    def acknowledge(self, alert: str, actor: str, note: str = "", now_ns: int | None = None) -> AlertRow:
        """Note that somebody has an alert in hand. It is not repeated unless it becomes worse.

        `alert` may be the beginning of an id. Raises `KeyError` for an alert that is not known. Raises
        `UsageError` for an alert that is resolved, and for a beginning that several alerts share.
        """
        with self._lock, self._store.transaction():
            now_ns = self._tracker.now_ns if now_ns is None else self._tracker.forward(now_ns)
            known = self._tracker.find(alert)
            if not known.active:
                allowed = ", ".join(sorted(state.ACTIVE))
                raise UsageError(f"alert {known.id} is {known.state}; allowed: {allowed}")
            changed = dataclasses.replace(
                known,
                acknowledged_by=actor,
                acknowledged_ns=now_ns,
                acknowledged_severity=known.severity,
                note=note,
            )
            self._tracker.update(changed, now_ns, "acknowledged", actor, note)
            return changed.row()

    def resolve(self, alert: str, actor: str, now_ns: int) -> None:
        """Note that somebody says an alert is over. Raises as `acknowledge`, but not for a resolved alert."""
        with self._lock, self._store.transaction():
            now_ns = self._tracker.forward(now_ns)
            known = self._tracker.find(alert)
            self._tracker.update(state.resolved(known, now_ns), now_ns, "resolved", actor)

    def silence(
        self, matchers: Mapping[str, str], *, actor: str, comment: str, now_ns: int, expires_ns: int
    ) -> Silence:
        """Notify nobody of the alerts that match, until `expires_ns`. Raises as `new_silence`."""
        made = new_silence(matchers, author=actor, comment=comment, now_ns=now_ns, expires_ns=expires_ns)
        change = Change(ts_ns=now_ns, state="silenced", actor=actor, note=comment)
        with self._lock, self._store.transaction():
            self._silences[made.id] = made
            self._store.save(made, change)
        return made

    def covered(self, silence: Silence, now_ns: int) -> int:
        """Return how many active alerts a silence covers."""
        with self._lock:
            active = [alert for alert in self._tracker.all() if alert.active]
            return sum(silence.covers(alert, now_ns, self.topology) for alert in active)

    def expire_silence(self, silence: str, actor: str, now_ns: int) -> None:
        """End a silence now. Raises `KeyError` for one that is not known."""
        change = Change(ts_ns=now_ns, state="silence_ended", actor=actor, note="")
        with self._lock, self._store.transaction():
            ended = dataclasses.replace(self._silences[silence], expires_ns=now_ns)
            self._silences[silence] = ended
            self._store.save(ended, change)

    # -- what it knows --

    def history(self, alert: str) -> Sequence[Change]:
        """Return every change of an alert or silence, oldest first."""
        with self._lock:
            return self._store.history(alert)

    def silences(self, now_ns: int) -> Sequence[Silence]:
        """Return the silences in force."""
        with self._lock:
            return [s for s in self._silences.values() if s.in_force(now_ns)]

    @property
    def undelivered(self) -> int:
        """How many notifications no channel has taken yet."""
        with self._lock:
            return self._store.undelivered()

    def list(self, now_ns: int | None = None) -> Sequence[AlertRow]:
        """Return every alert, active ones first, then newest first. Resolved ones stay for `history_s`."""
        with self._lock:
            wall_ns = self._tracker.wall_ns if now_ns is None else now_ns
            reasons = self._muted(self._tracker.all(), wall_ns)
            alerts = sorted(self._tracker.all(), key=lambda a: (not a.active, -a.since_ns, a.id))
            return [a.row(reasons.get(a.id, "")) for a in alerts]

    def is_active(self, finding: Finding) -> bool:
        """Whether the alert of a finding is not over."""
        with self._lock:
            return self._tracker.is_active(finding)

    def _muted(self, alerts: Iterable[Alert], wall_ns: int) -> Mapping[str, str]:
        """What is muted when the clock tells `wall_ns`: people end their silences by the clock."""
        return muting.muted(alerts, self._silences.values(), wall_ns, self.topology)
