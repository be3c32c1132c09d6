"""The timings of a running job's newest steps, kept between looks: each look reads only what may be new.

A step is settled 3 s after every rank's row of it has come, or 20 s after the first row. Nothing is settled
in the first 20 s of an attempt, when not all ranks are known. Settled steps are not read again. What comes
later still (a node that was cut off sends its spool) is seen at the next reload, a minute later at most. So
are the steps of a rank that was behind by more than the window, because it had none in it.

Steps may be so short that the window moves past some between two looks. Of those, only losses that were not
finite are read. They are told for a minute. So is the newest loss of a rank that has no step in the window,
as one that steps more slowly by itself: a reload reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsetrain.analytics.slowness.load_timings import (
    TimingsBuilder,
    phases_of,
    read_groups,
    read_order,
    read_parts,
    timings_builder,
)
from pulsetrain.analytics.slowness.timings import Timings
from pulsetrain.records.arrow import number_array
from pulsetrain.stream.queries import analysis
from pulsetrain.stream.queries.queryable import AttemptSteps, Queryable

SETTLE_NS = 3_000_000_000  # spans of a step may be stored a little after the step
LATE_NS = 20_000_000_000  # a rank that is so far behind is waited for no longer
RELOAD_NS = 60_000_000_000
PAUSE_NS = 20_000_000_000  # after a longer pause too much is new
SKIPPED_NS = 60_000_000_000  # for how long what was not finite between two looks is told
MOST_EARLIER = 10_000_000  # steps x ranks before the window, up to which ranks that are behind are looked for
NO_END = 1 << 60


Signature = tuple[int, ...]
"""Tells whether rows have changed: their number, and the sum of each column of whole numbers."""


@dataclass
class _Loaded:
    """What is held of the attempt."""

    first_step: int
    builder: TimingsBuilder
    nodes: pa.Table
    topology: pa.Table
    compute: Sequence[str]
    communication: Sequence[str]
    last: int
    loaded_ns: int
    looked_ns: int
    unsettled: int
    seen_ns: dict[int, int] = field(default_factory=dict)
    """When each unsettled step was first seen."""
    complete_ns: dict[int, int] = field(default_factory=dict)
    """When each was first seen with the rows of every rank."""
    tail: Signature = ()
    """Of the rows that were read last."""
    changed_ns: int = 0

    def keep(self, before: _Loaded) -> None:
        """Take over which steps were settled before everything was read again."""
        self.unsettled = max(self.unsettled, before.unsettled)
        self.seen_ns, self.complete_ns = before.seen_ns | {}, before.complete_ns | {}


class RecentTimings:
    """The newest `window` steps of one attempt of a job."""

    def __init__(self, job: str, attempt: int, *, window: int) -> None:
        self.job, self.attempt, self._window = job, attempt, window
        self._loaded: _Loaded | None = None
        self._began_ns: int | None = None
        self.changed = False  # whether the last look found anything new
        self.reloads = 0  # looks that read everything
        self._read_from: int | None = None
        """The first step that was not settled in the last look that ended well."""
        self._skipped: dict[tuple[int, int], int] = {}
        """When a loss that is not finite was found in a step that no look had, by step and rank."""

    @property
    def last_step(self) -> int:
        """The newest step that a look has found, -1 for none."""
        return self._loaded.last if self._loaded else -1

    @property
    def world_size(self) -> int:
        """How many ranks the last look has found, 0 where there was none."""
        return len(self._loaded.builder.ranks) if self._loaded else 0

    @property
    def newest(self) -> AttemptSteps:
        """The newest two steps that a look has found."""
        return self._steps(self.last_step - 1, self.last_step)

    @property
    def unsettled(self) -> int:
        """The first step that the next look reads again. Nothing new is expected of earlier ones."""
        return self._loaded.unsettled if self._loaded else 0

    def holds(self, now_ns: int) -> bool:
        """Whether a look would read nothing but what changed. `now_ns` is UTC."""
        held = self._loaded
        return (
            held is not None
            and 0 <= now_ns - held.looked_ns < PAUSE_NS
            and now_ns - held.loaded_ns < RELOAD_NS
        )

    def free(self) -> None:
        """Hold no rows. The next look reads everything."""
        self._loaded = None

    def look(self, store: Queryable, now_ns: int) -> Timings | None:
        """The timings as they are stored now. None where no step of the attempt is stored.

        `now_ns` is UTC. After an exception the next look reads everything.
        """
        held, self._loaded, self.changed = self._loaded, None, True
        paused = held is not None and not 0 <= now_ns - held.looked_ns < PAUSE_NS
        due = held is not None and now_ns - held.loaded_ns >= RELOAD_NS
        if held is not None and not paused and not due:
            self._loaded = self._advanced(store, held, now_ns)
        if self._loaded is None:
            self.reloads += 1
            self._loaded = self._read_all(store, now_ns)
            if due and not paused and held and self._loaded:
                self._loaded.keep(held)
        if self._loaded is None:
            return None
        if self._read_from is not None:
            self._note_skipped(store, self._read_from, self._loaded, now_ns)
        self._read_from = self._loaded.unsettled
        return self._timings(self._loaded, now_ns)

    def _note_skipped(self, store: Queryable, first: int, held: _Loaded, now_ns: int) -> None:
        """Read of the steps from `first` on that the window has left out what was not finite."""
        steps = self._steps(max(first, held.first_step), held.last - self._window)
        self._skipped = {at: ns for at, ns in self._skipped.items() if at[0] >= first or _new(ns, now_ns)}
        if steps.first <= steps.last:
            rows = analysis.losses_not_finite(store, steps).to_pylist()
            self._skipped = {(row["step"], row["rank"]): now_ns for row in rows} | self._skipped

    def _steps(self, first: int, last: int) -> AttemptSteps:
        return AttemptSteps(job=self.job, attempt=self.attempt, first=first, last=last)

    def _read_all(self, store: Queryable, now_ns: int) -> _Loaded | None:
        stored = analysis.attempt_extent(store, self.job, self.attempt).to_pylist()
        if not stored:
            return None
        first_step, last = int(stored[0]["first_step"]), int(stored[0]["last_step"])
        steps = self._steps(max(first_step, last - self._window + 1), last)
        compute, communication = phases_of(store, steps)
        nodes = analysis.rank_nodes(store, steps)
        builder = timings_builder(store, steps, nodes, compute, communication)
        topology = analysis.topology(store, self.job, self.attempt)
        read_order(builder, store, steps, topology)
        read_groups(builder, store, steps, first_step)
        loaded = _Loaded(
            first_step=first_step,
            builder=builder,
            nodes=nodes,
            topology=topology,
            compute=compute,
            communication=communication,
            last=last,
            loaded_ns=now_ns,
            looked_ns=now_ns,
            unsettled=steps.first,
        )
        self._settle(loaded, now_ns)
        self._note_behind(store, loaded, steps.first - 1, now_ns)
        return loaded

    def _note_behind(self, store: Queryable, loaded: _Loaded, last: int, now_ns: int) -> None:
        """Note which ranks have no step after `last`, and a loss before that was not finite at the end."""
        known = np.asarray(loaded.topology.column("rank").to_numpy(), np.int64)
        behind = np.setdiff1d(known, loaded.builder.ranks).tolist()
        earlier = self._steps(loaded.first_step, last)
        if behind and 0 < (last - loaded.first_step + 1) * len(known) <= MOST_EARLIER:
            rows = analysis.newest_losses_not_finite(store, earlier, behind).to_pylist()
            self._skipped |= {(row["step"], row["rank"]): now_ns for row in rows}

    def _advanced(self, store: Queryable, held: _Loaded, now_ns: int) -> _Loaded | None:
        """`held` with what is stored from the first unsettled step on. None where that is not enough: another
        rank, a phase that was not seen before, or a rank without a step in the window."""
        rows = analysis.steps(store, self._steps(held.unsettled, NO_END))
        if not rows.num_rows:
            return None
        if signature(rows) == held.tail and now_ns - held.changed_ns >= SETTLE_NS:
            self.changed, held.looked_ns = False, now_ns
            return held
        last = int(np.max(rows.column("step").to_numpy()))
        first = max(held.first_step, last - self._window + 1)
        tail = self._steps(max(first, held.unsettled), last)
        ranks = np.unique(rows.column("rank").to_numpy())
        if last < held.last or not np.isin(ranks, held.builder.ranks).all():
            return None
        builder = held.builder.moved(first, last, until=tail.first)
        builder.add(rows_between(rows, tail.first, last + 1))
        named = read_parts(builder, store, tail, held.compute, held.communication)
        if not named or not builder.every_rank_has_a_step:
            return None
        if signature(rows) != held.tail:
            held.tail, held.changed_ns = signature(rows), now_ns
        held.builder, held.last, held.looked_ns = builder, last, now_ns
        self._read_topology(store, held)
        read_order(builder, store, self._steps(first, last), held.topology)
        if builder.groups is None:
            read_groups(builder, store, self._steps(first, last), held.first_step)
        self._settle(held, now_ns)
        return held

    def _read_topology(self, store: Queryable, held: _Loaded) -> None:
        """Ranks tell where they stand once, a little before or after their first steps."""
        early = held.unsettled == held.first_step
        if early and held.topology.num_rows < len(held.builder.ranks):
            held.topology = analysis.topology(store, self.job, self.attempt)

    def _settle(self, held: _Loaded, now_ns: int) -> None:
        """Move `unsettled` behind the steps that have been complete for long, or are waited for no longer."""
        # The clock of the hub may be set back. Then it begins again.
        self._began_ns = now_ns if self._began_ns is None else min(self._began_ns, now_ns)
        complete = held.builder.complete
        first = held.last - len(complete) + 1
        for step in range(max(first, held.unsettled), held.last + 1):
            held.seen_ns.setdefault(step, now_ns)
            if complete[step - first]:
                held.complete_ns.setdefault(step, now_ns)
        while held.unsettled < held.last and self._settled(held, held.unsettled, now_ns):
            held.seen_ns.pop(held.unsettled, None)
            held.complete_ns.pop(held.unsettled, None)
            held.unsettled += 1

    def _settled(self, held: _Loaded, step: int, now_ns: int) -> bool:
        if self._began_ns is None or now_ns - self._began_ns < LATE_NS:
            return False
        complete = now_ns - held.complete_ns.get(step, now_ns) >= SETTLE_NS
        return complete or now_ns - held.seen_ns.get(step, 0) >= LATE_NS

    def _timings(self, held: _Loaded, now_ns: int) -> Timings:
        timings = held.builder.timings(
            held.nodes,
            held.topology,
            job=self.job,
            attempt=self.attempt,
            first_step=held.first_step,
            now_ns=now_ns,
        )
        skipped = sorted(at for at, ns in self._skipped.items() if _new(ns, now_ns))
        return replace(timings, skipped=tuple(skipped)) if skipped else timings


def _new(found_ns: int, now_ns: int) -> bool:
    return 0 <= now_ns - found_ns < SKIPPED_NS


def rows_between(rows: pa.Table, first: int, end: int) -> pa.Table:
    """The rows of steps `first`..`end` - 1."""
    step = np.asarray(rows.column("step").to_numpy(), np.int64)
    return rows.take(number_array(np.flatnonzero((step >= first) & (step < end))))


def signature(rows: pa.Table) -> Signature:
    """The same for the same rows in any order."""
    whole = [column for column in rows.columns if pa.types.is_integer(column.type)]
    return rows.num_rows, *(int(pc.sum(column).as_py() or 0) for column in whole)
