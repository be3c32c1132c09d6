"""Run a session: clean windows and episodes of one launch, and what the hub says in each."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anyjob.launch import Launch
from anyjob.plan import STEPS, Episode, Session
from anyjob.slowing import pin, slowed
from pulsetrain.core.errors import PulsetrainError, Unavailable
from pulsetrain.protocol.client import HubAddress

WARM, SETTLE, SETTLE_MOST = 20, 10, 60
"""steps at the start, and the fewest and the most after an episode"""
LOOK_S = 0.4
STUCK_S, START_S = 60.0, 240.0
"""without a step, later and at the start, where a busy machine imports torch"""
SHOWN = ("kind", "subject_type", "subject", "severity", "confidence", "summary", "ts")
STATED = ("state", "reason", "error", "subject", "confidence")
Row = dict[str, Any]


def shown(status: Row) -> list[Row]:
    """Return the findings of a job's status, as far as they are scored."""
    return [{name: finding.get(name) for name in SHOWN} for finding in status.get("findings", [])]


def key(finding: Row) -> str:
    """Return what makes two findings the same trouble."""
    return f"{finding['kind']} {finding['subject_type']} {finding['subject']}"


def _told(findings: Sequence[Row]) -> list[tuple[str, bool]]:
    """Return what a change of makes another look worth keeping."""
    return [(key(f), f["severity"] == "info") for f in findings]


def loud(findings: Sequence[Row]) -> bool:
    """Whether one of them is more than information."""
    return any(f["severity"] != "info" for f in findings)


@dataclass(kw_only=True)
class Watching:
    """What the hub said from one moment on. `looks` holds a look for each change of its findings.

    `before` are the troubles that it told before, above information.
    """

    launch: Launch
    began: int
    before: list[str] = field(default_factory=list)
    looks: list[Row] = field(default_factory=list)
    state: Row = field(default_factory=dict)
    began_s: float = field(default_factory=time.monotonic)

    def until(self, steps: int) -> Iterator[Row]:
        """Look until the job has done so many steps more. Raises `PulsetrainError` where it stands still."""
        newest, moved_s = self.began, time.monotonic()
        while newest < self.began + steps:
            self.launch.check()
            step = self.launch.step()
            if step != newest:
                newest, moved_s = step, time.monotonic()
            limit_s = STUCK_S if newest >= 0 else START_S
            if time.monotonic() - moved_s > limit_s:
                raise PulsetrainError(f"no step for {limit_s:g} s after step {newest}")
            yield self.look(step)
            time.sleep(LOOK_S)

    def look(self, step: int) -> Row:
        """Take one look, and keep it if something has changed."""
        self.state = self.launch.status()
        findings = shown(self.state)
        look = {
            "steps": step - self.began,
            "seconds": round(time.monotonic() - self.began_s, 2),
            "findings": findings,
        }
        if self.looks or findings:
            before = self.looks[-1]["findings"] if self.looks else None
            if before is None or _told(before) != _told(findings):
                self.looks.append(look)
        return look

    def row(self) -> Row:
        """Return what was seen."""
        straggler = [d for d in self.state.get("detectors", []) if d.get("analyzer") == "straggler"]
        return {
            "steps": self.launch.step() - self.began,
            "seconds": round(time.monotonic() - self.began_s, 2),
            "before": self.before,
            "looks": self.looks,
            "straggler": {k: v for d in straggler[:1] for k, v in d.items() if k in STATED},
            "hub_step": self.state.get("step", -1),
            "printed_step": self.launch.step(),
            "attempt": self.state.get("attempt", 0),
        }


class Running:
    """A session under way."""

    def __init__(self, session: Session, hub: HubAddress, folder: Path, flags: Sequence[str] = ()) -> None:
        self.session, self._cores = session, sorted(os.sched_getaffinity(0))
        name = session.key.replace("/", "-")
        self._launch = Launch(session.script, hub, folder / name, job=name, flags=flags)
        self._places: dict[int, int] = {}

    def run(self) -> Iterator[Row]:
        """Yield one row for each clean window, episode and settling."""
        with self._launch as launch:
            for _ in self._watch().until(WARM + 1):
                pass
            if self.session.pinned:
                self._places = pin(launch.pids(), self._cores)
            self._drain(SETTLE)
            for episode in self.session.episodes:
                yield self._clean(STEPS + episode.lead)
                yield self._slow(episode)
                yield self._settle()
            for _ in range(self.session.clean):
                yield self._clean(STEPS)

    def _watch(self) -> Watching:
        step = self._launch.step()
        before = [key(f) for f in shown(self._launch.status()) if loud([f])]
        return Watching(launch=self._launch, began=step, before=before)

    def _drain(self, steps: int) -> None:
        for _ in self._watch().until(steps):
            pass

    def _clean(self, steps: int) -> Row:
        watching = self._watch()
        for _ in watching.until(steps):
            pass
        return {"what": "clean", **watching.row()}

    def _slow(self, episode: Episode) -> Row:
        pids = self._launch.pids()
        what = {"struck": list(episode.struck), "way": episode.way, "factor": episode.factor}
        nodes = sorted({self.session.script.node_of(rank) for rank in episode.struck})
        whole = [n for n in nodes if self._all_of(n) <= set(episode.struck)]
        try:
            with slowed(episode.way, episode.factor, episode.struck, pids, self._places):
                watching = self._watch()
                for _ in watching.until(STEPS):
                    pass
                row = watching.row()
        except Unavailable as error:
            return {"what": "skipped", **what, "reason": str(error)}
        return {"what": "slow", **what, "nodes": whole, **row}

    def _all_of(self, node: str) -> set[int]:
        script = self.session.script
        return {rank for rank in range(script.ranks) if script.node_of(rank) == node}

    def _settle(self) -> Row:
        """Wait until nothing is named any more, or for the most steps."""
        watching = self._watch()
        for look in watching.until(SETTLE_MOST):
            if look["steps"] >= SETTLE and not loud(look["findings"]):
                break
        return {"what": "settle", **watching.row()}
