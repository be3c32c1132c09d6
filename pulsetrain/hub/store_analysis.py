"""Findings from the stored records of running jobs.

Who is slow is asked each second, because it is told in steps, and as soon as rows have come. That is asked
too of a job that may name no steps (`early_rounds`). What else the
steps show, and what machines show, costs more and may come some seconds later.

Where heartbeats say that steps take longer, rows and looks come as fast as they may for some seconds.

While a job is steady all of that waits longer (`watch_pace`). A job is steady where its attempt is not young,
its steps take as long as before or nobody names any, nothing is doubtful, and no finding is open that is new.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, Protocol

import structlog

from pulsetrain.analytics.incidents.unsure import why_unknown
from pulsetrain.analytics.slowness.step_rate import StepRate
from pulsetrain.analytics.verdict import Failed, Finding, Healthy, Verdict, findings
from pulsetrain.core.clock import Clock
from pulsetrain.core.supervisor import FailureCollector
from pulsetrain.hub import early_rounds
from pulsetrain.hub.finding_dedup import FindingDedup, Key, key
from pulsetrain.hub.left_behind import LeftBehind
from pulsetrain.hub.live_watch import FindingSink, Watched
from pulsetrain.hub.storage_lag import StorageLag
from pulsetrain.hub.watch_pace import STEADY_S, WatchPace, calm_wait_s
from pulsetrain.recovery.snapshot import JobSnapshot
from pulsetrain.recovery.transitions import TERMINAL, Phase

log = structlog.get_logger()

SOURCE = "stored"
AGAIN_S = 0.2  # while a doubtful finding waits to be confirmed
POLL_S = 0.1  # while a look is due and waits for new rows
SPARING_SHARE = (
    20  # a hub beside its ranks costs them little: to ask who is slow uses a twentieth of the time
)
SPARING_S = 2.0  # for this reason nobody waits longer
STORE_SHARE = 5  # nor does it ever use more than a fifth
AGAIN_SHARE = 2  # and half of it while something doubtful waits
OTHERS_SHARE = 20  # each other group may use a twentieth
CALM_SHARE = 0.006  # of the time, to ask who is slow while all is steady
CALM_OTHERS_SHARE = 0.003  # and for each other group
CONSIDER_S = 0.5  # how often heartbeats are asked whether steps take longer
CONSIDER_SHARE = 0.02  # of the time, for that. A large job has many heartbeats
YOUNG_S = 30.0  # an attempt that began lately: nobody knows what is usual
NEW_S = 60.0  # for so long after a finding began or ended, what follows is worth hurrying
SUSPECT_S = 10.0  # longer steps are looked into for so long
FAILING_S = 30.0  # a group that could not be asked for so long: what it said before is no longer true
SURE = 0.9
PATIENCE_S = 3.0  # a finding that is absent for longer, and in two looks at least, has ended

Group = Literal["ranks", "steps", "machines"]
"""Analyzers that are asked together: who is slow, what else steps show, and what machines show."""

PERIODS_S: Mapping[Group, float] = MappingProxyType({"ranks": 1.0, "steps": 4.0, "machines": 5.0})
LONGEST_S: Mapping[Group, float] = MappingProxyType({"ranks": 8.0, "steps": 30.0, "machines": 20.0})
"""While all is steady, each group is asked at least so often."""
TURN_S = min(PERIODS_S.values())
FIRST: Group = "ranks"


class StoredRecords(Protocol):
    """What the analysis asks of the store. The calls block, so they run on a thread."""

    def look(
        self, job: str, attempt: int, now_ns: int, groups: Collection[Group]
    ) -> Mapping[Group, list[Verdict] | None]:
        """What the analyzers of each group say. None: nothing new was stored since its last look."""
        ...

    def newest_step(self, job: str, attempt: int) -> int:
        """The newest step that is stored, -1 for none."""
        ...

    def arrivals(self) -> int:
        """A number that grows whenever rows of ranks are stored. 0: it is not known when they are."""
        ...

    def hurry(self) -> None:
        """Somebody waits for the next rows."""
        ...


class AnalysisSink(FindingSink, Protocol):
    """Takes findings, and verdicts that are none."""

    def detectors(self, job: str, attempt: int, verdicts: Sequence[Verdict]) -> None:
        """What every detector of a job says now of an attempt, findings included."""
        ...


@dataclass(kw_only=True)
class _Said:
    """What one group of analyzers said last, and which of its findings are open."""

    dedup: FindingDedup
    verdicts: Sequence[Verdict] = ()
    looked_s: float = -math.inf
    took_s: float = 0.0
    failed: bool = False
    """The last question raised. Then nobody waits for a second answer."""
    failing_since_s: float = math.inf

    @property
    def doubtful(self) -> bool:
        """Whether the last look found something that another look should confirm."""
        return self.dedup.doubtful and not self.failed

    def take(self, verdicts: Sequence[Verdict], now_s: float) -> list[Finding]:
        """Take what was said now. Returns the findings that begin.

        What an analyzer found before ends with an answer of it that is sure, not where it cannot tell.
        """
        self.verdicts = verdicts
        return self.dedup.look(
            findings(verdicts), now_s=now_s, why_unknown=lambda finding: why_unknown(finding, verdicts)
        )

    def fail(self, group: Group, error: Exception, now_s: float) -> bool:
        """The question raised. After a while that is what is said, and whether its findings go on is not
        known any more. Returns whether that is so."""
        self.failed, self.failing_since_s = True, min(self.failing_since_s, now_s)
        if now_s - self.failing_since_s < FAILING_S:
            return False
        why = f"{type(error).__name__}: {' '.join(str(error).split())}"
        self.dedup.look((), now_s=now_s, why_unknown=lambda _: why)
        self.verdicts = [Failed(analyzer=_analysis(group), error=why)]
        return True

    def answered(self, group: Group, verdicts: Sequence[Verdict] | None) -> Sequence[Verdict] | None:
        """The question was answered: what is said now. None: nothing new."""
        self.failed, self.failing_since_s = False, math.inf
        if not self.told_failed(group):
            return verdicts
        well = Healthy(analyzer=_analysis(group))
        if verdicts is None:
            self.verdicts = [*findings(self.verdicts), well]
            return None
        return [*verdicts, well]

    def told_failed(self, group: Group) -> bool:
        """Whether it is told that the group cannot be asked."""
        return any(isinstance(v, Failed) and v.analyzer == _analysis(group) for v in self.verdicts)


def _analysis(group: Group) -> str:
    """The name under which it is told that a group cannot be asked."""
    return f"analysis of {group}"


def _every(period_s: float) -> _Said:
    """What is asked so often."""
    return _Said(dedup=FindingDedup(patience=max(2, round(PATIENCE_S / period_s)), sure=SURE))


@dataclass
class _Memory:
    """What is remembered of one attempt. `live` is what the hub sees without asking analyzers."""

    attempt: int = -1
    said: Mapping[Group, _Said] = field(
        default_factory=lambda: {group: _every(period_s) for group, period_s in PERIODS_S.items()}
    )
    live: _Said = field(default_factory=lambda: _every(TURN_S))
    lag: StorageLag = field(default_factory=StorageLag)
    rate: StepRate = field(default_factory=StepRate)
    left_behind: LeftBehind = field(default_factory=LeftBehind)
    changed_s: float = -math.inf
    """When the attempt was first looked at, or when a finding last began or ended."""
    young_until_s: float = math.inf
    open: frozenset[Key] = frozenset()
    urgent_until_s: float = -math.inf
    """Until when it is worth its cost to learn soon why steps take longer."""

    def every(self) -> Sequence[_Said]:
        """What was said, in the order in which it is told."""
        return self.said["ranks"], self.said["steps"], self.live, self.said["machines"]

    def note(self, job: JobSnapshot, now_s: float) -> None:
        """Take in what the job's heartbeats say."""
        self.rate.note(job.last_step, now_s - job.silent_s)
        if self.young_until_s == math.inf:
            self.young_until_s = now_s + YOUNG_S
        seen = frozenset(key(f) for said in (*self.said.values(), self.live) for f in said.dedup.current())
        if seen != self.open:
            self.open, self.changed_s = seen, now_s

    @property
    def doubtful(self) -> bool:
        """Whether the last look found something that another look should confirm."""
        return any(said.doubtful for said in (*self.said.values(), self.live))

    def due(self, now_s: float, *, calm: bool) -> list[Group]:
        """Who is slow, if that is to be asked, and at most one other group, so that the first is not late."""
        overdue_s = {
            group: now_s - said.looked_s - self._wait_s(group, now_s, calm=calm)
            for group, said in self.said.items()
        }
        first = [group for group in self.said if group == FIRST and overdue_s[group] >= 0]
        others = [group for group in self.said if group != FIRST and overdue_s[group] >= 0]
        return first + sorted(others, key=lambda group: -overdue_s[group])[:1]

    def _wait_s(self, group: Group, now_s: float, *, calm: bool) -> float:
        """How long after its last look a group is asked again. It waits longer where its answer took long."""
        said, share = self.said[group], 0 if group == FIRST else OTHERS_SHARE
        urgent = group == FIRST and now_s < self.urgent_until_s and not said.failed
        if said.doubtful or urgent:
            return 0.0
        wait_s = max(PERIODS_S[group], share * said.took_s)
        calm_share = CALM_SHARE if group == FIRST else CALM_OTHERS_SHARE
        return max(wait_s, calm_wait_s(said.took_s, calm_share, wait_s, LONGEST_S[group])) if calm else wait_s


class StoreAnalysis:
    """Runs the analyzers over the store for every job that trains.

    `stack_detector` says whether stacks of a job can be read.
    """

    def __init__(
        self,
        jobs: Mapping[str, Watched],
        records: StoredRecords,
        sink: AnalysisSink,
        clock: Clock,
        stack_detector: Callable[[str], Verdict],
        pace: WatchPace,
    ) -> None:
        self._jobs, self._records, self._sink = jobs, records, sink
        self._clock, self._stack_detector, self._pace = clock, stack_detector, pace
        self._memories: dict[str, _Memory] = {}
        self._phases: dict[str, Phase] = {}
        self._arrivals, self._latest_s = 0, -math.inf
        self._look_s = self._consider_s = -math.inf

    async def turn(self) -> float:
        """Ask the heartbeats and look, each when it is time. Returns when to come back."""
        if self._clock.monotonic_s() >= self._consider_s:
            self.consider()
        now_s = self._clock.monotonic_s()
        if now_s >= self._look_s:
            await self.look_round()
            now_s = self._clock.monotonic_s()
        return max(0.0, min(self._look_s, self._consider_s) - now_s)

    async def look_round(self) -> float:
        """Look at every job, as soon as rows have come since the last look, a second late at most.

        Returns when to look again: sooner to confirm a doubtful finding, and where steps take longer. What
        fails is raised at the end, and is asked again no sooner than what succeeds.
        """
        failures = FailureCollector()
        wait_s = await self._look_round(failures)
        self._look_s = self._clock.monotonic_s() + wait_s
        failures.raise_any()
        return wait_s

    async def _look_round(self, failures: FailureCollector) -> float:
        began_s, arrivals = self._clock.monotonic_s(), self._records.arrivals()
        if arrivals and arrivals == self._arrivals and began_s < self._latest_s:
            return CONSIDER_S if self._pace.calm else POLL_S
        self._arrivals, first_s = arrivals, 0.0
        for name, job in list(self._jobs.items()):
            with failures.collect(f"job {name}"):
                first_s += await self._look(job, failures)
        now_s = self._clock.monotonic_s()
        took_s = now_s - began_s
        running = [m for name, m in self._memories.items() if self._phases.get(name) is Phase.RUNNING]
        soon = any(memory.doubtful or now_s < memory.urgent_until_s for memory in running)
        if soon:
            self._records.hurry()
        if self._pace.calm and not soon:
            self._latest_s = began_s + TURN_S
            return CONSIDER_S
        wait_s = max(_period_s(first_s, soon=soon), took_s) - took_s
        self._latest_s = began_s + took_s + wait_s + TURN_S
        return wait_s

    async def _look(self, job: Watched, failures: FailureCollector) -> float:
        """Look at one job, if it trains. Returns how many seconds it took to say who is slow.

        A group that cannot be asked keeps no other one from being asked.
        """
        before = job.snapshot()
        self._end_failures(before)
        trains = self._trains(before)
        if not trains and not early_rounds.may_tell(before):
            self._end_early(before)
            return 0.0
        memory, calm = self._memory(before), self._pace.calm
        due, first_s = memory.due(self._clock.monotonic_s(), calm=calm), 0.0
        if not trains:
            due = [group for group in due if group == FIRST]
        if calm and not due:
            return 0.0
        for group in due:
            with failures.collect(f"{group} of job {before.job}"):
                await self._ask(job, before, memory, group)
            first_s += memory.said[group].took_s if group == FIRST else 0.0
        if not trains:
            return first_s
        newest_step = await asyncio.to_thread(self._records.newest_step, before.job, before.attempt)
        after = job.snapshot()
        verdicts = [self._lag(after, memory, newest_step), self._stack_detector(after.job)]
        self._report(after, memory, before.attempt, memory.live, verdicts)
        return first_s

    def _end_early(self, job: JobSnapshot) -> None:
        """What was said of a start ends while nobody looks at it. It would stand until the first step."""
        memory = self._memories.get(job.job)
        if memory is None or memory.attempt != job.attempt or job.phase is not Phase.RUNNING:
            return
        said = memory.said[FIRST]
        if said.doubtful or said.dedup.current():
            self._report(job, memory, job.attempt, said, [])

    def forget(self, job: str) -> None:
        """A job is not kept any longer."""
        self._memories.pop(job, None)
        self._phases.pop(job, None)

    def consider(self) -> None:
        """Say whether every job is steady. It asks the heartbeats alone.

        What that costs grows with the number of ranks. It sets when to ask again.
        """
        began_s = self._clock.monotonic_s()
        steady = self._all_steady(began_s)
        now_s = self._clock.monotonic_s()
        wait_s = calm_wait_s(now_s - began_s, CONSIDER_SHARE, CONSIDER_S, math.inf)
        self._consider_s = now_s + wait_s
        if steady:
            self._pace.steady(max(STEADY_S, 2 * wait_s))
        else:
            self._pace.unsteady()

    def _all_steady(self, now_s: float) -> bool:
        """Whether every job is steady, and one is there. Notes what their heartbeats say."""
        steady = []
        for name, watched in list(self._jobs.items()):
            try:
                job = watched.snapshot()
            except Exception as error:  # noqa: BLE001 - `look` raises it again, after the other jobs
                log.debug("no_snapshot", job=name, error=str(error))
                steady.append(False)
                continue
            self._note(job)
            if job.phase not in TERMINAL:
                steady.append(self._trains(job) and self._is_steady(job, now_s))
        return bool(steady) and all(steady)

    def _is_steady(self, job: JobSnapshot, now_s: float) -> bool:
        """Whether nothing in a job that trains asks for a prompt look."""
        memory = self._memory(job)
        memory.note(job, now_s)
        if memory.rate.suspicious(now_s):
            self._pace.prompt(SUSPECT_S)
            self._records.hurry()
            memory.urgent_until_s = now_s + SUSPECT_S
            self._look_s = now_s
        names_none = job.last_step < 0  # then nothing tells how long its steps take
        return (
            (memory.rate.known or names_none)
            and not memory.doubtful
            and now_s >= max(memory.young_until_s, memory.changed_s + NEW_S)
        )

    def _end_failures(self, job: JobSnapshot) -> None:
        """A new attempt has begun: that the earlier one could not be analyzed is not told any longer."""
        before = self._memories.get(job.job)
        if before is None or before.attempt == job.attempt:
            return
        memory = self._memory(job)
        for group in (group for group, said in before.said.items() if said.told_failed(group)):
            memory.said[group].verdicts = [Healthy(analyzer=_analysis(group))]
            self._report_open(job, memory, job.attempt, ())

    def _trains(self, job: JobSnapshot) -> bool:
        return job.phase is Phase.RUNNING and job.first_step_done

    def _memory(self, job: JobSnapshot) -> _Memory:
        memory = self._memories.get(job.job)
        if memory is None or memory.attempt != job.attempt:
            memory = self._memories[job.job] = _Memory(attempt=job.attempt)
        return memory

    def _note(self, job: JobSnapshot) -> None:
        """Rows of a job that begins, recovers or has just ended should come soon."""
        changed = self._phases.get(job.job) is not job.phase
        self._phases[job.job] = job.phase
        if changed or job.phase not in (Phase.RUNNING, *TERMINAL):
            self._records.hurry()

    async def _ask(self, job: Watched, before: JobSnapshot, memory: _Memory, group: Group) -> None:
        """Ask one group of analyzers and report what they say. How long it took counts where it fails too."""
        began_s, said, records = self._clock.monotonic_s(), memory.said[group], self._records
        try:
            look = await asyncio.to_thread(records.look, before.job, before.attempt, before.now_ns, [group])
        except Exception as error:
            if said.fail(group, error, began_s):
                self._report_open(job.snapshot(), memory, before.attempt, ())
            raise
        finally:
            said.looked_s, said.took_s = began_s, self._clock.monotonic_s() - began_s
        verdicts = said.answered(group, look[group])
        if verdicts is not None:  # the same rows again confirm nothing, and end nothing
            after = job.snapshot()
            if group == FIRST:
                verdicts = memory.left_behind.look(after, verdicts, self._clock.monotonic_s())
            elif group == "steps":
                verdicts = memory.left_behind.of_steps(verdicts)
            self._report(after, memory, before.attempt, said, verdicts)

    def _report(
        self, job: JobSnapshot, memory: _Memory, attempt: int, said: _Said, verdicts: Sequence[Verdict]
    ) -> None:
        """Report what was said now, and what is still open. An answer about an earlier attempt is dropped."""
        if job.attempt == attempt:
            new = said.take(verdicts, self._clock.monotonic_s())
            self._report_open(job, memory, attempt, new)

    def _report_open(self, job: JobSnapshot, memory: _Memory, attempt: int, new: Sequence[Finding]) -> None:
        """Report what is open, with what begins now, and what every detector said last."""
        if job.attempt != attempt:
            return
        current = [f for each in memory.every() for f in each.dedup.current()]
        self._sink.report(job.job, SOURCE, new, current)
        told = [v for each in memory.every() for v in each.verdicts]
        self._sink.detectors(job.job, job.attempt, told)

    def _lag(self, job: JobSnapshot, memory: _Memory, newest_step: int) -> Verdict:
        return memory.lag.look(
            job.job,
            job.attempt,
            stored_step=newest_step,
            live_step=job.last_step,
            now_s=self._clock.monotonic_s(),
            now_ns=job.now_ns,
        )


def _period_s(first_s: float, *, soon: bool) -> float:
    """Seconds from one look to the next, where it took `first_s` to say who is slow.

    >>> _period_s(0.03, soon=False), _period_s(0.0625, soon=False), _period_s(0.25, soon=True)
    (1.0, 1.25, 0.5)
    >>> _period_s(0.3, soon=False), _period_s(1.0, soon=False)
    (2.0, 5.0)
    """
    if soon:
        return max(AGAIN_S, AGAIN_SHARE * first_s)
    return max(TURN_S, min(SPARING_SHARE * first_s, SPARING_S), STORE_SHARE * first_s)
