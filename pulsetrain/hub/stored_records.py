"""The store as the analysis asks it: analyzers, newest step, findings of earlier hubs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType

import structlog

from pulsetrain.analytics.analyze import (
    DEFAULT_WINDOW_STEPS,
    MACHINE_ANALYZERS,
    Analyzer,
    AnalyzerInput,
    Recent,
    analyze,
    analyze_recent,
    for_device,
)
from pulsetrain.analytics.machines.job_hardware import JobHardware
from pulsetrain.analytics.slowness import stepless, straggler
from pulsetrain.analytics.slowness.device_peaks import Peak
from pulsetrain.analytics.slowness.open_slowdowns import OpenSlowdowns
from pulsetrain.analytics.slowness.recent_timings import RecentTimings
from pulsetrain.analytics.slowness.recent_transfers import RecentTransfers
from pulsetrain.analytics.slowness.slowest import Slowest, slowest
from pulsetrain.analytics.slowness.timings import Timings
from pulsetrain.analytics.verdict import Failed, Finding, Inconclusive, Verdict
from pulsetrain.analytics.without_steps import rounds
from pulsetrain.core.clock import Clock, SystemClock
from pulsetrain.core.supervisor import one_line
from pulsetrain.hub.store_analysis import Group
from pulsetrain.stream.queries.queryable import OneThread, Queryable
from pulsetrain.stream.queries.storage import stored_step

log = structlog.get_logger()

FREE_S = 120.0  # of a job that was not asked about for so long no rows are held
YOUNG_S = 30.0  # for so long after a job began to train, its first rows may be on their way
RECENT_NS = stepless.LONGEST_S * 10**9  # operations of jobs without steps are looked for in so much time
AGAIN_NS = 60_000_000_000  # where they are too many to read, they are counted again after so long
SMALL_RANKS = 1024  # up to so many, more threads cost a query more than they save
ANALYZE = "analyze"  # says that there is no step at all
RANK_ANALYZERS = frozenset({"straggler"})
OF_RANKS = ("steps", "spans")
"""records that tell where the time of steps went"""
SAME_NS = 30_000_000_000  # time alone changes what analyzers of machines say, but slowly
STEP_TABLES = ("steps", "spans", "topology")
MACHINE_TABLES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "network": ("metrics",),
        "gpu_health": ("metrics", "events"),
        "kernel_log": ("logs",),
        "logs": ("logs",),
        "log_rules": ("events",),
    }
)
"""What analyzers of machines read, beside the time of the steps."""

Versions = tuple[int, ...]
"""How many inserts there were into some tables."""


@dataclass
class _Held:
    """What is kept of one attempt between looks."""

    timings: RecentTimings
    slowdowns: OpenSlowdowns
    since_s: float | None = None
    """When others than ranks were first asked about: a job that may name no steps has no rows of them yet."""
    transfers: RecentTransfers = field(default_factory=RecentTransfers)
    hardware: JobHardware | None = None
    """What was read last, None before."""
    reloads: int = 0
    looked_s: float = 0.0
    slowest: Slowest | None = None
    unranked: bool = False
    """It was logged that nobody could say who is slowest."""
    unread: bool = False
    """The timings could not be read at the last look, so they do not tell the newest step."""
    version: int = 0
    """How often anything new was found."""
    judged: dict[Group, int] = field(default_factory=dict)
    """The version that each group of analyzers saw last."""
    newest: stepless.Newest | None = None
    """Operations of a job without steps, as of the last look."""
    unreadable_ns: int | None = None
    """When they were found to be too many, None where they are not."""
    versions: Versions | None = None
    """Of what the timings are read from, before they were read last."""


class _Remembered:
    """An analyzer that says the same again while nothing was inserted into its tables, for `SAME_NS` at most.

    One thread calls it.
    """

    def __init__(self, run: Analyzer, versions: Callable[[], Versions | None]) -> None:
        self._run, self._versions = run, versions
        self._said: dict[str, tuple[int, Versions | None, int, list[Verdict]]] = {}

    def __call__(self, source: AnalyzerInput) -> list[Verdict]:
        """See `Analyzer`."""
        versions = self._versions()  # before the rows are read: what comes meanwhile is read next time
        said = self._said.get(source.job)
        same = said is not None and versions is not None and said[:2] == (source.attempt, versions)
        if said is not None and same and 0 <= source.now_ns - said[2] < SAME_NS:
            return said[3]
        verdicts = self._run(source)
        self._said = {j: s for j, s in self._said.items() if source.now_ns - s[2] < SAME_NS}
        self._said[source.job] = (source.attempt, versions, source.now_ns, verdicts)
        return verdicts


class StoreRecords:
    """`StoredRecords` over a store. `device` is what all ranks run on, None where that is unknown.

    `inserts` counts the inserts of these records that this process has done, and `hurry` has it store what
    comes soon. `versions` counts those into
    each table, whoever does them. Where there were none, nothing is read again. It gives None where that is
    not known.
    """

    def __init__(
        self,
        store: Queryable,
        device: Peak | None = None,
        *,
        inserts: Callable[[Collection[str]], int] = lambda records: 0,
        hurry: Callable[[], None] = lambda: None,
        versions: Callable[..., Versions | None] = lambda *tables: None,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._store, self._one_thread = store, OneThread(store)
        self._inserts, self._versions, self._hurry = inserts, versions, hurry
        self._held: dict[str, _Held] = {}
        self._earlier: dict[tuple[str, int], list[Finding]] = {}
        self._analyzers: dict[Group, dict[str, Analyzer]] = {"ranks": {}, "steps": {}, "machines": {}}
        for name, analyzer in for_device(device).items():
            group, tables = group_of(name), MACHINE_TABLES.get(name)
            version = partial(versions, *tables) if tables else None
            self._analyzers[group][name] = _Remembered(analyzer, version) if version else analyzer

    def look(
        self, job: str, attempt: int, now_ns: int, groups: Collection[Group]
    ) -> Mapping[Group, list[Verdict] | None]:
        """What the analyzers of each group say. None: nothing new was stored since its last look."""
        said: dict[Group, list[Verdict] | None] = {}
        of_steps = [group for group in groups if group != "machines"]
        if of_steps:
            said |= self._look(self._attempt(job, attempt, groups), of_steps, now_ns)
        if "machines" in groups:
            analyzers, held = self._analyzers["machines"], self._attempt(job, attempt, groups)
            verdicts = analyze(self._cheapest(job), job, attempt=attempt, now_ns=now_ns, analyzers=analyzers)
            said["machines"] = [self._patient(verdict, held) for verdict in verdicts]
        return said

    def newest_step(self, job: str, attempt: int) -> int:
        """The newest step that is stored of any rank, -1 for none. After `look` it is known."""
        held = self._held.get(job)
        if held is not None and held.timings.attempt == attempt and not held.unread:
            return held.timings.last_step
        return stored_step(self._store, job, attempt)

    def arrivals(self) -> int:
        """How often rows of ranks were stored. 0 where other processes store them, as from Kafka."""
        return self._inserts(OF_RANKS)

    def hurry(self) -> None:
        """Have rows stored soon that this process stores."""
        self._hurry()

    def recall(self, earlier: Iterable[Finding]) -> None:
        """Take findings that were open when an earlier hub ended, the newest of each job first."""
        for finding in earlier:
            self._earlier.setdefault((finding.job, finding.attempt), []).append(finding)

    def forget(self, job: str) -> None:
        """A job is not kept any longer."""
        self._held.pop(job, None)
        self._earlier = {of: found for of, found in self._earlier.items() if of[0] != job}

    def _attempt(self, job: str, attempt: int, groups: Collection[Group]) -> _Held:
        now_s = self._clock.monotonic_s()
        self._free(now_s)
        held = self._held.get(job)
        if held is None or held.timings.attempt != attempt:
            recent = RecentTimings(job, attempt, window=DEFAULT_WINDOW_STEPS)
            slowdowns = OpenSlowdowns(self._earlier.pop((job, attempt), ()))
            held = self._held[job] = _Held(timings=recent, slowdowns=slowdowns)
        if held.since_s is None and set(groups) != {"ranks"}:
            held.since_s = now_s
        held.looked_s = now_s
        return held

    def slowest(self, job: str, attempt: int) -> Slowest | None:
        """The slowest ranks and nodes as of the last look. None where nothing is known of the attempt."""
        held = self._held.get(job)
        return held.slowest if held is not None and held.timings.attempt == attempt else None

    def _look(self, held: _Held, groups: Collection[Group], now_ns: int) -> dict[Group, list[Verdict] | None]:
        store = self._cheapest(held.timings.job)
        versions = self._versions(*STEP_TABLES)
        same = versions is not None and versions == held.versions and held.timings.holds(now_ns)
        if same and all(held.judged.get(group) == held.version for group in groups):
            return dict.fromkeys(groups)
        held.versions, held.unread = versions, True
        timings = held.timings.look(store, now_ns)
        held.unread = False
        if timings is None:
            blind = Inconclusive(analyzer=ANALYZE, reason="no step on record yet", blind=True)
            nothing = self._patient(blind, held)
            of_ranks = self._without_steps(store, held, nothing, now_ns) if "ranks" in groups else None
            return {group: of_ranks if group == "ranks" else [] for group in groups}
        held.version += held.timings.changed
        if held.reloads != held.timings.reloads:
            held.hardware = _hardware(store, held)
            held.reloads, held.transfers = held.timings.reloads, RecentTransfers()
        held.transfers.settled_before = held.timings.unsettled
        if held.timings.changed or held.slowest is None:
            held.slowest = _ranked(timings, held)
        recent = Recent(
            timings=timings,
            transfers=held.transfers,
            hardware=held.hardware or JobHardware(),
            slowdowns=held.slowdowns,
        )
        said: dict[Group, list[Verdict] | None] = {}
        for group in groups:
            seen, held.judged[group] = held.judged.get(group), held.version
            new = seen != held.version
            said[group] = analyze_recent(store, recent, self._analyzers[group]) if new else None
        return said

    def _without_steps(
        self, store: Queryable, held: _Held, nothing: Verdict, now_ns: int
    ) -> list[Verdict] | None:
        """Who is slow by rounds of collectives, beside `nothing`, which says that other analyzers are blind.

        None where no operation has come since the last look, or where they were too many a moment ago.
        """
        job, attempt = held.timings.job, held.timings.attempt
        if held.unreadable_ns is not None and 0 <= now_ns - held.unreadable_ns < AGAIN_NS:
            return None
        held.unreadable_ns = None
        try:
            newest = stepless.newest(store, job, attempt, now_ns - RECENT_NS)
        except Exception as error:  # noqa: BLE001 - as in `guarded`
            return [nothing, Failed(analyzer=straggler.NAME, error=one_line(error))]
        if newest is None:
            return [nothing]
        if newest == held.newest:
            return None
        held.newest = newest
        if not newest.begins_ns(stepless.WINDOW_S):
            held.unreadable_ns = now_ns
        return [nothing, *rounds(newest, store, job, attempt, now_ns=now_ns)]

    def _cheapest(self, job: str) -> Queryable:
        """The store, as queries about this job cost least."""
        held = self._held.get(job)
        small = held is not None and 0 < held.timings.world_size <= SMALL_RANKS
        return self._one_thread if small else self._store

    def _free(self, now_s: float) -> None:
        """Hold no rows of jobs that nobody asks about. Which slowdowns are open is known until `forget`."""
        for held in list(self._held.values()):
            if now_s - held.looked_s > FREE_S:
                held.timings.free()
                held.unread, held.transfers = True, RecentTransfers()

    def _patient(self, verdict: Verdict, held: _Held) -> Verdict:
        """The verdict. That no step is on record is no blindness yet where the attempt is young."""
        young = held.since_s is None or self._clock.monotonic_s() - held.since_s < YOUNG_S
        if young and isinstance(verdict, Inconclusive) and verdict.analyzer == ANALYZE:
            return replace(verdict, blind=False)
        return verdict


def _hardware(store: Queryable, held: _Held) -> JobHardware:
    """What the job runs on, as it was read before where it cannot be read. Raises where it never was."""
    try:
        return JobHardware.read(store, held.timings.newest)
    except Exception as error:  # the next reload asks again
        if held.hardware is None:
            raise
        log.warning("hardware_not_read", job=held.timings.job, error=one_line(error))
        return held.hardware


def _ranked(timings: Timings, held: _Held) -> Slowest | None:
    """The slowest ranks. That they are not known keeps no analyzer from being asked."""
    try:
        return slowest(timings)
    except Exception as error:  # noqa: BLE001 - a list beside the findings. It is logged once
        if not held.unranked:
            held.unranked = True
            log.warning("slowest_ranks_unknown", job=timings.job, error=one_line(error))
        return None


def group_of(analyzer: str) -> Group:
    """Return with which others an analyzer is asked.

    >>> group_of("straggler"), group_of("mfu"), group_of("network")
    ('ranks', 'steps', 'machines')
    """
    if analyzer in MACHINE_ANALYZERS:
        return "machines"
    return "ranks" if analyzer in RANK_ANALYZERS else "steps"
