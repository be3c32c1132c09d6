"""The store's queries about itself."""

from __future__ import annotations

import pytest

from pulsetrain.records.schema import RECORDS
from pulsetrain.stream.queries import storage
from tests.stream.rows import table

pytestmark = pytest.mark.integration


def test_every_record_is_a_table_with_its_columns(chdb_store):
    rows = storage.columns(chdb_store).to_pylist()
    for name, record in RECORDS.items():
        assert set(record.names) <= {row["name"] for row in rows if row["table"] == name}
    engines = {row["name"]: row["engine_full"] for row in storage.engines(chdb_store).to_pylist()}
    assert all("MergeTree" in engines[name] for name in RECORDS)


def test_the_newest_stored_step_is_that_of_any_rank(chdb_store):
    columns = {"job": "stored", "attempt": [0, 0, 1], "step": [3, 7, 1], "rank": [0, 1, 0]}
    chdb_store.insert("steps", table("steps", 3, **columns), token="stored")
    assert storage.stored_step(chdb_store, "stored", 0) == 7
    assert storage.stored_step(chdb_store, "stored", 1) == 1
    assert storage.stored_step(chdb_store, "stored", 2) == -1


def test_functions_that_reach_outside_are_listed(chdb_store):
    names = set(storage.outside_functions(chdb_store)["name"].to_pylist())
    assert {"url", "file", "s3", "remote"} <= names
    assert "sum" not in names


def test_settings_of_tables_are_listed(chdb_store):
    assert "index_granularity" in storage.table_settings(chdb_store)["name"].to_pylist()


def test_nothing_is_stored_of_a_source_that_never_sent(chdb_store):
    sources = storage.stored_ranges(chdb_store)
    assert sources.column_names == ["source", "record", "first_row", "next_row"]
    assert "nobody" not in sources["source"].to_pylist()
