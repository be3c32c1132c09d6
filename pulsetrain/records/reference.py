"""Generates docs/records.md: ``python -m pulsetrain.records.reference > docs/records.md``."""

from __future__ import annotations

import sys

import pyarrow as pa

from pulsetrain.records.arrow import arrow_type
from pulsetrain.records.ddl import PROJECTIONS, ROLLUP
from pulsetrain.records.schema import RECORDS, SCHEMA_VERSION, Field, Record

_HEAD = f"""# Records

Generated from `pulsetrain/records/schema.py` by `python -m pulsetrain.records.reference`. Do not edit it.
Schema version {SCHEMA_VERSION}.

Each record is a ClickHouse table, a Kafka topic `pulsetrain.<record>` and a Parquet file `<record>.parquet`
of the same name. Rows expire by the day they were stored, not by the day they tell of.

- Times are UTC with nanoseconds, in Arrow `timestamp[ns, UTC]`.
- A reader fills a field that an older writer did not send with the field's default.
"""

_TAIL = f"""
## `{ROLLUP}`

Closed spans summed as they arrive, for charts over long times. Keys: job, attempt, step, rank, phase,
category, parent, node. Read the others with their aggregate: `sum(spans)`, `sum(duration_ns)`,
`max(longest_ns)`, `sum(bytes)`, `min(first_start)`.

## Projections

What the engine keeps summed beside the rows of a table, so that a query over a long job need not read the
row of each rank. It uses one by itself where the query's conditions, groups and aggregates are among these.
An older store gets them when a hub opens it: its rows are then summed in the background.

| table | projection | query |
|---|---|---|
"""


def page() -> str:
    """The page as Markdown."""
    rows = (
        f"| `{table}` | `{name}` | `{select}` |\n"
        for table, projections in PROJECTIONS.items()
        for name, select in projections.items()
    )
    return "\n".join([_HEAD, *(_record(r) for r in RECORDS.values())]) + _TAIL + "".join(rows)


def _record(record: Record) -> str:
    lines = [
        f"## `{record.name}`",
        "",
        f"{record.meaning[0].upper()}{record.meaning[1:]}. Sorted by {', '.join(record.order_by)}. "
        f"Partitioned by day of `{record.time}`. Kept {record.ttl_days} days.",
        "",
        "| field | ClickHouse | Arrow | unit | meaning | default | since |",
        "|---|---|---|---|---|---|---|",
        *(_field(f) for f in record.fields),
        "",
    ]
    return "\n".join(lines)


def _field(field: Field) -> str:
    kind = arrow_type(field.kind)
    arrow = "dictionary" if pa.types.is_dictionary(kind) else str(kind)
    default = "NULL" if field.default is None else f"`{field.default!r}`"
    cells = (f"`{field.name}`", f"`{field.kind.clickhouse}`", f"`{arrow}`", field.unit)
    return f"| {' | '.join(cells)} | {field.meaning} | {default} | {field.since} |"


if __name__ == "__main__":
    sys.stdout.write(page())
