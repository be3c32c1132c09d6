"""Statements as text. That the engine takes them is tested with the store."""

from __future__ import annotations

from functools import partial

import pytest

from pulsetrain.core.config import load
from pulsetrain.core.errors import ConfigError
from pulsetrain.records import ddl
from pulsetrain.records.schema import RECORDS

ONE, MANY = ddl.Engine(), ddl.Engine(cluster="main", deduplication_window=700)
TABLES = {name: partial(ddl.create_table, record) for name, record in RECORDS.items()} | {
    ddl.OFFSETS: ddl.create_offsets,
    ddl.QUARANTINE: ddl.create_quarantine,
    ddl.ROLLUP: ddl.create_rollup,
}


@pytest.mark.parametrize("record", RECORDS.values(), ids=lambda record: record.name)
def test_a_records_table_has_every_field_with_its_type_default_and_codec(record):
    sql = ddl.create_table(record, ONE)
    for field in record.fields:
        assert f"`{field.name}` {field.kind.clickhouse} DEFAULT {ddl.literal(field.default)} CODEC(" in sql
    assert f"PARTITION BY toDate(`{record.time}`)" in sql
    assert f"ORDER BY ({', '.join(f'`{name}`' for name in record.order_by)})" in sql


@pytest.mark.parametrize("record", RECORDS.values(), ids=lambda record: record.name)
def test_rows_expire_by_the_day_they_were_stored(record):
    assert f"TTL `stored` + INTERVAL {record.ttl_days} DAY" in ddl.create_table(record, ONE)


@pytest.mark.parametrize("table", TABLES)
def test_on_a_cluster_every_table_is_made_everywhere_and_replicated(table):
    plain, replicated = TABLES[table](ONE), TABLES[table](MANY)
    assert f"`{table}` ON CLUSTER `main`" in replicated
    assert "ENGINE = Replicated" in replicated
    assert "ON CLUSTER" not in plain
    assert "Replicated" not in plain


def test_repeated_inserts_are_recognised_in_the_window_of_the_engines_kind():
    assert "non_replicated_deduplication_window = 10000" in ddl.create_table(RECORDS["steps"], ONE)
    assert " replicated_deduplication_window = 700" in ddl.create_table(RECORDS["steps"], MANY)
    assert "replicated_deduplication_window_seconds = 604800" in ddl.create_table(RECORDS["steps"], MANY)


def test_all_tables_of_a_cluster_remember_tokens_for_a_week_also_older_ones():
    assert ONE.tuned == ddl.TUNED
    for name in (*RECORDS, ddl.ROLLUP, ddl.QUARANTINE):
        assert MANY.tuned[name] == {
            **ddl.TUNED.get(name, {}), "replicated_deduplication_window_seconds": 604800
        }  # fmt: skip


def test_a_newer_field_is_added_as_a_new_table_would_have_it():
    record = RECORDS["steps"]
    sql = ddl.add_column(record, record.field("loss"), MANY)
    assert sql == (
        "ALTER TABLE `steps` ON CLUSTER `main` ADD COLUMN IF NOT EXISTS "
        + ddl.column(record, record.field("loss"))
    )


@pytest.mark.parametrize(
    ("value", "sql"),
    [
        (None, "NULL"),
        (True, "true"),
        (False, "false"),
        (float("nan"), "nan"),
        (-1, "-1"),
        (0.5, "0.5"),
        ("", "''"),
        ("it's a \\ path", "'it\\'s a \\\\ path'"),
    ],
)
def test_values_are_written_as_sql(value, sql):
    assert ddl.literal(value) == sql


def test_settings_that_a_table_lacks_are_found_and_set():
    settings = {"merge_max_block_size": 1, "storage_policy": "it's"}
    clause = "MergeTree ORDER BY x SETTINGS merge_max_block_size = 1, other = 2"
    assert ddl.lacking(settings, clause) == {"storage_policy": "it's"}
    assert ddl.lacking(settings, "MergeTree ORDER BY x") == settings
    assert ddl.set_settings("spans", settings, ONE) == (
        "ALTER TABLE `spans` MODIFY SETTING merge_max_block_size = 1, storage_policy = 'it\\'s'"
    )


def test_an_insert_from_a_file_names_its_columns_and_quotes_its_path():
    sql = ddl.insert_file("steps", ("job", "step"), "/tmp/o'brien", {"async_insert": 0})
    assert sql == (
        "INSERT INTO `steps` (`job`, `step`) FROM INFILE '/tmp/o\\'brien' "
        "SETTINGS async_insert = 0 FORMAT ArrowStream"
    )


def test_open_spans_are_left_out_of_the_rollup():
    assert "WHERE NOT s.open" in ddl.create_rollup_feed(ONE)
    assert f"TO `{ddl.ROLLUP}`" in ddl.create_rollup_feed(ONE)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"cluster": "a`; DROP"}, "cluster = .*: allowed are letters"),
        ({"deduplication_window": 99}, "deduplication_window = 99: allowed 100 or more"),
    ],
)
def test_a_wrong_setting_of_the_store_is_named(values, words):
    with pytest.raises(ConfigError, match=words):
        load(ddl.Engine, "store", file={"store": values})


def test_a_cluster_may_be_named_by_a_macro_of_its_servers():
    assert ddl.Engine(cluster="{cluster}").table("spans") == "`spans` ON CLUSTER `{cluster}`"
