"""Every analyzer over the stored records of one attempt of a job, each answering for itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from pulsetrain.analytics import calibration, numerics
from pulsetrain.analytics.machines import analyzers as machines
from pulsetrain.analytics.slowness import fail_slow, imbalance, links, mfu, stalls, straggler, timings
from pulsetrain.analytics.verdict import Inconclusive, Verdict, guarded
from pulsetrain.core.errors import UsageError
from pulsetrain.stream.queries import analysis

WINDOW_STEPS = 256  # looked at where the caller does not say from which step


@dataclass(frozen=True)
class Source:
    """What an analyzer may ask: the store, and the steps `since`..`until` of one attempt of one job."""

    store: analysis.Queryable
    job: str
    attempt: int
    since: int
    until: int
    first_step: int
    now_ns: int
    scan: bool = False  # look for what was wrong at any time in these steps, not only for what is wrong now

    @cached_property
    def timings(self) -> timings.Timings:
        """Read at the first use, once for all analyzers."""
        return timings.load(
            self.store,
            self.job,
            self.attempt,
            self.since,
            self.until,
            first_step=self.first_step,
            now_ns=self.now_ns,
        )

    @cached_property
    def stragglers(self) -> list[Verdict]:
        """What `straggler` says, asked once."""
        return straggler.find(self.timings, scan=self.scan)

    @property
    def machines(self) -> machines.Range:
        """The same steps, for the analyzers of machines."""
        return machines.Range(
            store=self.store,
            job=self.job,
            attempt=self.attempt,
            since=self.since,
            until=self.until,
            now_ns=self.now_ns,
            scan=self.scan,
        )


Analyzer = Callable[[Source], list[Verdict]]

STEP_ANALYZERS: Mapping[str, Analyzer] = MappingProxyType(
    {
        "straggler": lambda source: source.stragglers,
        "slow_link": lambda source: links.look(source.store, source.timings, source.stragglers),
        "fail_slow": lambda source: fail_slow.find(source.timings, recovered=source.scan),
        "stage_imbalance": lambda source: imbalance.stages(source.timings),
        "sequence_imbalance": lambda source: imbalance.sequences(source.timings),
        "data_stall": lambda source: stalls.find(source.timings, stalls.DATA),
        "gc_pause": lambda source: stalls.find(source.timings, stalls.GC),
        "numerics": lambda source: numerics.find(source.timings),
        "mfu": lambda source: mfu.find(source.timings),
    }
)
"""Of steps, ranks and links: a second counts."""

MACHINE_ANALYZERS: Mapping[str, Analyzer] = MappingProxyType(
    {
        "network": lambda source: machines.ports(source.machines),
        "gpu_health": lambda source: machines.gpus(source.machines),
        "kernel_log": lambda source: machines.kernel(source.machines),
        "logs": lambda source: machines.rank_logs(source.machines),
    }
)
"""Of counters and logs, which are sampled every few seconds."""

ANALYZERS: Mapping[str, Analyzer] = MappingProxyType({**STEP_ANALYZERS, **MACHINE_ANALYZERS})


def for_device(device: mfu.Peak | None) -> Mapping[str, Analyzer]:
    """The analyzers for a job whose ranks all run on `device`: with it the MFU is known."""
    return {**ANALYZERS, "mfu": lambda source: mfu.find(source.timings, device)}


def analyze(
    store: analysis.Queryable,
    job: str,
    *,
    since: int | None = None,
    until: int | None = None,
    attempt: int | None = None,
    now_ns: int,
    scan: bool = False,
    analyzers: Mapping[str, Analyzer] = ANALYZERS,
) -> list[Verdict]:
    """What every analyzer says of steps `since`..`until` of an attempt (default: the newest that has these
    steps). Never silent: each gives at least one verdict, `Failed` where it breaks. Confidences come
    calibrated.

    Without `since` and `scan` the last 256 steps are read and only what is wrong at their end is found; with
    `scan`, what was wrong at any time in the range, which is then the whole attempt by default.

    Raises `UsageError` for a job or attempt that the store has never seen a step of.
    """
    source = _source(store, job, since, until, attempt, now_ns, scan=scan)
    if isinstance(source, Inconclusive):
        return [source]
    verdicts: list[Verdict] = []
    for name, run in analyzers.items():
        answer = guarded(name, lambda run=run: run(source))  # type: ignore[misc]  # bound now, called now
        verdicts += answer or [Inconclusive(analyzer=name, reason="it gave no answer")]
    return calibration.apply(verdicts)


def _source(
    store: analysis.Queryable,
    job: str,
    since: int | None,
    until: int | None,
    attempt: int | None,
    now_ns: int,
    *,
    scan: bool,
) -> Source | Inconclusive:
    known = (
        analysis.extent(store, job) if attempt is None else analysis.attempt_extent(store, job, attempt)
    ).to_pylist()
    if not known and attempt is None:
        raise UsageError(f"job {job!r}: no step of it is on record")
    fitting = [
        row
        for row in known
        if (since is None or row["last_step"] >= since) and (until is None or row["first_step"] <= until)
    ]
    if not fitting:
        return Inconclusive(analyzer="analyze", reason="no step on record in that range yet", blind=True)
    row = fitting[0]
    last = row["last_step"] if until is None else min(until, row["last_step"])
    if since is None:
        since = 0 if scan else last - WINDOW_STEPS + 1
    return Source(
        store=store,
        job=job,
        attempt=row["attempt"],
        since=max(row["first_step"], since),
        until=last,
        first_step=row["first_step"],
        now_ns=now_ns,
        scan=scan,
    )
