"""Run a dealt session under a real hub, and record it as the campaign records its trials."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from trials.score import scored

from anyjob import untouched
from anyjob.dealing import LEAD, NODES, RANKS, RANKS_A_NODE, Dealt, Hand
from anyjob.launch import Launch
from anyjob.sessions import LOOK_S, START_S, key
from pulsetrain.analytics.incidents import correlate
from pulsetrain.analytics.incidents.locations import Topology
from pulsetrain.core.errors import PulsetrainError
from pulsetrain.faults.plan import ENVIRONMENT, dump
from pulsetrain.faults.throttle import Throttle
from pulsetrain.protocol.client import HubAddress
from pulsetrain.records.findings import Finding, recorded
from pulsetrain.stream.queries.views import findings as recorded_findings
from pulsetrain.stream.store.clickhouse import open_store

WRAPPER = Path(__file__).with_name("struck_job.py")
STUCK_S, ENDED_S = 60.0, 20.0
AHEAD = 3  # steps before a fault inside the script, so that it is still to come when its trial begins
Row = dict[str, Any]
Told = tuple[str, bool]


def _told(finding: Row) -> Told:
    """What makes a finding new: the trouble, and whether it is more than information."""
    return key(finding), finding["severity"] != "info"


def findings(status: Row) -> list[Finding]:
    """Return the open findings of a job."""
    return [recorded(status["job"], {**row, "ts_ns": row["ts"]}) for row in status.get("findings", [])]


class Struck:
    """A session under way."""

    def __init__(self, hand: Hand, hub: HubAddress, folder: Path) -> None:
        self.hand = hand
        script = untouched.endless(hand.job, "untouched", nodes=NODES, ranks_per_node=RANKS_A_NODE)
        inside = [f for dealt in hand.faults if not dealt.throttle for f in dealt.plan.faults]
        script = replace(script, argv=(str(WRAPPER), *script.argv), environment={ENVIRONMENT: dump(inside)})
        self._script = script
        self._name = hand.key.replace("/", "-")
        flags = ["--no-auto"] if hand.variant == "no_auto" else []
        self._launch = Launch(script, hub, folder / self._name, job=self._name, flags=flags)
        self._hub = hub
        self._topology = Topology(node_of={(self._name, r): script.node_of(r) for r in range(RANKS)})

    def run(self) -> Iterator[Row]:
        """Yield the rows of the session as `trials.score` reads them."""
        began_s = time.monotonic()
        with self._launch:
            for dealt in self.hand.faults:
                yield self._clean(dealt.onset - LEAD, dealt.onset - (1 if dealt.throttle else AHEAD))
                yield self._trial(dealt)
        yield {**self._about, "what": "session", "seconds": time.monotonic() - began_s}

    @property
    def _about(self) -> Row:
        return {"session": self.hand.number, "job": self.hand.job, "mode": self.hand.variant}

    def _clean(self, since: int, until: int) -> Row:
        """Everything that begins between two steps, both of which lie ahead."""
        for _ in self._steps(since):
            pass
        before, began_s = {key(f) for f in self._shown()}, time.monotonic()
        said: dict[str, Row] = {}
        for _ in self._steps(until):
            for finding in findings(self._launch.status()):
                row = scored(finding)
                if key(row) not in before:
                    said.setdefault(key(row), row)
        return {
            **self._about,
            "what": "clean",
            "steps": until - since,
            "history": until,
            "findings": list(said.values()),
            "seconds": time.monotonic() - began_s,
            "look_s": 0.0,
        }

    def _shown(self) -> list[Row]:
        return [scored(f) for f in findings(self._launch.status())]

    def _steps(self, until: int) -> Iterator[int]:
        """Yield the newest step until it is `until`. Raises `PulsetrainError` where the job ends or stops."""
        newest, moved_s = -1, time.monotonic()
        while (step := self._launch.step()) < until:
            self._launch.check()
            if step != newest:
                newest, moved_s = step, time.monotonic()
            if time.monotonic() - moved_s > (STUCK_S if newest >= 0 else START_S):
                raise PulsetrainError(f"no step after {newest}: {self._launch.last_lines()}")
            yield step
            time.sleep(LOOK_S / 2)

    def _trial(self, dealt: Dealt) -> Row:
        """Look from the onset until the fault or the job is over."""
        plan = dealt.plan
        before = {_told(f) for f in self._shown()}
        looks: list[Row] = []
        with contextlib.ExitStack() as stack:
            if dealt.throttle:
                pids = self._launch.pids()
                struck = [pids[f.rank] for f in plan.faults]
                others = [pid for rank, pid in pids.items() if pid not in struck]
                stack.enter_context(Throttle(struck, dealt.throttle, peers=others))
            onset_s, onset_ns = time.monotonic(), time.time_ns()
            while not self._ended(dealt, onset_s, looks):
                self._look(dealt, onset_s, before, looks)
                time.sleep(LOOK_S / 2)
        if dealt.plan.ends and not any(look["findings"] for look in looks):
            looks += self._recorded(onset_ns)
        return self._row(dealt, looks)

    def _recorded(self, since_ns: int) -> list[Row]:
        """Return what is on record of an end that was healed between two looks, as one look."""
        with contextlib.closing(open_store(self._hub.url, token=self._hub.token)) as store:
            rows = [
                row for row in recorded_findings(store, self._name).to_pylist() if row["ts_ns"] >= since_ns
            ]
        if not rows:
            return []
        fresh = [recorded(self._name, row) for row in rows]
        seconds = (min(row["first_ns"] for row in rows) - since_ns) / 1e9
        told = [scored(finding) for finding in fresh]
        return [{"steps": -1, "seconds": seconds, "findings": told, "abstained": [], **self._roots(fresh)}]

    def _ended(self, dealt: Dealt, onset_s: float, looks: list[Row]) -> bool:
        plan, took_s = dealt.plan, time.monotonic() - onset_s
        if plan.ends:
            return took_s > ENDED_S or (took_s > 2 and bool(looks) and looks[-1]["findings"] != [])
        return self._launch.step() >= dealt.onset + plan.steps or took_s > STUCK_S + plan.steps

    def _look(self, dealt: Dealt, onset_s: float, before: set[Told], looks: list[Row]) -> None:
        """Keep a look where what is said has changed."""
        with contextlib.suppress(PulsetrainError):
            status = self._launch.status()
            fresh = [f for f in findings(status) if _told(scored(f)) not in before]
            doubts = [
                d["reason"]
                for d in status.get("detectors", [])
                if d["state"] == "inconclusive" and d["analyzer"] == "straggler"
            ]
            said = [scored(f) for f in fresh]
            if looks and [_told(f) for f in looks[-1]["findings"]] == [_told(f) for f in said]:
                return
            if not looks and not said and not doubts:
                return
            steps = -1 if dealt.plan.ends or dealt.plan.stalls else self._launch.step() - dealt.onset + 1
            looks.append({"steps": steps, "seconds": time.monotonic() - onset_s, "findings": said})
            looks[-1] |= {"abstained": doubts, **self._roots(fresh)}

    def _roots(self, fresh: list[Finding]) -> Row:
        if not fresh:
            return {"root": "", "hypotheses": [], "root_confidence": 0.0}
        incident = correlate.join(fresh, self._topology, now_ns=0)[0]
        hypotheses = incident["hypotheses"]
        return {
            "root": incident["root"],
            "hypotheses": [h["root"] for h in hypotheses][:3],
            "root_confidence": hypotheses[0]["confidence"],
        }

    def _row(self, dealt: Dealt, looks: list[Row]) -> Row:
        plan = dealt.plan
        struck = sorted({f.rank for f in plan.faults})
        return {
            **self._about,
            "what": "trial",
            "kind": plan.kind,
            "onset": dealt.onset,
            "struck": struck,
            "nodes": sorted({self._script.node_of(r) for r in struck}),
            "kinds": sorted(plan.kinds),
            "subjects": sorted(plan.subjects),
            "within": plan.within,
            "stalls": plan.stalls,
            "looks": looks,
        }
