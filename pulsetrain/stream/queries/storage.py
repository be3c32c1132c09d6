"""SELECTs of the store about its own tables, functions and ranges of rows."""

from __future__ import annotations

import pyarrow as pa

from pulsetrain.stream.queries.queryable import Queryable


def columns(store: Queryable) -> pa.Table:
    """Columns of the current database: table, name, type."""
    return store.query("SELECT table, name, type FROM system.columns WHERE database = currentDatabase()")


def engines(store: Queryable) -> pa.Table:
    """Tables of the current database and the ENGINE clause they have: name, engine_full."""
    return store.query("SELECT name, engine_full FROM system.tables WHERE database = currentDatabase()")


def statements(store: Queryable) -> pa.Table:
    """Tables of the current database and the CREATE that would make each: name, statement."""
    return store.query(
        """
        SELECT name, create_table_query AS statement FROM system.tables WHERE database = currentDatabase()
        """
    )


def table_settings(store: Queryable) -> pa.Table:
    """Settings that a MergeTree table can have: name."""
    return store.query("SELECT name FROM system.merge_tree_settings")


def stored_ranges(store: Queryable) -> pa.Table:
    """Ranges of rows of each source that are stored: source, record, first_row, next_row."""
    return store.query(
        """
        SELECT source, record, first_row, max(next_row) AS next_row
        FROM ingest_offsets
        GROUP BY source, record, first_row
        """
    )


def stored_step(store: Queryable, job: str, attempt: int) -> int:
    """The newest step of an attempt that is stored for any rank. -1: none."""
    table = store.query(
        """
        SELECT step FROM steps WHERE job = {job:String} AND attempt = {attempt:Int32}
        ORDER BY step DESC LIMIT 1
        """,
        {"job": job, "attempt": attempt},
    )
    return int(table["step"][0].as_py()) if table.num_rows else -1


def outside_functions(store: Queryable) -> pa.Table:
    """Functions that may reach outside the store: table functions, and functions that call a model: name."""
    return store.query(
        """
        SELECT lower(name) AS name FROM system.table_functions
        UNION DISTINCT
        SELECT lower(name) FROM system.functions WHERE startsWith(lower(name), 'ai')
        """
    )
