"""SELECTs behind the heatmap: the time of every rank beside that of its cohort, aggregated level by level.

A cell is net time: what a phase took without the phases inside it and without the time that the rank stood
still for communication in it. So a tensor-parallel group does not tie where one rank computes longer and its
peers wait for it inside the same phase. Where nobody measured how long a rank stood still (a device's
clock, an older recording), the communication inside the phase is subtracted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import pyarrow as pa

from pulsetrain.stream.queries.queryable import Queryable

LEVELS = ("job", "stage", "dp", "node", "rank")
MOST_ROWS = 64
MOST_SUSPECTS = 24  # of a row
_BITS, _FEW = 64, 256

_ITEM: Mapping[str, str] = MappingProxyType(
    {"job": "0", "stage": "pp", "dp": "dp", "node": "first_rank", "rank": "rank"}
)
"""What a row of a level is, as a number: a node is known by its first rank."""


@dataclass(frozen=True, kw_only=True)
class HeatView:
    """A heatmap of steps `first`..`last`: rows of one level, of the ranks within three ranges.

    `by` is one of `LEVELS`. `sample` > 0: no more than so many steps, evenly spaced. `stages`, `dps` and
    `ranks` are (first, last), None for all. With `phase` columns are windows of steps, else phases.
    """

    by: str
    first: int
    last: int
    sample: int = 0
    stages: tuple[int, int] | None = None
    dps: tuple[int, int] | None = None
    ranks: tuple[int, int] | None = None
    phase: str = ""
    columns: int = 40
    rows: int = MOST_ROWS

    @property
    def steps(self) -> int:
        """How many steps the range has, sampled or not."""
        return self.last - self.first + 1

    def condition(self) -> str:
        """SQL that is true for the steps to read, in a form for which the sorting key is used."""
        if not 0 < self.sample < self.steps:
            return "step BETWEEN {first:Int64} AND {last:Int64}"
        offset = f"intDiv(toInt64(number) * {self.steps:d}, {self.sample:d})"
        return f"step IN (SELECT {{first:Int64}} + {offset} FROM numbers({self.sample:d}))"

    def seen(self, low: int, high: int) -> str:
        """SQL that counts the steps of a group, each attempt at one for itself. Attempts are `low`..`high`.

        A bit for each is the quickest, where 64 are enough.
        """
        sampled, attempts = 0 < self.sample < self.steps, max(1, high - low + 1)
        read = self.sample if sampled else self.steps
        place = "toUInt64(step - {first:Int64})"
        if read * attempts > _BITS:
            if attempts > _FEW:
                return f"uniqExact(({place}, attempt))"
            return f"groupBitmap(toUInt32({place} * {_FEW:d} + attempt - {low:d}))"
        if sampled:
            place = f"intDiv({place} * {read:d} + {self.steps - 1:d}, {self.steps:d})"
        return f"bitCount(groupBitOr(bitShiftLeft(toUInt64(1), {place} * {attempts:d} + attempt - {low:d})))"

    def within(self) -> str:
        """SQL that is true for the ranks that are shown."""
        named = (("pp", self.stages), ("dp", self.dps), ("rank", self.ranks))
        parts = [
            f"{name} BETWEEN {low:d} AND {high:d}" for name, span in named if span for low, high in [span]
        ]
        return " AND ".join(parts) or "1"

    def column(self) -> str:
        """SQL of a row's column before it is known which phase it is."""
        width = max(1, -(-self.steps // self.columns))
        return f"toString(step - (step - {{first:Int64}}) % {width:d})" if self.phase else "''"


_COMPARED = """
    places AS (
        SELECT rank, argMax(pp, (attempt, ts)) AS pp, argMax(dp, (attempt, ts)) AS dp,
               argMax(node, (attempt, ts)) AS node
        FROM topology WHERE job = {{job:String}} GROUP BY rank),
    located AS (
        SELECT rank, pp, dp, places.node AS node, first_rank
        FROM places
        JOIN (SELECT node, min(rank) AS first_rank FROM places GROUP BY node) AS firsts USING (node)),
    gross AS (
        SELECT rank, {column} AS col, phase, parent, any(category) AS category,
               argMax(node, duration_ns) AS ran_on,
               sum(duration_ns) AS took, category = 'communication' AS communicates,
               NOT communicates AND sum(blocked_known) = sum(spans) AS known,
               took - if(known, sum(blocked_ns), 0) AS own, {seen} AS n
        FROM span_rollup
        WHERE job = {{job:String}} AND {steps} AND phase != parent {newest}
          AND ({{phase:String}} = '' OR phase = {{phase:String}} OR parent = {{phase:String}})
        GROUP BY rank, col, phase, parent),
    parts AS (
        SELECT rank, col, gross.category AS of, n, ran_on,
               arrayJoin([(phase, own, 0, known), (parent, if(communicates, 0, -own),
                                                   if(communicates, took, 0), 1)]) AS part
        FROM gross),
    net AS (
        SELECT rank, col, part.1 AS phase, anyIf(of, part.2 > 0) AS category,
               sum(part.2) - if(min(part.4), 0, sum(part.3)) AS net_ns, max(n) AS seen,
               argMax(ran_on, part.2) AS ran_on
        FROM parts
        WHERE part.1 != '' AND ({{phase:String}} = '' OR part.1 = {{phase:String}})
        GROUP BY rank, col, phase HAVING net_ns > 0),
    each AS (
        SELECT rank, if(net.col = '', phase, net.col) AS col, phase, category, ran_on,
               net_ns / max(seen) OVER (PARTITION BY rank, net.col) AS value
        FROM net),
    cohorts AS (
        SELECT col, phase, any(category) AS category, count() AS cohort,
               if(category = 'communication', quantileExactHigh(value), quantileExactLow(value)) AS usual,
               usual - quantileExactLow(0.1)(value) AS spread,
               groupArray((rank, value, each.pp, each.dp, each.node, each.first_rank)) AS members
        FROM (
            SELECT each.*, ifNull(located.pp, 0) AS pp, located.dp AS dp,
                   if(ran_on = '', located.node, ran_on) AS node, located.first_rank AS first_rank
            FROM each LEFT JOIN located USING (rank)) AS each
        GROUP BY pp, col, phase),
    compared AS (
        SELECT col, phase, category, cohort, usual, spread, member.1 AS rank, member.2 AS value,
               member.3 AS pp, member.4 AS dp, member.5 AS node, member.6 AS first_rank,
               value - usual AS lost
        FROM cohorts ARRAY JOIN members AS member
        WHERE {within})
"""
_BINS = """
    WITH {compared},
    measured AS (
        SELECT *, {item} AS item, min({item}) OVER () AS low, max({item}) OVER () - low + 1 AS span,
               sum(usual) OVER (PARTITION BY rank) AS step_ns
        FROM compared),
    judged AS (
        SELECT *, category != 'communication' AND lost > 0.01 * step_ns AND lost > 4 * spread AS stands_out,
               max(if(stands_out, lost, 0)) OVER (PARTITION BY rank) AS most
        FROM measured),
    cells AS (
        SELECT intDiv((item - low) * least({{rows:Int64}}, span), span) AS bin, col, any(phase) AS phase,
               any(category) AS category, min(item) AS first_item, max(item) AS last_item,
               argMin(node, rank) AS first_node, argMax(node, rank) AS last_node,
               uniqExact(item) AS items, min(rank) AS first_rank, max(judged.rank) AS last_rank,
               uniqExact(rank) AS ranks,
               argMax((value, usual, rank, cohort, node), (lost, -rank)) AS worst,
               groupArrayIf((most, -rank, value, usual, cohort, node), most > 0) AS outliers,
               arraySlice(arrayReverseSort(outliers), 1, {most}) AS suspects
        FROM judged GROUP BY bin, col)
    SELECT bin, col, phase, category, first_item, last_item, first_node, last_node, items, ranks,
           first_rank, last_rank, toInt64(worst.1) AS value_ns, toInt64(worst.2) AS usual_ns,
           worst.3 AS rank, worst.4 AS cohort, worst.5 AS node,
           arrayMap(s -> tuple(toInt64(s.1), toInt64(-s.2), toInt64(s.3), toInt64(s.4), toInt64(s.5), s.6),
                    suspects) AS suspects
    FROM cells ORDER BY bin, col
"""


_NEWEST = """AND (step, attempt) IN (
            SELECT step, max(attempt) FROM span_rollup
            WHERE job = {{job:String}} AND {steps} GROUP BY step)"""


def _attempts(store: Queryable, job: str, view: HeatView) -> tuple[int, int]:
    """The first and the last attempt at the steps of a view. (0, 0) for none."""
    found = store.query(
        "SELECT min(attempt) AS low, max(attempt) AS high FROM span_rollup "
        f"WHERE job = {{job:String}} AND {view.condition()}",
        {"job": job, "first": view.first, "last": view.last},
    ).to_pylist()[0]
    return int(found["low"]), int(found["high"])


def heat(store: Queryable, job: str, view: HeatView) -> pa.Table:
    """The rows of a level, never more than `view.rows`: neighbours share one. A cell is the worst of its row.

    The worst is the rank that loses most time against the median of its cohort, the ranks of its stage. With
    an even number of ranks the median is the quicker of the two in the middle, so that a slow half does not
    hide itself. For communication it is the one that waits longer.

    Of a step that was done in several attempts the newest counts. `node` is where the rank ran then. Where it
    ran on two in these steps, it is the one on which its longest phases were.

    Columns: bin, col, phase, category, first_item and last_item (of the level), first_node, last_node, items,
    ranks, first_rank, last_rank. Of the worst rank: rank, node, value_ns and usual_ns (net, a step), cohort
    (ranks). And `suspects`, the ranks of the row that stand out most: (most_ns, rank, value_ns,
    usual_ns, cohort, node). A rank stands out where it works longer than its cohort, by 1 % of the step and
    by four times the spread of the quicker half.
    """
    low, high = _attempts(store, job, view)
    compared = _COMPARED.format(
        column=view.column(), steps=view.condition(), within=view.within(), seen=view.seen(low, high),
        newest=_NEWEST.format(steps=view.condition()) if low < high else "",
    )  # fmt: skip
    sql = _BINS.format(compared=compared, item=_ITEM[view.by], most=MOST_SUSPECTS)
    limits = {"first": view.first, "last": view.last, "rows": view.rows}
    return store.query(sql, {"job": job, "phase": view.phase, **limits})
