"""Profiles of running ranks on request: which steps are profiled, who is asked, and the answer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

from pulsetrain.core.errors import UsageError
from pulsetrain.core.json import JsonObject
from pulsetrain.protocol.messages import Reply
from pulsetrain.recovery.journal import Journal
from pulsetrain.recovery.snapshot import JobSnapshot
from pulsetrain.recovery.transitions import Phase

MOST_STEPS, MOST_RANKS = 100, 64
LEAD_S = 3.0  # a heartbeat is up to a second old, and the request takes its way to every rank
UNKNOWN_STEP_S = 0.5
LONGEST_S = 600.0
GRACE_S = 30.0


class ProfileSource(Protocol):
    """A job, as far as it can be profiled."""

    def snapshot(self) -> JobSnapshot: ...
    async def profile(
        self, *, first_step: int, steps: int, ranks: Sequence[int], timeout_s: float
    ) -> list[Reply]: ...


class StepTimes(Protocol):
    """What knows how long a step takes."""

    def median_step_ns(self, job: str) -> int: ...


class Profiles:
    """Asks for profiles. All methods run on the hub's event loop."""

    def __init__(self, jobs: Mapping[str, ProfileSource], times: StepTimes, journal: Journal) -> None:
        self._jobs, self._times, self._journal = jobs, times, journal
        self._under_way: set[str] = set()

    async def take(self, job: str, *, ranks: Sequence[int], steps: int, actor: str) -> JsonObject:
        """Profile the same steps of some ranks, and wait until they are over.

        {"job", "attempt", "first_step", "steps", "profiles": {rank: trace}, "failed": {rank: why}}. A trace
        is Chrome's JSON, gzipped, in base64. Raises `UsageError` for a job that makes no steps now, and for
        steps that are not over in `LONGEST_S`.
        """
        source = self._jobs.get(job)
        if source is None:
            known = ", ".join(sorted(self._jobs)) or "none"
            raise UsageError(f"no job {job!r} runs here; jobs here: {known}")
        if job in self._under_way:
            raise UsageError(f"job {job!r} is being profiled; try again when that is over")
        snapshot = source.snapshot()
        _check(snapshot, ranks, steps)
        first_step, timeout_s = _plan(snapshot.last_step, steps, self._times.median_step_ns(job) / 1e9)
        self._under_way.add(job)
        try:
            replies = await source.profile(
                first_step=first_step, steps=steps, ranks=ranks, timeout_s=timeout_s
            )
        finally:
            self._under_way.discard(job)
        answer: JsonObject = {
            "job": job,
            "attempt": snapshot.attempt,
            "first_step": first_step,
            "steps": steps,
            **_collected(replies, ranks),
        }
        detail = {"first_step": first_step, "steps": steps, "ranks": list(ranks), "failed": answer["failed"]}
        self._journal.event("profile", job=job, attempt=snapshot.attempt, detail=detail, actor=actor)
        return answer


def _check(job: JobSnapshot, ranks: Sequence[int], steps: int) -> None:
    if not 1 <= steps <= MOST_STEPS:
        raise UsageError(f"steps = {steps}: allowed: 1 to {MOST_STEPS}")
    if not 1 <= len(ranks) <= MOST_RANKS:
        raise UsageError(f"{len(ranks)} ranks: allowed: 1 to {MOST_RANKS} at a time")
    unknown = [rank for rank in ranks if not 0 <= rank < job.world_size]
    if unknown:
        raise UsageError(f"rank {unknown[0]}: job {job.job!r} has ranks 0 to {job.world_size - 1}")
    if job.phase is not Phase.RUNNING:
        raise UsageError(f"job {job.job!r} is {job.phase}: only a running job can be profiled")
    if job.last_step < 0:
        raise UsageError(f"job {job.job!r} has completed no step: a profile begins and ends with a step")


def _plan(last_step: int, steps: int, step_s: float) -> tuple[int, float]:
    """The first step to profile, which no rank has reached yet, and how long to wait for the last one.

    Raises `UsageError` where the last one comes after `LONGEST_S`.

    >>> _plan(100, 3, 1.0)
    (104, 44.0)
    """
    step_s = step_s or UNKNOWN_STEP_S
    lead = math.ceil(LEAD_S / step_s)
    most = math.floor((LONGEST_S - GRACE_S) / step_s) - 1 - lead
    if steps > most:
        allowed = f"allowed: 1 to {most}" if most > 0 else "such a job cannot be profiled"
        raise UsageError(
            f"steps = {steps}: a step takes {step_s:.3g} s, and a profile {LONGEST_S:g} s at most; {allowed}"
        )
    return last_step + 1 + lead, min(LONGEST_S, GRACE_S + 2 * (1 + lead + steps) * step_s)


def _collected(replies: Sequence[Reply], ranks: Sequence[int]) -> JsonObject:
    profiles: dict[str, object] = {}
    failed: dict[str, object] = {}
    for reply in replies:
        profiles |= reply.data.get("profiles", {})
        failed |= reply.data.get("failed", {})
    errors = "; ".join(f"{reply.node}: {reply.error}" for reply in replies if reply.error)
    for rank in map(str, ranks):
        if rank not in profiles and rank not in failed:
            failed[rank] = errors or "its node has not answered"
    return {"profiles": profiles, "failed": failed}
