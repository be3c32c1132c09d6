"""Reads where the code of a job's ranks stands: several samples in a row, compared with each other.

A rank is called an outlier only where all samples agree. Nothing here blocks: an
agent reads on a thread of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from pulsetrain.analytics.hangs import stacks
from pulsetrain.core.clock import Clock
from pulsetrain.core.json import JsonObject
from pulsetrain.protocol.messages import Reply
from pulsetrain.recovery.snapshot import JobSnapshot

TIMEOUT_S = 3.0
SAMPLES = 3  # in a row, of which all must agree
PAUSE_S = 0.15  # between two samples
BUDGET_S = 3.0  # after which two have to do: an agent that does not answer takes that long each time


class StackSource(Protocol):
    """A job whose agents can be asked for stacks."""

    def snapshot(self) -> JobSnapshot:
        """The job as it is now."""
        ...

    async def read_stacks(self, timeout_s: float, *, first_only: bool = False) -> list[Reply]:
        """One reply of each connected node. With `first_only` each node reads one rank."""
        ...


class StackReport(stacks.StackEvidence):
    """What the samples say together, and whose they are. `why` is who or what wanted them."""

    job: str
    attempt: int
    ts_ns: int
    why: str
    tree: list[stacks.StackBranch]


class StackSampler:
    """Takes samples of one job at a time. `pause_s` lies between two of them."""

    def __init__(self, clock: Clock, *, pause_s: float = PAUSE_S) -> None:
        self._clock, self._pause_s = clock, pause_s

    async def take(self, job: StackSource, why: str, keep: Callable[[StackReport], None]) -> StackReport:
        """Take samples until they decide. `keep` gets what the samples so far say, after each of them.

        Samples end when the job begins another phase or attempt: ranks that are being ended prove nothing.
        """
        before = job.snapshot()
        named = {(g.group, g.members) for r in before.statuses() for g in r.groups}
        groups = {(name, tuple(sorted(members))) for name, members in named}
        samples: list[stacks.StackComparison] = []
        report: StackReport | None = None
        began_s = self._clock.monotonic_s()
        while report is None or not _enough(samples, self._clock.monotonic_s() - began_s):
            await asyncio.sleep(self._pause_s if samples else 0)
            replies = await job.read_stacks(TIMEOUT_S)
            now = job.snapshot()
            if report is not None and (now.attempt, now.phase) != (before.attempt, before.phase):
                break
            held, blind = _gather(now, replies)
            samples.append(await asyncio.to_thread(stacks.compare, held, groups, blind))
            report = {
                **stacks.combine(samples, groups).brief(),
                "job": before.job,
                "attempt": before.attempt,
                "ts_ns": self._clock.wall_ns(),
                "why": why,
                "tree": await asyncio.to_thread(stacks.tree, held, threads=True),
            }
            keep(report)
        return report

    async def self_test(self, job: StackSource) -> str:
        """Read one rank of each node. Returns why no stack can be read, "" where one can."""
        held, blind = _gather(job.snapshot(), await job.read_stacks(TIMEOUT_S, first_only=True))
        reasons = sorted(set(blind.values()))
        return "" if held or not reasons else f"No stack can be read: {'; '.join(reasons)}."


def _enough(samples: Sequence[stacks.StackComparison], took_s: float) -> bool:
    """Whether the samples decide, or no more of them would: nothing can be read."""
    wanted = SAMPLES if took_s < BUDGET_S else stacks.MIN_SAMPLES
    return len(samples) >= wanted or samples[-1].state == "blind"


def _gather(job: JobSnapshot, replies: Sequence[Reply]) -> tuple[list[stacks.RankStack], dict[int, str]]:
    """The stacks of all nodes, and why ranks have none."""
    held: list[stacks.RankStack] = []
    blind: dict[int, str] = {}
    answered = {reply.node: reply for reply in replies}
    for member in job.world:
        reply = answered.get(member.node)
        if reply is None or reply.error:
            reason = reply.error if reply else "its agent is away"
            blind |= dict.fromkeys(member.ranks, f"{member.node}: {reason}")
            continue
        held += [_stack(sent) for sent in reply.data.get("stacks", ())]
        blind |= {int(rank): str(reason) for rank, reason in reply.data.get("blind", {}).items()}
    return held, blind


def _stack(sent: JsonObject) -> stacks.RankStack:
    return stacks.RankStack(
        thread=str(sent["thread"]), frames=tuple(sent["frames"]), ranks=tuple(sent["ranks"])
    )
