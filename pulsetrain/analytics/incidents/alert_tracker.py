"""The alerts of one hub and how verdicts and time change them. Every change is saved with its history."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from pulsetrain.analytics.incidents import alert_state as state
from pulsetrain.analytics.incidents.alert_state import Alert, AlertConfig
from pulsetrain.analytics.incidents.alert_store import AlertStore, Change
from pulsetrain.analytics.verdict import Failed, Finding, Healthy, Inconclusive, Verdict, is_held
from pulsetrain.core.errors import UsageError

STEP_NS = 30 * state.SECOND_NS  # a call may tell an older time than the one before, but not by so much
HELD_NS = 1800 * state.SECOND_NS  # for so long at most an alert stays whose detector cannot tell
PAUSE_NS = 60 * state.SECOND_NS  # calls come each second. Between two so far apart nobody looked


class AlertTracker:
    """Alerts by id. A change must happen inside a transaction of the store."""

    def __init__(self, store: AlertStore, config: AlertConfig) -> None:
        self._store, self._config = store, config
        self._alerts = store.alerts()
        # Detectors that see nothing: (job, analyzer).
        self._blind = {(a.job, a.subject) for a in self.all() if a.kind == "no_data" and a.active}
        self._unsure: dict[tuple[str, str], int] = {}
        """When a detector that sees data said last that it decides nothing: by job and analyzer."""
        self.now_ns = max((a.last_seen_ns for a in self.all()), default=0)
        self.wall_ns = self.now_ns
        """What the clock told last. It may step back."""
        self._ahead_ns = self._stepped_to_ns = 0
        self._watched_since_ns = -1  # -1: nobody has looked yet

    def all(self) -> Collection[Alert]:
        """Return every alert, resolved ones too."""
        return self._alerts.values()

    def seen(self) -> list[Alert]:
        """Return those that are over, and those that were seen since somebody looks again.

        Of the others it is not known yet whether they go on.
        """
        since_ns = self._watched_since_ns
        return [a for a in self.all() if not a.active or a.last_seen_ns >= since_ns]

    def get(self, name: str) -> Alert | None:
        """Return the alert of an id, None where there is none."""
        return self._alerts.get(name)

    def forward(self, now_ns: int) -> int:
        """Return the time by which alerts live, from what the clock tells. It never steps back.

        Where the clock steps back, also over a restart, the time goes on from where it was. It is ahead of
        the clock until the clock has caught up with it. Where it steps forward, or this process stood still,
        nobody looked meanwhile.
        """
        self.wall_ns = now_ns
        before_ns = self.now_ns
        if now_ns >= self.now_ns:
            self._ahead_ns = 0
        elif now_ns + self._ahead_ns < self.now_ns - STEP_NS:
            self._ahead_ns, self._stepped_to_ns = self.now_ns - now_ns, now_ns
        self.now_ns = max(self.now_ns, now_ns + self._ahead_ns)
        if self._watched_since_ns < 0 or self.now_ns - before_ns > PAUSE_NS:
            self._watched_since_ns = self.now_ns
        return self.now_ns

    def find(self, prefix: str) -> Alert:
        """Return the alert whose id begins with `prefix`.

        Raises `KeyError` where there is none, and `UsageError` where there are several.
        """
        matches = [a for name, a in self._alerts.items() if prefix and name.startswith(prefix)]
        if not matches:
            raise KeyError(prefix)
        if len(matches) > 1:
            raise UsageError(f"alert {prefix!r} is the beginning of {len(matches)} ids; give more of it")
        return matches[0]

    def observe(self, verdict: Verdict, job: str, now_ns: int) -> None:
        """Apply one verdict. `job` is that of verdicts which name none.

        A finding of which nobody knows whether it goes on changes nothing.
        """
        if isinstance(verdict, Finding):
            if not is_held(verdict):
                self._on_finding(verdict, now_ns)
        elif isinstance(verdict, Failed) or (isinstance(verdict, Inconclusive) and verdict.blind):
            self._on_detector_loss(verdict, job, now_ns)
        elif isinstance(verdict, Healthy):
            self._on_detector_back(verdict.analyzer, job, now_ns)
        else:  # it sees data, which decides nothing
            self._blind.discard((job, verdict.analyzer))
            self._unsure[job, verdict.analyzer] = now_ns

    def age(self, now_ns: int) -> None:
        """Let time pass: resolve what is no longer seen, and forget what was resolved long ago."""
        history_ns = self._config.history_s * state.SECOND_NS
        told_ns = now_ns - self._config.resolve_after_s * state.SECOND_NS
        self._unsure = {of: at_ns for of, at_ns in self._unsure.items() if at_ns > told_ns}
        for alert in list(self._alerts.values()):
            blind = all(self._cannot_tell(alert, name, now_ns) for name in state.detectors(alert.kind))
            aged = state.after_time(
                alert, now_ns, self._config, blind=blind, watched_since_ns=self._watched_since_ns
            )
            self.update(aged, now_ns)
            if not alert.active and now_ns - alert.resolved_ns > history_ns:
                del self._alerts[alert.id]
                self._store.delete_alert(alert.id)

    def _cannot_tell(self, alert: Alert, analyzer: str, now_ns: int) -> bool:
        """Whether a detector is blind, or cannot tell for no longer than it saw the alert before."""
        name = (alert.job, analyzer)
        held_ns = min(HELD_NS, alert.last_seen_ns - alert.since_ns)
        return name in self._blind or (name in self._unsure and now_ns - alert.last_seen_ns <= held_ns)

    def update(self, alert: Alert, now_ns: int, change: str = "", actor: str = "", note: str = "") -> None:
        """Save an alert. A new state, or a `change` that a person made, is a line in its history."""
        before = self._alerts.get(alert.id)
        if before == alert:
            return
        self._alerts[alert.id] = alert
        if alert.kind == "no_data" and not alert.active:  # such as one whose job is over
            self._blind.discard((alert.job, alert.subject))
        noted = before is None or before.state != alert.state or bool(change)
        line = Change(ts_ns=now_ns, state=change or alert.state, actor=actor, note=note)
        self._store.save(alert, line if noted else None)

    def is_active(self, finding: Finding) -> bool:
        """Whether the alert of a finding is not over."""
        alert = self._alerts.get(_name(finding))
        return alert is not None and alert.active

    def _on_finding(self, finding: Finding, now_ns: int) -> None:
        name = _name(finding)
        finding = self._timed(finding)
        self.update(state.after_finding(self._alerts.get(name), finding, now_ns, self._config), now_ns)
        detectors = state.detectors(finding.kind)
        if len(detectors) == 1:  # of several, it is not known which one raised the finding
            self._on_detector_back(detectors[0], finding.job, now_ns)

    def _timed(self, finding: Finding) -> Finding:
        """A finding in the time by which alerts live. One from before a step back is in it already."""
        since_step = self._stepped_to_ns <= finding.ts_ns <= self.wall_ns + STEP_NS
        if not self._ahead_ns or not since_step:
            return finding
        return replace(finding, ts_ns=finding.ts_ns + self._ahead_ns)

    def _on_detector_loss(self, verdict: Inconclusive | Failed, job: str, now_ns: int) -> None:
        alert = self._alerts.get(state.detector_fingerprint(job, verdict.analyzer))
        self.update(state.after_detector_loss(verdict, job, alert, now_ns), now_ns)
        self._blind.add((job, verdict.analyzer))
        self._unsure.pop((job, verdict.analyzer), None)

    def _on_detector_back(self, analyzer: str, job: str, now_ns: int) -> None:
        self._blind.discard((job, analyzer))
        self._unsure.pop((job, analyzer), None)
        alert = self._alerts.get(state.detector_fingerprint(job, analyzer))
        if alert is not None and alert.active:
            self.update(state.resolved(alert, now_ns), now_ns)


def _name(finding: Finding) -> str:
    return state.fingerprint(finding.job, finding.kind, finding.subject_type, finding.subject)
