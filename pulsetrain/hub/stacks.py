"""Asks the agents for stacks when a job falls silent, or a person wants them, and keeps the last picture.

Reading begins at half of the silence that counts as a hang: by the time the hang is named, its stacks are
there, and ending the ranks waits for nothing. They are read several times in a row, and somebody is called an
outlier only where all samples agree; what the first ones say is kept meanwhile. An agent reads on a thread of
its own; nothing here blocks.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from pulsetrain.analytics import watch
from pulsetrain.analytics.hangs import stacks
from pulsetrain.analytics.verdict import Finding, Healthy, Inconclusive, Verdict
from pulsetrain.core.clock import Clock
from pulsetrain.protocol.messages import Reply
from pulsetrain.recovery.job import Job
from pulsetrain.recovery.journal import Journal

log = structlog.get_logger()

NAME = "stacks"
TIMEOUT_S = 3.0
SAMPLES = 3  # in a row, of which all must agree
PAUSE_S = 0.15  # between two samples
BUDGET_S = 3.0  # after which two have to do: an agent that does not answer takes that long each time
EARLY = 0.5  # share of the silence that is a hang at which reading begins
AGAIN_S = 30.0  # least time between two readings that nobody asked for
FRESH_S = 90.0  # a picture older than this proves nothing about a hang
SELF_TEST_S = 5.0  # after the first step: one rank a node is read, to see whether it can be done
MOST_BYTES = 1 << 18  # of a stored picture; the tree is left out of a larger one


@dataclass
class _Memory:
    """What is known of one job's stacks."""

    latest: dict[str, Any] = field(default_factory=dict)
    brief: dict[str, Any] = field(default_factory=dict)  # of a picture taken while the job was silent
    silent: bool = False
    attempt: int = -1
    read_s: float = -1e9
    tested: int = -1
    stepped_s: float | None = None
    blind: str | None = None  # None: not tried in this attempt
    running: asyncio.Task[dict[str, Any]] | None = None

    def note(self, answer: dict[str, Any], *, evidence: bool) -> None:
        """Keep a picture, as evidence where it was asked for while this attempt was silent."""
        self.latest, self.tested = answer, answer["attempt"]
        if evidence and self.attempt == answer["attempt"]:
            self.brief = {k: v for k, v in answer.items() if k not in ("tree", "job", "attempt")}


class Stacks:
    """Pictures of the stacks of every job. All methods run on the hub's event loop."""

    def __init__(self, journal: Journal, clock: Clock, *, pause_s: float = PAUSE_S) -> None:
        self._journal, self._clock, self._pause_s = journal, clock, pause_s
        self._jobs: dict[str, _Memory] = {}

    def latest(self, job: str) -> dict[str, Any]:
        """The last picture of a job; empty where none was taken."""
        return self._of(job).latest

    async def take(self, job: Job, why: str) -> dict[str, Any]:
        """A new picture; who asks while one is being taken gets that one. `why` is kept with it."""
        return await asyncio.shield(self._start(job, why))

    def consider(self, job: Job, view: watch.JobView, verdicts: Sequence[Verdict], stopped_s: float) -> None:
        """Begin to read where the job is on its way to a hang; soon after the first step, try one rank."""
        memory, now_s = self._of(job.name), self._clock.monotonic_s()
        if memory.attempt != job.attempt:
            memory.attempt, memory.read_s, memory.stepped_s, memory.brief = job.attempt, -1e9, None, {}
        memory.silent = _silent(view, verdicts, stopped_s)
        if memory.running is not None:
            return
        if memory.silent and now_s - memory.read_s > AGAIN_S:
            memory.read_s = now_s
            self._start(job, "silence")
        elif job.first_step_done and memory.tested != job.attempt:
            memory.stepped_s = memory.stepped_s or now_s
            if now_s - memory.stepped_s > SELF_TEST_S:
                memory.tested = job.attempt
                memory.running = asyncio.create_task(self._self_test(job, memory))
                memory.running.add_done_callback(_note_failure)

    def attach(self, job: str, attempt: int, findings: Sequence[Finding]) -> list[Finding]:
        """Hang findings with the picture of their attempt as evidence, where there is one."""
        memory = self._of(job)
        if not memory.brief or memory.attempt != attempt:
            return list(findings)
        return [
            replace(f, evidence={**f.evidence, "stacks": memory.brief})
            if f.kind == "hang" and f.ts_ns - memory.brief["ts_ns"] < FRESH_S * 1e9
            else f
            for f in findings
        ]

    def detector(self, job: str) -> Verdict:
        """Whether stacks can be read."""
        blind = self._of(job).blind
        if blind is None:
            return Inconclusive(analyzer=NAME, reason="not tried yet in this attempt")
        if blind:
            return Inconclusive(analyzer=NAME, reason=blind, blind=True)
        return Healthy(analyzer=NAME)

    def _of(self, job: str) -> _Memory:
        return self._jobs.setdefault(job, _Memory())

    def _start(self, job: Job, why: str) -> asyncio.Task[dict[str, Any]]:
        memory = self._of(job.name)
        if memory.running is None or memory.running.done():
            memory.running = asyncio.create_task(self._take(job, memory, why))
            memory.running.add_done_callback(_note_failure)
        return memory.running

    async def _take(self, job: Job, memory: _Memory, why: str) -> dict[str, Any]:
        try:
            attempt, phase, silent = job.attempt, job.phase, memory.silent
            groups = {(g.group, tuple(sorted(g.members))) for r in job.statuses() for g in r.groups}
            pictures: list[stacks.StackComparison] = []
            answer: dict[str, Any] = {}
            began_s = self._clock.monotonic_s()
            while not _enough(pictures, self._clock.monotonic_s() - began_s):
                await asyncio.sleep(self._pause_s if pictures else 0)
                held, blind = _gathered(job, await job.read_stacks(TIMEOUT_S))
                if pictures and (job.attempt, job.phase) != (attempt, phase):
                    break  # its ranks are being ended: where they stand now says nothing
                pictures.append(await asyncio.to_thread(stacks.compare, held, groups, blind))
                picture = stacks.combine(pictures, groups)
                tree = await asyncio.to_thread(stacks.tree, held, threads=True)
                answer = {
                    "job": job.name,
                    "attempt": attempt,
                    "ts_ns": self._clock.wall_ns(),
                    "why": why,
                    **picture.brief(),
                    "tree": tree,
                }
                memory.note(answer, evidence=silent)
            memory.blind = answer["sentence"] if answer["state"] == "blind" else ""
            self._journal.event(NAME, job=job.name, attempt=attempt, detail=_stored(answer), actor=why)
            return answer
        finally:
            memory.running = None

    async def _self_test(self, job: Job, memory: _Memory) -> dict[str, Any]:
        try:
            held, blind = _gathered(job, await job.read_stacks(TIMEOUT_S, first_only=True))
            reasons = sorted(set(blind.values()))
            memory.blind = "" if held or not reasons else f"No stack can be read: {'; '.join(reasons)}."
            return {}
        finally:
            memory.running = None


def _enough(pictures: Sequence[stacks.StackComparison], took_s: float) -> bool:
    """Whether the samples decide, or no more of them would: nothing can be read."""
    wanted = SAMPLES if took_s < BUDGET_S else stacks.MIN_SAMPLES
    return bool(pictures) and (len(pictures) >= wanted or pictures[-1].state == "blind")


def _note_failure(task: asyncio.Task[dict[str, Any]]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("stacks_failed", error=repr(task.exception()))


def _silent(view: watch.JobView, verdicts: Sequence[Verdict], stopped_s: float) -> bool:
    """Whether nobody moved for half of the time that is a hang, or a stopped rank for half of its own."""
    for verdict in verdicts:
        if isinstance(verdict, Finding):
            return True
        if isinstance(verdict, Healthy):
            numbers = verdict.numbers
            if numbers["silence_ns"] > EARLY * numbers["limit_ns"]:
                return True
    limit_ns = EARLY * stopped_s * 1e9
    return any(r.state == "stopped" and view.age_ns(r) > limit_ns for r in view.ranks)


def _gathered(job: Job, replies: Sequence[Reply]) -> tuple[list[stacks.RankStack], dict[int, str]]:
    """The stacks of all nodes, and why ranks have none."""
    held: list[stacks.RankStack] = []
    blind: dict[int, str] = {}
    ranks = {p.node: p.ranks for p in job.world}
    answered = {reply.node: reply for reply in replies}
    for node, own in ranks.items():
        reply = answered.get(node)
        if reply is None or reply.error:
            blind |= dict.fromkeys(own, f"{node}: {reply.error if reply else 'its agent is away'}")
            continue
        held += [_stack(s) for s in reply.data.get("stacks", ())]
        blind |= {int(rank): str(reason) for rank, reason in reply.data.get("blind", {}).items()}
    return held, blind


def _stack(sent: Mapping[str, Any]) -> stacks.RankStack:
    return stacks.RankStack(
        thread=str(sent["thread"]), frames=tuple(sent["frames"]), ranks=tuple(sent["ranks"])
    )


def _stored(answer: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept in the store: all of it, or without the tree where that is large."""
    detail = {k: v for k, v in answer.items() if k not in ("job", "attempt")}
    if len(json.dumps(detail)) > MOST_BYTES:
        detail["tree"] = []
    return detail
