"""Rows of a made-up job: TP2 x PP2 x DP2 on four nodes, one of them slow, one lost and replaced, one rank
stuck."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pulsetrain.records.arrow import arrow_schema
from pulsetrain.records.schema import RECORDS

MS = 1_000_000
S = 1_000_000_000
PHASES = (
    ("data", "data", 4),
    ("forward", "compute", 60),
    ("backward", "compute", 110),
    ("all_reduce", "communication", 30),
    ("optimizer", "compute", 16),
    ("checkpoint", "checkpoint", 5),
)
RANKS = 8
STUCK_RANK = 5
SLOW_NODE = "node-2"
STEP_NS = 240 * MS


@dataclass(frozen=True, kw_only=True)
class RecordedJob:
    """A job whose last step begins shortly before `now_ns`. Attempt 0 ends at `restart_step`."""

    now_ns: int
    name: str = "gpt"
    steps: int = 120
    restart_step: int = 80

    @property
    def began_ns(self) -> int:
        return self.now_ns - self.steps * STEP_NS - 11 * S

    def node(self, rank: int, attempt: int) -> str:
        """Node 1 is lost at the restart and node 4 takes its place."""
        place = rank // 2
        return "node-4" if place == 1 and attempt else f"node-{place}"

    def tables(self) -> Mapping[str, pa.Table]:
        """Every record that has rows."""
        rows = {
            "spans": list(self.spans()),
            "steps": list(self.step_rows()),
            "topology": list(self.topology()),
            "heartbeats": list(self.heartbeats(self.now_ns)),
            "events": self.events(),
            "findings": self.findings(),
            "checkpoints": list(self.checkpoints()),
        }
        return {record: table(record, found) for record, found in rows.items()}

    def _when(self) -> Iterator[tuple[int, int, int]]:
        """(attempt, step, start): the two steps before the restart are done twice."""
        for step in range(self.restart_step):
            yield 0, step, self.began_ns + step * STEP_NS
        for step in range(self.restart_step - 1, self.steps):
            yield 1, step, self.began_ns + step * STEP_NS + 3 * S

    def _slow(self, rank: int, attempt: int, step: int) -> float:
        return 1.5 if self.node(rank, attempt) == SLOW_NODE and step >= self.steps - 40 else 1.0

    def spans(self) -> Iterator[dict[str, Any]]:
        for attempt, step, start in self._when():
            for rank in range(RANKS):
                yield from self._step_spans(attempt, step, start, rank)
        yield self._span(
            1, self.steps, self.now_ns - 7 * S, STUCK_RANK, "forward", "compute", 6 * S, open=True
        )

    def _step_spans(self, attempt: int, step: int, start: int, rank: int) -> Iterator[dict[str, Any]]:
        at = start
        factor = self._slow(rank, attempt, step)
        for phase, category, ms in PHASES:
            waits = 1 / factor if category == "communication" else factor
            length = int(ms * MS * waits * (1 + ((rank * 7 + step * 3) % 10) / 200))
            yield self._span(attempt, step, at, rank, phase, category, length)
            at += length

    def _span(
        self,
        attempt: int,
        step: int,
        start: int,
        rank: int,
        phase: str,
        category: str,
        length: int,
        *,
        open: bool = False,
    ) -> dict[str, Any]:
        communication = category == "communication"
        return {
            "job": self.name, "attempt": attempt, "node": self.node(rank, attempt), "rank": rank,
            "step": step,
            "phase": phase, "category": category, "lane": "host", "group": "dp" if communication else "",
            "seq": step if communication else -1, "bytes": 1 << 20 if communication else 0, "start": start,
            "duration_ns": length, "open": open,
        }  # fmt: skip

    def step_rows(self) -> Iterator[dict[str, Any]]:
        for attempt, step, start in self._when():
            for rank in range(RANKS):
                wall = STEP_NS + (60 * MS if step >= self.steps - 40 else 0) + (step * 37 % 11) * MS
                yield {
                    "job": self.name, "attempt": attempt, "node": self.node(rank, attempt), "rank": rank,
                    "step": step,
                    "start": start, "duration_ns": wall, "tokens": 512, "flops": 1e9,
                    "loss": 5.5 * 0.985**step + 1.2 if rank == RANKS - 1 else None,
                }  # fmt: skip

    def topology(self) -> Iterator[dict[str, Any]]:
        for attempt in (0, 1):
            for rank in range(RANKS):
                yield {
                    "job": self.name, "attempt": attempt, "rank": rank, "local_rank": rank % 2,
                    "node": self.node(rank, attempt), "ip": f"127.0.0.{10 + rank // 2}",
                    "switch": f"tor-{rank // 4}",
                    "tp": rank % 2, "pp": rank // 2 % 2, "dp": rank // 4, "cp": 0, "ep": 0,
                    "ts": self.began_ns,
                }  # fmt: skip

    def heartbeats(self, at_ns: int) -> Iterator[dict[str, Any]]:
        for rank in range(RANKS):
            stuck = rank == STUCK_RANK
            yield {
                "node": self.node(rank, 1), "ts": at_ns, "seq": 0, "job": self.name, "attempt": 1,
                "rank": rank,
                "pid": 1000 + rank, "state": "stopped" if stuck else "running", "last_step": self.steps - 1,
                "last_phase": "forward" if stuck else "all_reduce",
                "phase_age_ns": at_ns - self.now_ns + 7 * S,
            }  # fmt: skip

    def events(self) -> list[dict[str, Any]]:
        lost = self.began_ns + self.restart_step * STEP_NS
        stages = {
            "detect": 1200 * MS, "diagnose": 1400 * MS, "evict": 3 * MS, "rendezvous": 700 * MS,
            "load": 90 * MS,
            "first_step": 410 * MS,
        }  # fmt: skip
        detail = {
            "cause": "node_lost", "culprit": "node-1", "node": "node-1", "rank": -1, "stages_ns": stages,
            "total_ns": sum(stages.values()), "from_step": self.restart_step - 1,
            "resumed_step": self.restart_step - 2, "lost_steps": 1, "actor": "controller",
        }  # fmt: skip
        common = {"job": self.name, "rank": -1, "actor": "controller"}
        return [
            {"ts": self.began_ns, "kind": "attempt_started", "attempt": 0, "node": "", **common},
            {"ts": lost, "kind": "node_lost", "attempt": 0, "node": "node-1", **common},
            {"ts": lost + 2 * S, "kind": "attempt_started", "attempt": 1, "node": "", **common},
            {"ts": lost + 3 * S, "kind": "recovery", "attempt": 1, "node": "node-1",
             "detail": json.dumps(detail), **common},
        ]  # fmt: skip

    def findings(self) -> list[dict[str, Any]]:
        common = {"job": self.name, "attempt": 1, "confidence": 0.97}
        return [
            {
                "ts": self.now_ns - 8 * S, "kind": "straggler", "subject_type": "node", "subject": SLOW_NODE,
                "severity": "warning",
                "summary": f"{SLOW_NODE} computes 1.50 times as long as its cohort.", **common,
            },
            {
                "ts": self.now_ns - S, "kind": "hang", "subject_type": "rank", "subject": str(STUCK_RANK),
                "severity": "critical",
                "summary": f"Rank {STUCK_RANK} is stopped in forward; 7 others wait for it.",
                "evidence": json.dumps({"victims": [r for r in range(RANKS) if r != STUCK_RANK]}), **common,
            },
        ]  # fmt: skip

    def checkpoints(self) -> Iterator[dict[str, Any]]:
        for step in range(self.steps - 10, self.steps):
            for rank in range(RANKS):
                for stage, tier, ms in (
                    ("copy", "memory", 3),
                    ("replicate", "peer", 14),
                    ("persist", "storage", 60),
                    ("stall", "memory", 1),
                    *((("commit", "storage", 70),) if step == self.steps - 10 else ()),
                ):
                    yield {
                        "ts": self.now_ns - (self.steps - step) * STEP_NS, "job": self.name, "attempt": 1,
                        "rank": rank,
                        "step": step, "stage": stage, "tier": tier, "bytes": 3 << 20,
                        "duration_ns": (ms + rank) * MS,
                    }  # fmt: skip


def table(record: str, rows: list[dict[str, Any]]) -> pa.Table:
    """`rows` with the record's schema; what a row leaves out has the field's default."""
    fields = RECORDS[record].fields
    full = [{f.name: row.get(f.name, f.default) for f in fields} for row in rows]
    return pa.Table.from_pylist(full, schema=arrow_schema(record))
