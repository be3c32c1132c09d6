"""ClickHouse tables, derived from `records.schema`: order keys, codecs, partitions, expiry, and sums.

Rows expire by the day they were stored, not by the day they were measured. An imported recording of last year
therefore lives as long as any other row.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from pulsetrain.records.schema import RECORDS, Field, Kind, Record

OFFSETS = "ingest_offsets"
OFFSETS_DAYS = 30
"""Table of the row ranges that are stored of each (source, record)."""
QUARANTINE = "quarantine"
"""Table of rows that were set aside: see `stream.store.quarantine`."""
ROLLUP = "span_rollup"
"""Closed spans summed by job, attempt, step, rank, phase and the phase they ran inside."""
ROLLUP_FEED = "span_rollup_feed"
ROLLUP_ADDED = (
    "`blocked_ns` SimpleAggregateFunction(sum, Int64)",
    "`blocked_known` SimpleAggregateFunction(sum, UInt64)",
)
"""Columns of `ROLLUP` that an older store lacks. `blocked_known`: spans whose `blocked_ns` is known."""

_FREQUENT: Mapping[str, object] = MappingProxyType(
    {"auto_statistics_types": ""}  # of each insert, for joins that nobody makes: a fifth of its cost
)
_BUSY: Mapping[str, object] = MappingProxyType(
    {
        **_FREQUENT,
        # Parts wait until about twenty can be merged: 30 million rows in 120 inserts are rewritten once,
        # with 5 (the default) more than twice.
        "merge_selector_base": 24,
        "merge_max_block_size": 32_768,
    }
)
_SUMMED_LATE: Mapping[str, object] = MappingProxyType(
    {
        # With projections of its own a small insert costs twice as much. Merges make them soon enough.
        "materialize_projections_on_insert": 0,
        "materialize_projections_on_merge": 1,
    }
)
BUSY = frozenset({"spans", ROLLUP})
"""The tables that take most rows."""
TUNED: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        **dict.fromkeys(("heartbeats", "metrics", "checkpoints"), _FREQUENT),
        "steps": {**_FREQUENT, **_SUMMED_LATE},
        **dict.fromkeys(sorted(BUSY), _BUSY),
    }
)
"""Settings of the tables that take most inserts. What an engine does not know is left out."""
_GRANULARITY: Mapping[str, int] = MappingProxyType({"spans": 16_384})
"""Rows between two marks of a table, where not 8,192. It cannot be changed later."""


PROJECTIONS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "steps": {
            "by_attempt": (
                "SELECT job, attempt, count(), min(step), max(step), uniq(rank), min(start), max(start), "
                "max(toUnixTimestamp64Nano(start) + duration_ns) GROUP BY job, attempt"
            ),
            "by_step": (
                "SELECT job, attempt, step, toStartOfMinute(start), count(), min(step), max(step), "
                "max(duration_ns), sum(tokens), countIf(tokens > 0), avg(loss), min(start), max(start) "
                "GROUP BY job, attempt, step, toStartOfMinute(start)"
            ),
        }
    }
)
"""Of each table what the engine keeps summed beside its rows, by name. It reads these for a query whose
conditions, groups and aggregates are among them, so that its cost does not grow with the number of ranks."""

REMEMBERED_S = 7 * 86_400
"""For so long a cluster remembers the token of an insert."""
_REMEMBERED: Mapping[str, object] = MappingProxyType(
    {"replicated_deduplication_window_seconds": REMEMBERED_S}  # newer servers: an hour
)


@dataclass(frozen=True, kw_only=True)
class Engine:
    """Table ``[store]``, environment ``PULSETRAIN_STORE_*``: how tables are created."""

    cluster: str = ""
    """Name of a ClickHouse cluster. Tables are then created ON CLUSTER, with Replicated engines. The servers
    must define `default_replica_path` and the macros that it names. Empty: one server, plain tables."""
    deduplication_window: int = 10_000
    """Last inserts of a table that are remembered by their token, 100 or more. It counts for new tables."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.{}-]*", self.cluster):
            raise ValueError(f"cluster = {self.cluster!r}: allowed are letters, digits and _ . - {{ }}")
        if self.deduplication_window < 100:
            raise ValueError(f"deduplication_window = {self.deduplication_window}: allowed 100 or more")

    @property
    def tuned(self) -> dict[str, Mapping[str, object]]:
        """The settings that tables should have, also those that an older version has made."""
        if not self.cluster:
            return dict(TUNED)
        names = {*RECORDS, *TUNED, QUARANTINE}
        return {name: {**TUNED.get(name, {}), **_REMEMBERED} for name in sorted(names)}

    def table(self, name: str) -> str:
        """`name` as CREATE and ALTER statements write it."""
        return f"`{name}` ON CLUSTER `{self.cluster}`" if self.cluster else f"`{name}`"

    def kind(self, kind: str, arguments: str = "") -> str:
        """The ENGINE clause of one of the MergeTree family."""
        return f"ENGINE = {'Replicated' if self.cluster else ''}{kind}({arguments})"

    @property
    def settings(self) -> str:
        """The SETTINGS clause of every table that takes inserts."""
        last = self.deduplication_window
        window = f"non_replicated_deduplication_window = {last}"
        if self.cluster:  # an hour is the default of newer servers, and they end what comes first
            seconds = f"replicated_deduplication_window_seconds = {REMEMBERED_S}"
            window = f"replicated_deduplication_window = {last}, {seconds}"
        return f"SETTINGS {window}, ttl_only_drop_parts = 1"


def literal(value: object) -> str:
    """A default value as SQL."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    if isinstance(value, (int, float)):
        return repr(value)
    text = str(value).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{text}'"


def column(record: Record, field: Field) -> str:
    """One column of a record's CREATE TABLE."""
    codec = _codec(record, field)
    return f"`{field.name}` {field.kind.clickhouse} DEFAULT {literal(field.default)} CODEC({codec})"


def _codec(record: Record, field: Field) -> str:
    if field.kind is Kind.TIME:
        return "Delta(8), ZSTD(1)"
    if field.name == "duration_ns":
        return "ZSTD(1)"  # finds durations that come again, which T64 would hide
    if field.kind is Kind.I64:
        return "Delta(8), ZSTD(1)" if field.name in record.order_by else "T64, ZSTD(1)"
    if field.kind is Kind.I32:
        return "Delta(4), ZSTD(1)" if field.name in record.order_by else "T64, ZSTD(1)"
    return "ZSTD(1)"


def create_table(record: Record, engine: Engine) -> str:
    """The CREATE TABLE of a record. `stored` is the day a row arrived; `SELECT *` does not show it."""
    columns = ",\n  ".join(
        [
            *(column(record, f) for f in record.fields),
            "`stored` Date MATERIALIZED today() CODEC(ZSTD(1))",
            *(f"PROJECTION {name} ({select})" for name, select in PROJECTIONS.get(record.name, {}).items()),
        ]
    )
    order = ", ".join(f"`{name}`" for name in record.order_by)
    return (
        f"CREATE TABLE IF NOT EXISTS {engine.table(record.name)} (\n  {columns}\n)\n"
        f"{engine.kind('MergeTree')}\nPARTITION BY toDate(`{record.time}`)\nORDER BY ({order})\n"
        f"TTL `stored` + INTERVAL {record.ttl_days} DAY\n{engine.settings}{_granularity(record)}"
    )


def _granularity(record: Record) -> str:
    rows = _GRANULARITY.get(record.name)
    return f", index_granularity = {rows}" if rows else ""


def add_column(record: Record, field: Field, engine: Engine) -> str:
    """The ALTER that gives an older table a newer field."""
    return f"ALTER TABLE {engine.table(record.name)} ADD COLUMN IF NOT EXISTS {column(record, field)}"


def add_projections(table: str, names: Sequence[str], engine: Engine) -> list[str]:
    """The ALTERs that give an older table these of its projections, none for no names.

    The last one has the engine sum the rows that are there, in the background.
    """
    if not names:
        return []
    alter, selects = f"ALTER TABLE {engine.table(table)}", PROJECTIONS[table]
    added = [f"{alter} ADD PROJECTION IF NOT EXISTS {name} ({selects[name]})" for name in names]
    summed = ", ".join(f"MATERIALIZE PROJECTION {name}" for name in names)
    return [*added, f"{alter} {summed} SETTINGS mutations_sync = 0"]


def create_offsets(engine: Engine) -> str:
    """The table behind `OFFSETS`."""
    return (
        f"CREATE TABLE IF NOT EXISTS {engine.table(OFFSETS)} (\n"
        "  `source` String, `record` LowCardinality(String), `first_row` UInt64, `next_row` UInt64,\n"
        "  `stored` Date MATERIALIZED today()\n)\n"
        f"{engine.kind('ReplacingMergeTree', '`next_row`')}\nORDER BY (`source`, `record`, `first_row`)\n"
        f"TTL `stored` + INTERVAL {OFFSETS_DAYS} DAY"
    )


def create_quarantine(engine: Engine) -> str:
    """The table behind `QUARANTINE`."""
    return (
        f"CREATE TABLE IF NOT EXISTS {engine.table(QUARANTINE)} (\n"
        "  `ts` DateTime64(9, 'UTC') DEFAULT now64(9), `record` LowCardinality(String), `source` String,\n"
        "  `first_row` UInt64, `rows` UInt64, `reason` LowCardinality(String),\n"
        "  `data` String CODEC(ZSTD(3)), `stored` Date MATERIALIZED today()\n)\n"
        f"{engine.kind('MergeTree')}\nORDER BY (`record`, `ts`)\nTTL `stored` + INTERVAL 30 DAY\n"
        f"{engine.settings}"
    )


def create_rollup(engine: Engine) -> str:
    """The table behind `ROLLUP`: read it with sum() and max() over the columns that are not keys."""
    added = ",\n  ".join(ROLLUP_ADDED)
    return (
        f"CREATE TABLE IF NOT EXISTS {engine.table(ROLLUP)} (\n"
        "  `job` LowCardinality(String), `attempt` Int32, `step` Int64, `rank` Int32,\n"
        "  `phase` LowCardinality(String), `category` LowCardinality(String),\n"
        "  `parent` LowCardinality(String), `node` LowCardinality(String),\n"
        "  `spans` SimpleAggregateFunction(sum, UInt64),\n"
        "  `duration_ns` SimpleAggregateFunction(sum, Int64),\n"
        "  `longest_ns` SimpleAggregateFunction(max, Int64),\n"
        "  `bytes` SimpleAggregateFunction(sum, Int64),\n"
        f"  {added},\n"
        "  `first_start` SimpleAggregateFunction(min, DateTime64(9, 'UTC')),\n"
        "  `stored` SimpleAggregateFunction(max, Date)\n)\n"
        f"{engine.kind('AggregatingMergeTree')}\n"
        "ORDER BY (`job`, `attempt`, `step`, `rank`, `phase`, `category`, `parent`, `node`)\n"
        f"TTL `stored` + INTERVAL {RECORDS['spans'].ttl_days} DAY\n{engine.settings}"
    )


_FEED = (
    "SELECT job, attempt, step, rank, phase, category, parent, node, count() AS spans,\n"
    "  sum(s.duration_ns) AS duration_ns, max(s.duration_ns) AS longest_ns,\n"
    "  sum(s.bytes) AS bytes, sum(greatest(s.blocked_ns, 0)) AS blocked_ns,\n"
    "  countIf(s.blocked_ns >= 0) AS blocked_known,\n"
    "  min(s.start) AS first_start, today() AS stored\n"
    "FROM spans AS s WHERE NOT s.open\n"
    "GROUP BY job, attempt, step, rank, phase, category, parent, node"
)


def create_rollup_feed(engine: Engine) -> str:
    """The materialised view that fills `ROLLUP` at each insert into spans. Open spans come again when they
    end and are left out."""
    return f"CREATE MATERIALIZED VIEW IF NOT EXISTS {engine.table(ROLLUP_FEED)} TO `{ROLLUP}` AS\n{_FEED}"


def extend_rollup(engine: Engine) -> list[str]:
    """The ALTERs that give an older rollup and its feed the columns in `ROLLUP_ADDED`. Idempotent."""
    table, feed = engine.table(ROLLUP), engine.table(ROLLUP_FEED)
    added = [f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {column}" for column in ROLLUP_ADDED]
    return [*added, f"ALTER TABLE {feed} MODIFY QUERY {_FEED}"]


def lacking(wanted: Mapping[str, object], engine_full: str) -> dict[str, object]:
    """The settings of `wanted` that an engine clause does not contain.

    >>> lacking({"a": 1, "b": ""}, "MergeTree ORDER BY x SETTINGS a = 1, c = 2")
    {'b': ''}
    """
    present = {part.strip() for part in engine_full.partition("SETTINGS")[2].split(",")}
    return {name: value for name, value in wanted.items() if _setting(name, value) not in present}


def set_settings(table: str, settings: Mapping[str, object], engine: Engine) -> str:
    """The ALTER that gives a table these settings."""
    return f"ALTER TABLE {engine.table(table)} MODIFY SETTING {_settings(settings)}"


def insert_file(table: str, columns: Sequence[str], path: str, settings: Mapping[str, object]) -> str:
    """The INSERT of an Arrow IPC stream that lies in a file of the engine's own machine."""
    names = ", ".join(f"`{name}`" for name in columns)
    return (
        f"INSERT INTO `{table}` ({names}) FROM INFILE {literal(path)} "
        f"SETTINGS {_settings(settings)} FORMAT ArrowStream"
    )


def _settings(settings: Mapping[str, object]) -> str:
    return ", ".join(_setting(name, value) for name, value in settings.items())


def _setting(name: str, value: object) -> str:
    return f"{name} = {literal(value)}"
