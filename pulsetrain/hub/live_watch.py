"""Live findings: a few times a second, from heartbeats and exits alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from pulsetrain.analytics import watch
from pulsetrain.analytics.hangs.pauses import PauseLog
from pulsetrain.analytics.verdict import Finding, Verdict, findings
from pulsetrain.core.clock import Clock
from pulsetrain.core.supervisor import FailureCollector
from pulsetrain.hub import traffic_stop
from pulsetrain.hub.finding_dedup import FindingDedup, key
from pulsetrain.hub.stacks import StackEvidence
from pulsetrain.hub.step_times import StepTimes
from pulsetrain.hub.suspects import SuspectWatch
from pulsetrain.protocol.late_rows import JoinedRows, column
from pulsetrain.recovery.memory import JobMemory
from pulsetrain.recovery.record import Fault
from pulsetrain.recovery.snapshot import JobSnapshot
from pulsetrain.recovery.transitions import TERMINAL, Event, Phase

SOURCE = "live"
LIVE_S = 0.25
IDLE_S = 1.0  # without a job
HURRY_S = 0.05  # while a recovery waits for its cause
LIVE_SHARE = 20
LONGEST_S = 2.0  # a hang is to be named within seconds, however long a look takes
SETTLE_NS = 250_000_000
PATIENCE = 2


class Watched(Protocol):
    """A job that can be looked at."""

    def snapshot(self) -> JobSnapshot:
        """The job as it is now."""
        ...


class PauseMemory(Protocol):
    """Keeps the pauses of jobs for the hub that comes after this one."""

    def recall(self, job: str) -> JobMemory:
        """What is known of a job."""
        ...

    def pauses(self, job: str, longest_ns: Mapping[str, int]) -> None:
        """The longest silences that the job survived are these."""
        ...


class FindingSink(Protocol):
    """Takes what one look found."""

    def report(self, job: str, source: str, new: Sequence[Finding], still_open: Sequence[Finding]) -> None:
        """`new` findings of a job begin now. `still_open` are all that `source` sees, `new` included."""
        ...


@dataclass
class _Memory:
    """What is remembered of one attempt. `explained`: the cause of its end was named. `verdicts` are those of
    the last look for a hang."""

    attempt: int = -1
    first_exit_ns: int = 0
    explained: bool = False
    steps: StepTimes = field(default_factory=StepTimes)
    dedup: FindingDedup = field(default_factory=lambda: FindingDedup(patience=PATIENCE))
    verdicts: Sequence[Verdict] = ()


def job_view(job: JobSnapshot, median_step_ns: int) -> watch.JobView:
    """The snapshot as the live analyzers want it."""
    reporting = job.reporting()
    seen: dict[int, int] = {}
    for node, heartbeat in reporting:
        ranks = column(heartbeat.ranks, "rank")
        seen.update(dict.fromkeys(ranks, job.now_ns - int(node.heartbeat_age_s * 1e9)))
    return watch.JobView(
        job=job.job,
        attempt=job.attempt,
        now_ns=job.now_ns,
        ranks=JoinedRows([heartbeat.ranks for _, heartbeat in reporting]),
        exits=tuple(e for e in job.exits if e.code != 0),
        lost_nodes=job.lost_nodes(),
        median_step_ns=median_step_ns,
        started_ns=job.started_ns,
        first_step_done=job.first_step_done,
        world=job.world,
        seen_ns=seen,
        has_gpus=any(heartbeat.gauges.get("gpus") for _, heartbeat in reporting),
        activity={a.rank: a for _, heartbeat in reporting for a in heartbeat.activity},
    )


class LiveWatch:
    """Looks at the snapshots of all jobs and reports what the live analyzers find.

    It looks four times a second, and at many ranks so seldom that it takes a twentieth of the time. It waits
    two seconds at most.
    """

    def __init__(
        self,
        jobs: Mapping[str, Watched],
        stacks: StackEvidence,
        sink: FindingSink,
        clock: Clock,
        config: watch.WatchConfig,
        suspects: SuspectWatch,
        memory: PauseMemory,
    ) -> None:
        self._jobs, self._stacks, self._sink = jobs, stacks, sink
        self._clock, self._config, self._suspects = clock, config, suspects
        self._memory_of_pauses = memory
        self._memories: dict[str, _Memory] = {}
        self._pauses: dict[str, PauseLog] = {}

    async def turn(self) -> float:
        """Look at every job. The next turn comes sooner while a recovery waits for its cause."""
        if not self._jobs:
            return IDLE_S
        failures, hurry, began_s = FailureCollector(), False, self._clock.monotonic_s()
        for name, job in list(self._jobs.items()):
            with failures.collect(f"job {name}"):
                hurry |= self.look(job.snapshot())
        failures.raise_any()
        took_s = self._clock.monotonic_s() - began_s
        return max(HURRY_S if hurry else LIVE_S, min(LONGEST_S, (LIVE_SHARE - 1) * took_s))

    def look(self, job: JobSnapshot) -> bool:
        """Look at one job. Returns whether its recovery waits for its cause."""
        memory = self._memory(job)
        memory.steps.note(job.last_step, self._clock.monotonic_s())
        if job.phase in TERMINAL:
            return False
        view = job_view(job, memory.steps.median_ns)
        gone = bool(view.exits or view.lost_nodes)
        fault = job.fault or (job.left_alone if gone else None)
        if fault is not None and not memory.explained and (gone or job.phase is not Phase.RUNNING):
            memory.explained = gone and self._explain(job, fault, memory, view)
            return not memory.explained
        if job.phase is Phase.RUNNING and not gone:
            memory.explained, memory.first_exit_ns = False, 0  # a lost node may have come back
            self._look_for_hangs(job, memory, view)
        else:
            self._forget_silence(job)
        return False

    def _look_for_hangs(self, job: JobSnapshot, memory: _Memory, view: watch.JobView) -> None:
        pauses = self._pauses.get(job.job)
        if pauses is None:
            known_ns = self._memory_of_pauses.recall(job.job).pauses_ns
            pauses = self._pauses[job.job] = PauseLog(longest_ns=dict(known_ns))
        postures = self._suspects.postures(job.job, job.attempt)
        view = replace(view, postures=postures, usual_ns=pauses.longest_ns)
        look = watch.look(view, self._config)
        if look.stall_ns is not None and pauses.note(look.stall_ns, look.place):
            self._memory_of_pauses.pauses(job.job, pauses.longest_ns)
        memory.verdicts = look.verdicts
        self._suspects.consider(job.job, job.attempt, look.suspects)
        self._stacks.consider(job, view, look.verdicts)
        longest_ns = max(pauses.longest_ns.values(), default=0)
        seen = traffic_stop.with_evidence(job, findings(look.verdicts), longest_ns)
        self._report(job, memory, self._stacks.attach(job.job, job.attempt, seen))

    def _forget_silence(self, job: JobSnapshot) -> None:
        """What was seen of a silence says nothing about another attempt."""
        self._suspects.consider(job.job, job.attempt, ())
        if job.job in self._pauses:
            self._pauses[job.job].forget()

    def median_step_ns(self, job: str) -> int:
        """Median time of a step in the present attempt, 0 while unknown."""
        return self._memories[job].steps.median_ns if job in self._memories else 0

    def verdicts(self, job: str) -> Sequence[Verdict]:
        """What the last look for a hang said: also why a silence is none."""
        return self._memories[job].verdicts if job in self._memories else ()

    def forget(self, job: str) -> None:
        """A job is not kept any longer."""
        self._memories.pop(job, None)
        self._pauses.pop(job, None)

    def _memory(self, job: JobSnapshot) -> _Memory:
        memory = self._memories.get(job.job)
        if memory is None or memory.attempt != job.attempt:
            memory = self._memories[job.job] = _Memory(attempt=job.attempt)
        return memory

    def _explain(self, job: JobSnapshot, fault: Fault, memory: _Memory, view: watch.JobView) -> bool:
        """Name the cause once the facts are in: connections settled, exits of peers arrived."""
        crashed = fault.event is Event.RANK_FAILED
        memory.first_exit_ns = memory.first_exit_ns or (fault.detected_ns if crashed else job.now_ns)
        if any(node.unsettled for node in job.nodes):
            return False
        if job.now_ns - memory.first_exit_ns < SETTLE_NS and not view.lost_nodes:
            return False
        self._report(job, memory, findings(watch.crash(view)))
        return True

    def _report(self, job: JobSnapshot, memory: _Memory, seen: Sequence[Finding]) -> None:
        new = memory.dedup.look(seen)
        present = set(map(key, seen))
        # A job must not be stopped for a hang that this look does not see. `HangPatience` bears short gaps.
        still_open = [f for f in memory.dedup.current() if f.kind != "hang" or key(f) in present]
        self._sink.report(job.job, SOURCE, new, still_open)
