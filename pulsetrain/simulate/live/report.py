"""How a live fleet does: what it sends, what the hub answers, when it falls behind, and what was planted."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from pulsetrain.simulate.live.agent import Traffic
from pulsetrain.simulate.live.fleet import LiveFleet
from pulsetrain.simulate.live.hub_watch import HubAnswer
from pulsetrain.simulate.live.plan import LiveFault
from pulsetrain.simulate.live.recorder import FleetRecorder

BEHIND_S = 0.5  # heartbeats that go out so late are said to be late


@dataclass(frozen=True, kw_only=True)
class Report:
    """The time since the report before. Rates are for each second, ratios are cores, -1 if not known.

    `at_s` is the plan's time. `late_s`: how late the fleet itself sent a heartbeat. `held_back`: heartbeats
    that the hub did not take in time.
    """

    at_s: float
    attempt: int
    agents: int
    heartbeats_per_s: float
    bytes_per_s: float
    late_s: float
    held_back: int
    rows_per_s: float
    waiting_batches: int
    dropped_rows: int
    cpu_ratio: float
    commands: Mapping[str, int]
    hub: HubAnswer

    @property
    def behind(self) -> str:
        """What falls behind, "" for nothing."""
        parts = []
        if self.late_s > BEHIND_S:
            parts.append(f"heartbeats go out {self.late_s:.1f} s late")
        if self.held_back:
            parts.append(f"the hub took {self.held_back} heartbeats too late")
        if self.dropped_rows:
            parts.append(f"{self.dropped_rows} rows dropped")
        if self.hub.error:
            parts.append(self.hub.error)
        return ", ".join(parts)

    def line(self) -> str:
        """The report for people."""
        at = f"{self.at_s:7.1f} s" if self.at_s >= 0 else "forming  "
        cpu = f"{self.cpu_ratio:.2f}" + (f", hub {self.hub.cpu_ratio:.2f}" if self.hub.cpu_ratio >= 0 else "")
        commands = ", ".join(f"{count} {name}" for name, count in sorted(self.commands.items()))
        text = (
            f"{at} attempt {self.attempt} | {self.agents} agents, {self.heartbeats_per_s:.0f} heartbeats/s, "
            f"{self.bytes_per_s / 1e6:.1f} MB/s | {self.rows_per_s:,.0f} rows/s, {self.waiting_batches} wait "
            f"| cpu {cpu} | status {self.hub.took_s:.2f} s, {self.hub.bytes / 1024:,.0f} KiB"
        )
        text += f" | {commands}" if commands else ""
        text += f"\n          hub: {self.hub.state or '-'} {self.hub.sentence}"
        return text + (f"\n          BEHIND: {self.behind}" if self.behind else "")


@dataclass(frozen=True, kw_only=True)
class Struck:
    """A fault of the plan that began, in the plan's time."""

    kind: str
    subject: str
    at_s: float


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A whole run. See `Report`. Ratios and the status are medians over the reports after the first step."""

    ranks: int
    nodes: int
    seconds: float
    heartbeats: int
    held_back: int
    late_s_max: float
    rows: int
    dropped_rows: int
    attempts: int
    cpu_ratio: float
    hub_cpu_ratio: float
    status_s: float
    status_bytes: int
    interrupted: bool
    faults: tuple[Struck, ...]


@dataclass(kw_only=True)
class Progress:
    """Counts of a run, and of the time since the last report."""

    fleet: LiveFleet
    plan: tuple[LiveFault, ...]
    traffic: Traffic
    recorder: FleetRecorder
    interrupted: bool = False
    _struck: list[Struck] = field(default_factory=list)
    _reports: list[Report] = field(default_factory=list)
    _late_s: float = 0.0
    _late_max_s: float = 0.0
    _since_s: float = field(default_factory=time.monotonic)
    _began_s: float = field(default_factory=time.monotonic)
    _before: tuple[int, int, int, int, int] = (0, 0, 0, 0, 0)

    def late(self, late_s: float) -> None:
        """A tick came so late."""
        self._late_s = max(self._late_s, late_s)
        self._late_max_s = max(self._late_max_s, late_s)

    def struck(self, fault: LiveFault, at_s: float) -> None:
        """A fault began."""
        self._struck.append(Struck(kind=fault.kind, subject=fault.label, at_s=round(at_s, 2)))

    def report(self, at_s: float, attempt: int, cpu_ratio: float, hub: HubAnswer) -> Report:
        """What happened since the last report."""
        now_s = time.monotonic()
        took_s, self._since_s = max(1e-9, now_s - self._since_s), now_s
        totals, before = self._totals(), self._before
        beats, sent, held, rows, dropped = (t - b for t, b in zip(totals, before, strict=True))
        self._before = totals
        report = Report(
            at_s=at_s,
            attempt=attempt,
            agents=self.traffic.connections,
            heartbeats_per_s=beats / took_s,
            bytes_per_s=sent / took_s,
            late_s=self._late_s,
            held_back=held,
            rows_per_s=rows / took_s,
            waiting_batches=self.recorder.waiting + self.recorder.backlog,
            dropped_rows=dropped,
            cpu_ratio=cpu_ratio,
            commands=dict(self.traffic.commands),
            hub=hub,
        )
        self.traffic.commands.clear()
        self._late_s = 0.0
        self._reports.append(report)
        return report

    def summary(self) -> Summary:
        """The whole run."""
        beats, _, held, rows, dropped = self._totals()
        running = [r for r in self._reports if r.at_s >= 0]
        return Summary(
            ranks=self.fleet.ranks,
            nodes=self.fleet.nodes,
            seconds=round(time.monotonic() - self._began_s, 1),
            heartbeats=beats,
            held_back=held,
            late_s_max=round(self._late_max_s, 3),
            rows=rows,
            dropped_rows=dropped,
            attempts=1 + max((r.attempt for r in self._reports), default=-1),
            cpu_ratio=_median([r.cpu_ratio for r in running]),
            hub_cpu_ratio=_median([r.hub.cpu_ratio for r in running if r.hub.cpu_ratio >= 0]),
            status_s=_median([r.hub.took_s for r in running]),
            status_bytes=max((r.hub.bytes for r in running), default=0),
            interrupted=self.interrupted,
            faults=tuple(self._struck),
        )

    def _totals(self) -> tuple[int, int, int, int, int]:
        traffic = self.traffic
        rows = sum(shipped.rows for shipped in self.recorder.shipped)
        return traffic.heartbeats, traffic.bytes, traffic.held_back, rows, self.recorder.dropped_rows


def _median(values: list[float]) -> float:
    """-1 for none."""
    return round(sorted(values)[len(values) // 2], 3) if values else -1.0
