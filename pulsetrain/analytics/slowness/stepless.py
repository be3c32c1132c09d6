"""Who is slow in a job whose steps nobody tells: rounds of its collectives stand for them (`rounds`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa

from pulsetrain.analytics import calibration
from pulsetrain.analytics.selection import ranges
from pulsetrain.analytics.slowness import arrivals, rounds, straggler
from pulsetrain.analytics.slowness.load_timings import TimingsBuilder
from pulsetrain.analytics.slowness.operations import operations_of
from pulsetrain.analytics.slowness.pipeline_order import stages
from pulsetrain.analytics.slowness.timings import WARM_STEPS, Timings
from pulsetrain.analytics.verdict import Healthy, Inconclusive, Verdict, guarded
from pulsetrain.records.arrow import number_array
from pulsetrain.stream.queries import analysis
from pulsetrain.stream.queries.queryable import Queryable

WINDOW_S, LONGEST_S = 30, 120  # of operations. The longer one for jobs whose rounds are long
LATE_S = (
    5  # by which rows of a node may come later than those of another. Clocks of nodes may be farther apart
)
ENOUGH = 64  # rounds, from which no longer window is read
ORDER_ROUNDS = 8  # from which the order of a pipeline is read
LEAST_SHARE = 0.1  # of a round, from which own time tells who is slow
FEW = "too few rounds are over yet"
TOO_MANY = f"more than {arrivals.OPERATIONS:,} operations began in one second: too many to read"
STAND_FOR = "the job names no steps, and rounds of its collectives stand for them"
NO_TIME = "how long ranks stand still for their collectives is not known, as where devices wait for them"
ROOTED = "nearly all own time ends with a broadcast or alike, before which one rank may do what no other does"
NO_CLOCK = "ranks send to each other, and nothing that ends for all of them tells how far clocks are apart"
NO_ORDER = "ranks send to each other, and it is not known which of them do the same work"


@dataclass(frozen=True, kw_only=True)
class Newest:
    """How many operations began in the newest seconds. Equal where nothing new was stored.

    `seconds` is the newest second (UTC, on the node's clock) of each node by name. `ages` are how many
    seconds earlier operations began, ascending, and `counts` how many, on all nodes together.
    """

    seconds: tuple[tuple[str, int], ...]
    ages: tuple[int, ...]
    counts: tuple[int, ...]

    def begins_ns(self, length_s: int) -> dict[str, int]:
        """From when on the newest `length_s` of each node are read, fewer of a job with too many operations.

        Empty: not even the newest second can be read.

        >>> newest = Newest(seconds=(("a", 9), ("b", 54)), ages=(0, 1, 7), counts=(10, 10, 10))
        >>> newest.begins_ns(5)
        {'a': 8000000000, 'b': 53000000000}
        """
        read = np.cumsum(self.counts) <= arrivals.OPERATIONS
        read &= np.array(self.ages) < length_s
        if not read.any():
            return {}
        age = self.ages[int(read.sum()) - 1]
        return {node: (second - age) * 10**9 for node, second in self.seconds}


class Hardware(Protocol):
    """What the ranks run on."""

    @property
    def uses_gpus(self) -> bool:
        """Whether they work on GPUs."""
        ...

    def unlike(self, nodes: Iterable[str]) -> list[str]:
        """The GPU model of each rank by its node. Empty where they are alike."""
        ...


@dataclass(frozen=True, kw_only=True)
class NoGpus:
    """Machines without GPUs."""

    uses_gpus: bool = False

    def unlike(self, nodes: Iterable[str]) -> list[str]:
        """None differ."""
        return []


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """The newest rounds of a job as timings, and what the second witness needs."""

    timings: Timings
    arrivals: arrivals.Arrivals | None
    missing: str = ""
    """Which ranks of the topology are in no round, and why. "" for none."""


def newest(store: Queryable, job: str, attempt: int, since_ns: int = 0) -> Newest | None:
    """What is stored of an attempt's newest operations, of those since then. None: nothing.

    A node whose newest second is far from that of the others has a clock of its own. It is read up to there.
    """
    table = analysis.operations_per_second(store, job, attempt, since_ns)
    if not table.num_rows:
        return None
    second, count = (table[name].to_numpy().astype(np.int64) for name in ("second", "operations"))
    nodes, of = np.unique(table["node"].to_numpy(zero_copy_only=False).astype(np.str_), return_inverse=True)
    newest = np.full(len(nodes), second.min())
    np.maximum.at(newest, of, second)
    newest = np.where(newest.max() - newest > LATE_S, newest, newest.max())
    age = newest[of] - second
    kept = age < LONGEST_S
    ages, place = np.unique(age[kept], return_inverse=True)
    counts = np.bincount(place, count[kept]).astype(np.int64)
    seconds = zip(nodes.tolist(), newest.tolist(), strict=True)
    return Newest(seconds=tuple(seconds), ages=tuple(ages.tolist()), counts=tuple(counts.tolist()))


def analyze(
    of: Newest, store: Queryable, job: str, attempt: int, *, now_ns: int, hardware: Hardware | None = None
) -> list[Verdict]:
    """What `straggler.find` says of the newest rounds, with calibrated confidences.

    Findings are warnings at most, and their evidence has `rounds` = true. `Inconclusive`: there are no
    rounds, or ranks may have other work.
    """
    said = guarded(straggler.NAME, lambda: verdicts(_read(of, store, job, attempt, now_ns, hardware)))
    return calibration.apply(said, covered=False)  # nobody has counted how often rounds are right


def _read(
    of: Newest, store: Queryable, job: str, attempt: int, now_ns: int, hardware: Hardware | None
) -> Rounds | str:
    topology = analysis.topology(store, job, attempt)
    found: Rounds | str = TOO_MANY
    begins = [begin_ns for length in (WINDOW_S, LONGEST_S) if (begin_ns := of.begins_ns(length))]
    for begin_ns in begins[:1] if begins[1:] == begins[:1] else begins:
        table = analysis.operations(store, job, attempt, begin_ns)
        losses = analysis.processor_losses(store, job, attempt, begin_ns)
        found = rounds_from(
            table, losses, topology, job=job, attempt=attempt, now_ns=now_ns, hardware=hardware
        )
        if isinstance(found, Rounds) and len(found.timings.steps) >= ENOUGH:
            break
    return found


def verdicts(found: Rounds | str) -> list[Verdict]:
    """The verdicts on rounds, or that there are none and why.

    None of them is blind: that analyzers are, for want of steps, is said once for all of them.
    """
    if isinstance(found, str):
        return [Inconclusive(analyzer=straggler.NAME, reason=f"{STAND_FOR}: {found}")]
    said = straggler.find(found.timings, arrivals=lambda: found.arrivals)
    return [_told(verdict, found.missing) for verdict in said]


def _told(verdict: Verdict, missing: str) -> Verdict:
    """The verdict as rounds tell it. Nobody is healthy of whom nothing is known."""
    if isinstance(verdict, Healthy) and missing:
        reason = f"{STAND_FOR}: {missing}"
        return Inconclusive(analyzer=verdict.analyzer, reason=reason, numbers=verdict.numbers)
    if isinstance(verdict, Inconclusive):
        return replace(verdict, reason=f"{STAND_FOR}: {verdict.reason}", blind=False)
    return verdict


def rounds_from(
    table: pa.Table,
    losses: pa.Table,
    topology: pa.Table,
    *,
    job: str,
    attempt: int,
    now_ns: int,
    hardware: Hardware | None = None,
) -> Rounds | str:
    """The rounds in tables of `operations`, `processor_losses` and `topology`, or why there are none.

    `hardware` defaults to machines without GPUs.
    """
    if not table.num_rows:
        return "there are no operations"
    operations = operations_of(table)
    cuts = rounds.cut(operations)
    if isinstance(cuts, str):
        return cuts
    cuts = rounds.told(operations, losses, cuts)
    ranks = np.unique(operations.rank)
    parts = rounds.parts_of(operations, cuts, ranks)
    reason = _little_own(parts) if len(cuts.number) else FEW
    if reason:
        return reason
    parts |= rounds.losses_of(operations, losses, cuts, ranks)
    builder = TimingsBuilder(cuts.number, ranks)
    builder.pipeline = "recv" in operations.phases
    if builder.pipeline:
        builder.order = stages(rounds.heard_first(operations, cuts, ORDER_ROUNDS), ranks.tolist())
    builder.add(_as_table(cuts.number, ranks, parts))
    nodes = pa.table({"rank": ranks, "node": [operations.node_of[r] for r in ranks.tolist()]})
    first = int(cuts.number[0]) - WARM_STEPS
    timings = builder.timings(nodes, topology, job=job, attempt=attempt, first_step=first, now_ns=now_ns)
    timings = _on(timings, hardware or NoGpus())
    if builder.pipeline and len(timings.cohorts) == len(ranks) and builder.order is None:
        return NO_ORDER if np.isfinite(operations.end_ns).all() else NO_CLOCK
    other = rounds.unlike(operations, cuts, ranks, timings.cohorts)
    if other:
        return other
    timings = replace(
        timings,
        round_ends_ns=operations.origin_ns + cuts.end_ns.astype(np.int64),
        unknown=timings.unknown or ("" if np.isfinite(parts["compute"]).any() else NO_TIME),
        pieces=None,
    )
    latest = rounds.last_collectives(operations, table, cuts)
    return Rounds(
        timings=timings,
        arrivals=arrivals.arrivals_from(latest),
        missing=_missing(topology, ranks, parts["duration_ns"]),
    )


def _on(timings: Timings, hardware: Hardware) -> Timings:
    models = hardware.unlike(timings.nodes.tolist())
    timings = replace(timings, on_device=hardware.uses_gpus)
    return replace(timings, models=np.array(models, np.str_)) if models else timings


def _missing(topology: pa.Table, ranks: rounds.Ints, durations: rounds.Floats) -> str:
    """Which ranks of the topology, and of `ranks`, are in no round. "" for none. `durations` are theirs."""
    there = np.isfinite(durations).any(axis=0)
    every = np.union1d(topology["rank"].to_numpy().astype(np.int64), ranks)
    missing = np.setdiff1d(every, ranks[there]).tolist()
    if not missing:
        return ""
    who = f"{'rank' if len(missing) == 1 else 'ranks'} {ranges(missing)}"
    return f"{who} told no newest operation, or on a clock that cannot be compared with the others"


def _little_own(parts: dict[str, rounds.Floats]) -> str:
    """Why the own time that is left tells nothing. "" for none."""
    shares = [parts[name] / parts["duration_ns"] for name in ("compute", "data")]
    if not np.isfinite(shares[0]).any():
        return ""
    own, data = (float(np.nanmedian(share)) for share in shares)
    if own >= LEAST_SHARE:
        return ""
    return ROOTED if data > own else "ranks stand still in their collectives for nearly all of the time"


def _as_table(numbers: rounds.Ints, ranks: rounds.Ints, parts: dict[str, rounds.Floats]) -> pa.Table:
    grid: Sequence[rounds.Ints] = np.broadcast_arrays(numbers[:, None], ranks[None, :])
    columns = {"step": grid[0], "rank": grid[1], **parts}
    return pa.table({name: number_array(values.reshape(-1)) for name, values in columns.items()})
