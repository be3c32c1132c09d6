"""Run a session and record what was reported when: clean windows, and trials from onset to end."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pulsetrain.analytics import watch
from pulsetrain.analytics.incidents import correlate as incidents
from pulsetrain.analytics.incidents.locations import Topology
from pulsetrain.analytics.verdict import Finding, Inconclusive, Verdict, findings
from trials.job import SAVE_EVERY
from trials.kinds import ALIGNED, KINDS, RANKS, Plan, node
from trials.score import scored
from trials.session import WATCH, Bench, Session

WARM, LEAD, SETTLE = 8, 33, 4
"""steps at the start of a job, clean ones before each fault, and disturbed ones after it"""
LEADS = {"code_regression": 60}
"""more of the job's own past where there is nothing else to compare with"""
TICK_S, LOOK_S = 0.05, 0.4
LATE_S = 20.0


@dataclass(frozen=True, kw_only=True)
class Slot:
    """Where a plan lies in a session: clean steps from `since`, the fault from `onset` to `until`."""

    plan: Plan
    since: int
    onset: int
    until: int


@dataclass(frozen=True, kw_only=True)
class Timetable:
    """One session: its slots by time, and clean windows before, between and after them."""

    number: int
    mode: str
    slots: tuple[Slot, ...]
    steps: int
    clean: int = 0
    """clean windows of `LEAD` steps at the end, each judged with all the history before it"""


def timetable(number: int, mode: str, kinds: Sequence[str], *, seed: int, clean: int = 0) -> Timetable:
    """Deterministic by seed and number: which ranks are struck in which steps."""
    draw = random.Random(f"{seed}/{number}")
    at, slots = WARM, []
    for kind in kinds:
        onset = at + LEADS.get(kind, LEAD) + draw.randrange(4)
        if kind in ALIGNED:
            every, place = ALIGNED[kind]
            onset += (place - onset) % every
        plan = KINDS[kind](draw, onset)
        slots.append(Slot(plan=plan, since=at, onset=onset, until=onset + plan.steps - 1))
        at = onset + plan.steps + SETTLE
    ends = bool(slots) and slots[-1].plan.ends
    steps = at + clean * LEAD + (SAVE_EVERY + 10 if ends else 3)
    return Timetable(number=number, mode=mode, slots=tuple(slots), steps=steps, clean=clean)


@dataclass(kw_only=True)
class Look:
    """What one look reported. `steps` and `seconds` count from the onset."""

    steps: int
    seconds: float
    findings: list[dict[str, Any]]
    abstained: list[str] = field(default_factory=list)
    root: str = ""
    hypotheses: list[str] = field(default_factory=list)
    root_confidence: float = 0.0


@dataclass(kw_only=True)
class Watching:
    """One session under way."""

    bench: Bench
    table: Timetable
    rows: list[dict[str, Any]] = field(default_factory=list)
    onset_s: float = 0.0

    def run(self) -> list[dict[str, Any]]:
        """Return the rows of the session as JSON objects: {"what": "clean" | "trial", ...}."""
        table = self.table
        faults = [f for slot in table.slots for f in slot.plan.faults]
        session = Session(
            self.bench, f"session-{table.number}", steps=table.steps, mode=table.mode, faults=faults
        )
        began_s = time.monotonic()
        try:
            session.start()
            for slot in table.slots:
                if not self._reach(session, slot.onset - 1):
                    self._lost(session, slot)
                    return self.rows
                self.onset_s = time.monotonic()
                self.rows.append(self._trial(session, slot))
                self._clean(session, slot.since, slot.onset - 1)  # the same rows; the trial cannot wait
            at = (table.slots[-1].until + SETTLE if table.slots else WARM - 1) + 1
            for window in range(table.clean):
                if not self._reach(session, at + (window + 1) * LEAD - 1):
                    break
                self._clean(session, at, at + (window + 1) * LEAD - 1)
        finally:
            session.end()
        self.rows.append(
            {
                "what": "session",
                "session": self.table.number,
                "seconds": time.monotonic() - began_s,
                "steps": session.last_step,
            }
        )
        return self.rows

    def _reach(self, session: Session, step: int) -> bool:
        """Wait until the job has done `step`. Return whether it came so far."""
        deadline_s = time.monotonic() + LATE_S + 0.2 * max(0, step - session.last_step)
        while session.last_step < step and time.monotonic() < deadline_s:
            session.drain()
            session.view()
            if session.over or session.exits:
                return session.last_step >= step - 1  # it ended right there, before it could be seen
            time.sleep(TICK_S)
        return session.last_step >= step

    def _lost(self, session: Session, slot: Slot) -> None:
        """Record that the job ended or stood still before the fault, so that there is no trial."""
        ended = [(e.rank, e.code, e.last_lines[-1:]) for e in session.exits]
        self.rows.append({"what": "lost", "kind": slot.plan.kind, "step": session.last_step, "exits": ended})

    def _clean(self, session: Session, since: int, until: int) -> None:
        began_s = time.monotonic()
        verdicts = session.analyze(since, until, 0)  # as of the last step's end: the fault may strike by now
        self.rows.append(
            {
                "what": "clean",
                "session": self.table.number,
                "mode": self.table.mode,
                "steps": min(LEAD, until - since + 1),
                "history": until - since + 1,
                "findings": [scored(f) for f in findings(verdicts)],
                "seconds": min(LEAD, until - since + 1) * session.view().median_step_ns / 1e9,
                "look_s": time.monotonic() - began_s,
            }
        )

    def _trial(self, session: Session, slot: Slot) -> dict[str, Any]:
        """Look until the fault or the job is over, or until it is too late to detect the fault."""
        plan = slot.plan
        looks: list[Look] = []
        last_look_s, resumed = time.monotonic(), False
        limit_s = 12.0 if plan.stalls or plan.ends else LATE_S + 0.2 * plan.steps
        while time.monotonic() - self.onset_s < limit_s:
            session.drain()
            view = session.view()
            ended_later = bool(view.exits) and not plan.ends and session.last_step > slot.until
            live = None if ended_later else self._live(view, plan)
            if live is not None:
                if live.findings or not looks or looks[-1].abstained != live.abstained:
                    looks.append(live)
                if live.findings and plan.ends:
                    break
                if live.findings and not resumed:
                    resumed = True
                    session.resume(plan.resume)
            if not plan.ends and session.last_step >= slot.until + (2 if plan.stalls else 0):
                break
            if session.over and not plan.ends:
                break
            in_store = not plan.stalls and not plan.ends
            if in_store and time.monotonic() - last_look_s >= LOOK_S and session.last_step > slot.onset + 2:
                looks.append(self._stored(session, slot, session.last_step))
                last_look_s = time.monotonic()
            time.sleep(TICK_S)
        if plan.resume:
            session.resume(plan.resume)
        if not plan.stalls and not plan.ends:
            if plan.within:
                looks.append(self._stored(session, slot, slot.onset + plan.within - 1))
            looks.append(self._stored(session, slot, slot.until))
        return self._row(slot, looks)

    def _live(self, view: watch.JobView, plan: Plan) -> Look | None:
        """Return what heartbeats and exits show, or None while they show nothing."""
        if view.exits:
            newest = max(e.ts_ns for e in view.exits)
            if view.now_ns - min(e.ts_ns for e in view.exits) < 300_000_000 and view.now_ns >= newest:
                return None  # the hub waits as long for the exits of the others
            verdicts: Sequence[Verdict] = watch.crash(view)
        else:
            verdicts = watch.hang(view, WATCH)
        reported = findings(verdicts)
        doubts = [v.reason for v in verdicts if isinstance(v, Inconclusive)]
        if not reported and not doubts:
            return None
        return self._look(view.now_ns, -1, reported, doubts)

    def _stored(self, session: Session, slot: Slot, until: int) -> Look:
        verdicts = session.analyze(slot.since, until, 0)  # as of that step, whatever has struck since
        return self._look(0, until - slot.onset + 1, findings(verdicts), [])

    def _look(self, now_ns: int, steps: int, reported: Sequence[Finding], doubts: list[str]) -> Look:
        """Return the incident of the findings, as the dashboard shows it."""
        look = Look(
            steps=steps,
            seconds=time.monotonic() - self.onset_s,
            findings=[scored(f) for f in reported],
            abstained=doubts,
        )
        if reported:
            topology = Topology(node_of={(f"session-{self.table.number}", r): node(r) for r in range(RANKS)})
            incident = incidents.join(reported, topology, now_ns=now_ns)[0]
            look.root = incident["root"]
            look.hypotheses = [h["root"] for h in incident["hypotheses"]][:3]
            look.root_confidence = incident["hypotheses"][0]["confidence"]
        return look

    def _row(self, slot: Slot, looks: list[Look]) -> dict[str, Any]:
        plan = slot.plan
        return {
            "what": "trial",
            "session": self.table.number,
            "mode": self.table.mode,
            "kind": plan.kind,
            "onset": slot.onset,
            "struck": sorted({f.rank for f in plan.faults}),
            "nodes": sorted({node(f.rank) for f in plan.faults}),
            "kinds": sorted(plan.kinds),
            "subjects": sorted(plan.subjects),
            "within": plan.within,
            "stalls": plan.stalls,
            "looks": [look.__dict__ for look in looks],
        }
