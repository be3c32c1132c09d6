"""Run every analyzer over the stored records of one attempt of a job. Each analyzer answers for itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

import numpy as np

from pulsetrain.analytics import calibration, numerics
from pulsetrain.analytics.machines import analyzers as machines
from pulsetrain.analytics.machines.job_hardware import JobHardware
from pulsetrain.analytics.slowness import (
    arrivals,
    fail_slow,
    imbalance,
    links,
    load_timings,
    mfu,
    stalls,
    straggler,
)
from pulsetrain.analytics.slowness.device_peaks import Peak
from pulsetrain.analytics.slowness.open_slowdowns import KINDS, OpenSlowdowns
from pulsetrain.analytics.slowness.recent_transfers import RecentTransfers
from pulsetrain.analytics.slowness.timings import Timings
from pulsetrain.analytics.verdict import Failed, Healthy, Inconclusive, Verdict, findings, guarded
from pulsetrain.analytics.without_steps import WithoutSteps
from pulsetrain.core.errors import PulsetrainError, UsageError
from pulsetrain.stream.queries import analysis
from pulsetrain.stream.queries.machines import AttemptTime
from pulsetrain.stream.queries.queryable import AttemptSteps, Queryable

OPEN_SLOWDOWNS = "open_slowdowns"
DEFAULT_WINDOW_STEPS = 256  # steps that are read where the caller does not name a first step
MOST_CELLS = 10_000_000  # steps x ranks that are held at once, about 200 bytes each: 2 GB


@dataclass(frozen=True, kw_only=True)
class StepRange:
    """First and last step to look at, both included. None: as far as steps are stored."""

    since: int | None = None
    until: int | None = None

    def overlaps(self, first: int, last: int) -> bool:
        """Whether any of the steps `first`..`last` is in the range."""
        return (self.since is None or last >= self.since) and (self.until is None or first <= self.until)


@dataclass(frozen=True, kw_only=True)
class Recent:
    """What is held of a running job: the timings of its newest steps, their collectives, its machines.

    `slowdowns` are those of the whole job that earlier looks saw.
    """

    timings: Timings
    transfers: RecentTransfers
    hardware: JobHardware
    slowdowns: OpenSlowdowns = field(default_factory=OpenSlowdowns)


@dataclass(frozen=True)
class AnalyzerInput:
    """What an analyzer may read: the store, and the steps `since`..`until` of one attempt of one job.

    `scan` asks for what was wrong at any time in these steps. Without it, analyzers look for what is wrong
    at their end. `recent` is what was read already. `without_steps` is when to look at the machines of an
    attempt that has no step.
    """

    store: Queryable
    job: str
    attempt: int
    since: int
    until: int
    first_step: int
    now_ns: int
    scan: bool = False
    recent: Recent | None = None
    without_steps: AttemptTime | None = None

    @cached_property
    def timings(self) -> Timings:
        """Times of these steps, with the ranks' GPU models. They are read at the first use, once for all."""
        timings = (
            self.recent.timings
            if self.recent is not None
            else load_timings.load(self.store, self.steps, first_step=self.first_step, now_ns=self.now_ns)
        )
        models = self.hardware.unlike(timings.nodes.tolist())
        return replace(timings, models=np.array(models, np.str_)) if models else timings

    @property
    def steps(self) -> AttemptSteps:
        """The same steps in the form that the queries take."""
        return AttemptSteps(job=self.job, attempt=self.attempt, first=self.since, last=self.until)

    @cached_property
    def hardware(self) -> JobHardware:
        """What the job runs on."""
        return self.recent.hardware if self.recent else JobHardware.read(self.store, self.steps)

    @cached_property
    def stragglers(self) -> list[Verdict]:
        """Verdicts of the straggler analyzer. It runs once, and the link analyzer uses its answer too."""
        if self.scan:
            return straggler.find(self.timings, scan=True, inferred=self.infers_flops)
        return straggler.find(
            self.timings,
            arrivals=lambda: arrivals.load(self.store, self.steps),
            inferred=self.infers_flops,
        )

    def infers_flops(self) -> bool:
        """Whether ranks said that the script does not tell the FLOPs of its steps."""
        said = analysis.flops_source(self.store, self.steps)
        return bool(said) and said != "explicit"

    @cached_property
    def machines(self) -> machines.MachineSource:
        """The same steps in the form that the analyzers of machines take."""
        return machines.MachineSource(
            store=self.store,
            steps=self.steps,
            now_ns=self.now_ns,
            scan=self.scan,
            without_steps=self.without_steps,
        )


Analyzer = Callable[[AnalyzerInput], list[Verdict]]

STEP_ANALYZERS: Mapping[str, Analyzer] = MappingProxyType(
    {
        "straggler": lambda source: source.stragglers,
        "slow_link": lambda source: (
            links.scan_store(source.store, source.timings, source.stragglers)
            if source.scan
            else links.find_in_store(
                source.store,
                source.timings,
                source.stragglers,
                source.recent.transfers if source.recent else None,
            )
        ),
        "fail_slow": lambda source: fail_slow.find(
            source.timings, recovered=source.scan, inferred=source.infers_flops
        ),
        "stage_imbalance": lambda source: imbalance.stages(source.timings),
        "sequence_imbalance": lambda source: imbalance.sequences(source.timings, scan=source.scan),
        "data_stall": lambda source: stalls.find(source.timings, stalls.DATA, scan=source.scan),
        "gc_pause": lambda source: stalls.find(source.timings, stalls.GC, scan=source.scan),
        "numerics": lambda source: numerics.find(source.timings),
        "mfu": lambda source: mfu.find(
            source.timings,
            source.hardware.peak(source.timings.nodes.tolist()),
            inferred=source.infers_flops,
            scan=source.scan,
        ),
    }
)
"""Analyzers of steps, ranks and links. The hub runs them every second."""

MACHINE_ANALYZERS: Mapping[str, Analyzer] = MappingProxyType(
    {
        "network": lambda source: machines.ports(source.machines),
        "gpu_health": lambda source: machines.gpus(source.machines),
        "kernel_log": lambda source: machines.kernel(source.machines),
        "logs": lambda source: machines.rank_logs(source.machines),
        "log_rules": lambda source: machines.rule_matches(source.machines),
    }
)
"""Analyzers of counters and logs. Those are sampled only every few seconds."""

ANALYZERS: Mapping[str, Analyzer] = MappingProxyType({**STEP_ANALYZERS, **MACHINE_ANALYZERS})


def for_device(device: Peak | None) -> Mapping[str, Analyzer]:
    """The analyzers for a job whose ranks all run on `device`. None: on the GPUs that their agents reported.

    >>> sorted(for_device(None)) == sorted(ANALYZERS)
    True
    """
    if device is None:
        return ANALYZERS
    return {
        **ANALYZERS,
        "mfu": lambda source: mfu.find(
            source.timings, device, inferred=source.infers_flops, scan=source.scan
        ),
    }


def analyze(
    store: Queryable,
    job: str,
    steps: StepRange | None = None,
    *,
    attempt: int | None = None,
    now_ns: int,
    scan: bool = False,
    analyzers: Mapping[str, Analyzer] = ANALYZERS,
) -> list[Verdict]:
    """Return the verdicts of every analyzer on `steps` of an attempt, with calibrated confidences.

    `attempt` defaults to the newest attempt that has one of these steps. Where no first step is given, the
    last 256 steps are read, or the whole attempt with `scan`. Of an attempt of more than `MOST_CELLS` steps
    x ranks the newest steps that fit are read, and one more `Inconclusive` says which. Each analyzer gives
    at least one verdict: `Failed` where it raises, `Inconclusive` where it returns nothing. Where no step
    is stored in the range, the only verdict is one blind `Inconclusive`, with `scan` a `UsageError`. An
    attempt without any step is looked at by rounds of its newest collectives (`stepless`), and so are the
    machines that it runs on.

    Raises `UsageError` for a job that has neither in the store, and for steps from a given first one on that
    do not fit.
    """
    steps = steps or StepRange()
    stored = _stored(store, job, attempt)
    if not stored and steps == StepRange():
        said = _without_steps(store, job, attempt, now_ns, analyzers, scan=scan)
        if said:
            return said
    source = _select(store, stored, job, steps, attempt, now_ns, scan=scan)
    if isinstance(source, Inconclusive):
        if scan:
            raise UsageError(_nothing_there(store, stored, job, steps, attempt))
        return [source]
    if not scan:
        return verdicts_of(source, analyzers)
    fitting, notes = _that_fit(source, chosen=steps.since is not None)
    return [*verdicts_of(fitting, analyzers), *notes]


def _nothing_there(
    store: Queryable, stored: Sequence[Mapping[str, int]], job: str, steps: StepRange, attempt: int | None
) -> str:
    """What a person is told who asked for steps that are not there."""
    if attempt is not None and not stored:
        there = ", ".join(str(row["attempt"]) for row in _stored(store, job, None)) or "none"
        return f"job {job!r}: no step of attempt {attempt} is on record; attempts with steps: {there}"
    first, last = ("" if bound is None else str(bound) for bound in (steps.since, steps.until))
    there = ", ".join(f"{row['first_step']}:{row['last_step']}" for row in stored)
    return f"job {job!r}: no step in {first}:{last} is on record; steps there: {there}"


def _that_fit(source: AnalyzerInput, *, chosen: bool) -> tuple[AnalyzerInput, list[Verdict]]:
    """The newest of these steps that can be held at once, and a note where that is not all.

    `chosen`: the caller gave the first step. Then more than fit are refused.
    """
    last = source.until
    ranks = analysis.rank_nodes(source.store, replace(source.steps, first=last - 1)).num_rows
    most = max(1, MOST_CELLS // max(1, ranks))
    since, count = last - most + 1, last - source.since + 1
    if count <= most:
        return source, []
    if chosen:
        raise UsageError(
            f"--since {source.since}: {count:,} steps of {ranks:,} ranks do not fit into memory. "
            f"Allowed: {most:,} steps. Give a later --since or an earlier --until."
        )
    reason = (
        f"only steps {since} to {last} were read: {count:,} steps of {ranks:,} ranks do not fit into memory. "
        "For earlier ones give --since and --until"
    )
    return replace(source, since=since), [Inconclusive(analyzer="analyze", reason=reason)]


def analyze_recent(
    store: Queryable, recent: Recent, analyzers: Mapping[str, Analyzer] = STEP_ANALYZERS
) -> list[Verdict]:
    """As `analyze`, on the newest steps of a running job whose timings are held already.

    What slowed the whole job and is not over stays a finding, however long ago it began.
    """
    timings = recent.timings
    source = AnalyzerInput(
        store=store,
        job=timings.job,
        attempt=timings.attempt,
        since=int(timings.steps[0]),
        until=int(timings.steps[-1]),
        first_step=timings.first_step,
        now_ns=timings.now_ns,
        recent=recent,
    )
    said = verdicts_of(source, analyzers)
    taken = guarded(OPEN_SLOWDOWNS, lambda: recent.slowdowns.take(said, timings, analyzers))
    lost = [v for v in taken if isinstance(v, Failed) and v.analyzer == OPEN_SLOWDOWNS]
    return _without_slowdowns(said, lost[0], analyzers) if lost else taken


def _without_slowdowns(said: Sequence[Verdict], lost: Failed, asked: Iterable[str]) -> list[Verdict]:
    """The verdicts where it is not known which slowdowns are open: of those nobody is healthy."""
    failed = [Failed(analyzer=name, error=lost.error) for name in KINDS.values() if name in asked]
    names = {verdict.analyzer for verdict in failed}
    return [*(v for v in said if not (isinstance(v, Healthy) and v.analyzer in names)), *failed]


def verdicts_of(source: AnalyzerInput, analyzers: Mapping[str, Analyzer]) -> list[Verdict]:
    """What each analyzer says, with calibrated confidences. Each gives at least one verdict."""
    verdicts: list[Verdict] = []
    for name, run in analyzers.items():
        answer = guarded(name, lambda run=run: run(source))  # type: ignore[misc]  # bound now, called now
        verdicts += answer or [Inconclusive(analyzer=name, reason="it gave no answer")]
    return calibration.apply(verdicts, covered=not findings(verdicts) or _covered(source))


def _covered(source: AnalyzerInput) -> bool:
    """Whether the calibration table holds for this job. Not where its machines are unknown."""
    try:
        return source.hardware.calibrated
    except PulsetrainError:
        return False


def _stored(store: Queryable, job: str, attempt: int | None) -> list[dict[str, int]]:
    """Of each attempt that counts: which steps of it are on record, newest attempt first."""
    table = analysis.extent(store, job) if attempt is None else analysis.attempt_extent(store, job, attempt)
    return table.to_pylist()


def _without_steps(
    store: Queryable,
    job: str,
    attempt: int | None,
    now_ns: int,
    analyzers: Mapping[str, Analyzer],
    *,
    scan: bool,
) -> list[Verdict]:
    """What rounds of collectives say of an attempt that has no step, and what its machines say.

    Nothing where neither is stored.
    """
    found = WithoutSteps.read(store, job, attempt, now_ns, operations=straggler.NAME in analyzers)
    of_machines = {name: run for name, run in analyzers.items() if name in MACHINE_ANALYZERS}
    during = found.during(scan=scan) if of_machines else None
    if during is None:
        return found.rounds()
    source = AnalyzerInput(
        store=store,
        job=job,
        attempt=found.attempt,
        since=-1,
        until=-1,
        first_step=-1,
        now_ns=now_ns,
        scan=scan,
        without_steps=during,
    )
    return [*found.rounds(), *verdicts_of(source, of_machines)]


def _select(
    store: Queryable,
    stored: Sequence[Mapping[str, int]],
    job: str,
    steps: StepRange,
    attempt: int | None,
    now_ns: int,
    *,
    scan: bool,
) -> AnalyzerInput | Inconclusive:
    """Pick the attempt and clip the range to the steps that are stored of it."""
    if not stored and attempt is None:
        raise UsageError(f"job {job!r}: no step of it is on record")
    row = next((r for r in stored if steps.overlaps(r["first_step"], r["last_step"])), None)
    if row is None:
        return Inconclusive(analyzer="analyze", reason="no step on record in that range yet", blind=True)
    last = row["last_step"] if steps.until is None else min(steps.until, row["last_step"])
    since = steps.since
    if since is None:
        since = 0 if scan else last - DEFAULT_WINDOW_STEPS + 1
    return AnalyzerInput(
        store=store,
        job=job,
        attempt=row["attempt"],
        since=max(row["first_step"], since),
        until=last,
        first_step=row["first_step"],
        now_ns=now_ns,
        scan=scan,
    )
