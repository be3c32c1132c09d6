"""ClickHouse's own Kafka engine: its SQL follows the schema, as far as chDB can run it."""

import contextlib
import subprocess
import sys

import pytest

from pulsetrain.records.batch import encode
from pulsetrain.records.schema import RECORDS
from pulsetrain.stream.kafka.client import KafkaConfig
from pulsetrain.stream.kafka.engine import KafkaEngine, drop, feed, queue, statements
from pulsetrain.stream.store.clickhouse import open_store
from tests.stream.rows import table


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    with contextlib.closing(open_store(f"chdb://{tmp_path_factory.mktemp('engine')}/store")) as store:
        store.migrate()
        yield store


@pytest.mark.parametrize("record", RECORDS)
def test_the_queue_has_the_columns_of_its_record(record):
    sql = queue(RECORDS[record], KafkaConfig(prefix="x."), KafkaEngine(consumers=3))
    assert all(f"`{f.name}` {f.kind.clickhouse}" in sql for f in RECORDS[record].fields)
    assert f"kafka_topic_list = 'x.{record}'" in sql
    assert "kafka_num_consumers = 3" in sql


def test_every_record_has_a_queue_and_a_feed_and_both_can_go():
    assert len(statements(KafkaConfig())) == 2 * len(RECORDS)
    assert [sql.split()[1] for sql in drop(RECORDS["spans"])] == ["VIEW", "TABLE"]


def test_a_password_reaches_the_engine_and_quotes_cannot_leave_it():
    config = KafkaConfig(
        security_protocol="SASL_SSL", sasl_mechanism="PLAIN", sasl_username="u", sasl_password="o'x"
    )
    sql = queue(RECORDS["spans"], config, KafkaEngine())
    assert "kafka_sasl_password = 'o\\'x'" in sql
    assert "kafka_security_protocol = 'sasl_ssl'" in sql


CREATE = """
import os, sys
import chdb

connection = chdb.connect(sys.argv[1])
try:
    connection.query(sys.argv[2])
except Exception as error:
    print(error, flush=True)
os._exit(0)  # the engine does not get over it in every case
"""


@pytest.mark.integration
@pytest.mark.parametrize(
    ("changed", "words"),
    [("kafka_flush_interval_ms", "Shutdown was called"), ("kafka_nonsense", "kafka_nonsense")],
)
def test_chdb_knows_the_engine_and_its_settings_and_has_no_threads_for_it(tmp_path, changed, words):
    """docs/kafka-engine.md says so; when this fails, chDB can consume, and a test of that belongs here."""
    sql = queue(RECORDS["steps"], KafkaConfig(), KafkaEngine()).replace("kafka_flush_interval_ms", changed)
    done = subprocess.run(
        [sys.executable, "-c", CREATE, str(tmp_path / "store"), sql],
        capture_output=True,
        text=True,
        timeout=110,
        check=True,
    )
    assert words in done.stdout


@pytest.mark.integration
@pytest.mark.parametrize("record", RECORDS)
def test_a_message_as_the_queue_reads_it_reaches_the_records_table(store, record):
    made = queue(RECORDS[record], KafkaConfig(), KafkaEngine()).partition(") ENGINE")[0]
    store.command(f"{made}, `_error` String) ENGINE = Null")  # what the engine would hand to the view
    store.command(feed(RECORDS[record]))
    rows = table(record, 50)
    message = encode(record, rows, source="a/1", first_row=0)
    store.insert_raw(f"{record}_queue", rows.column_names, message, token=None)
    found = store.query(f"SELECT * FROM `{record}`")
    assert found.num_rows == 50
    for sql in drop(RECORDS[record]):
        store.command(sql)
