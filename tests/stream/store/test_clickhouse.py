from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
import threading

import pyarrow as pa
import pytest

from pulsetrain.core.errors import PulsetrainError, Refused, SchemaMismatch, Unavailable, UsageError
from pulsetrain.records import ddl
from pulsetrain.records.schema import RECORDS
from pulsetrain.stream.queries import storage
from pulsetrain.stream.store import clickhouse
from pulsetrain.stream.store.clickhouse import Store, ipc, open_store
from tests.repository import ROOT
from tests.stream.rows import DAY, table

pytestmark = pytest.mark.integration


def count(store, record, job):
    sql = f"SELECT count() AS n FROM {record} WHERE job = {{job:String}}"
    return store.query(sql, {"job": job}).column("n")[0].as_py()


@pytest.mark.parametrize("record", [r for r in RECORDS if "job" in RECORDS[r].names])
def test_rows_come_back_as_they_were_stored(chdb_store, record):
    rows = table(record, 5, job=f"back-{record}")
    chdb_store.insert(record, rows, token=f"back-{record}")
    key = ", ".join(RECORDS[record].order_by)
    found = chdb_store.query(
        f"SELECT * FROM {record} WHERE job = {{job:String}} ORDER BY {key}, {RECORDS[record].time}",
        {"job": f"back-{record}"},
    )
    assert found.column_names == list(RECORDS[record].names)
    assert sorted(map(str, found.to_pylist())) == sorted(map(str, rows.to_pylist()))


def test_a_token_stores_its_rows_once(chdb_store):
    rows = table("steps", 6, job="once")
    for token in ("a", "b", "a", "b"):
        chdb_store.insert("steps", rows, token=f"once-{token}")
    assert count(chdb_store, "steps", "once") == 12


class FakeClient:
    """Notes the settings of inserts."""

    def __init__(self):
        self.settings = []

    def raw_insert(self, table, columns, data, settings, form):
        self.settings.append(settings)


@pytest.mark.parametrize(("token", "deduplicates"), [("t", 1), (None, None)])
def test_an_insert_does_not_depend_on_the_profile_of_the_server(token, deduplicates):
    client = FakeClient()
    store = Store(lambda: client, name="s", open_reader=lambda config: None)
    store.insert("steps", table("steps", 1), token=token)
    (settings,) = client.settings
    assert settings["async_insert"] == 0
    assert settings.get("insert_deduplicate") == deduplicates
    assert settings.get("insert_deduplication_token") == token


def test_inserts_are_counted_for_each_table(chdb_store):
    before = chdb_store.inserts("steps", "events")
    chdb_store.insert("steps", table("steps", 2, job="counted"), token="counted")
    after = chdb_store.inserts("steps", "events")
    assert (after[0] - before[0], after[1] - before[1]) == (1, 0)


def test_rows_of_two_days_under_one_token_are_stored_once(chdb_store):
    rows = table("steps", 2, job="days", start=[DAY, DAY + 3 * 86_400 * 10**9])
    for _ in range(3):
        chdb_store.insert("steps", rows, token="days")
    assert count(chdb_store, "steps", "days") == 2


def test_the_rollup_sums_closed_spans_once(chdb_store):
    rows = table(
        "spans", 4, job="roll", step=1, rank=2, attempt=0, phase="forward", category="compute", parent="",
        node="n", duration_ns=[1, 2, 3, 100], open=[False, False, False, True],
    )  # fmt: skip
    for _ in range(2):
        chdb_store.insert("spans", rows, token="roll")
    sums = "sum(spans) AS spans, sum(duration_ns) AS duration_ns, max(longest_ns) AS longest_ns"
    found = chdb_store.query(f"SELECT rank, phase, {sums} FROM span_rollup WHERE job = 'roll' GROUP BY 1, 2")
    assert found.to_pylist() == [
        {"rank": 2, "phase": "forward", "spans": 3, "duration_ns": 6, "longest_ns": 3}
    ]


def test_rows_of_any_age_stay(chdb_store):
    chdb_store.insert("spans", table("spans", 3, job="old", start=10**18), token="old")
    chdb_store.command("OPTIMIZE TABLE spans FINAL")
    assert count(chdb_store, "spans", "old") == 3


def test_inserts_and_queries_from_many_threads(chdb_store):
    failures = []

    def work(number):
        try:
            for i in range(5):
                chdb_store.insert("steps", table("steps", 10, job="threads"), token=f"t{number}-{i}")
                count(chdb_store, "steps", "threads")
        except PulsetrainError as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert count(chdb_store, "steps", "threads") == 300


def test_migrating_again_changes_nothing_and_adds_what_is_missing(chdb_store):
    chdb_store.migrate()
    chdb_store.command("ALTER TABLE checkpoints DROP COLUMN bytes")
    chdb_store.migrate()
    chdb_store.insert("checkpoints", table("checkpoints", 2, job="migrated"), token="migrated")
    assert count(chdb_store, "checkpoints", "migrated") == 2


def test_an_older_rollup_gains_the_blocked_time_and_is_fed_with_it(chdb_store):
    chdb_store.command(f"DROP VIEW {ddl.ROLLUP_FEED}")
    for column in ("blocked_ns", "blocked_known"):
        chdb_store.command(f"ALTER TABLE {ddl.ROLLUP} DROP COLUMN {column}")
    chdb_store.command(
        f"CREATE MATERIALIZED VIEW {ddl.ROLLUP_FEED} TO {ddl.ROLLUP} AS SELECT job, attempt, step, rank,"
        " phase, category, parent, node, count() AS spans, today() AS stored FROM spans"
        " GROUP BY job, attempt, step, rank, phase, category, parent, node"
    )
    chdb_store.migrate()
    columns = {"job": "fed", "attempt": [0, 0], "step": [1, 1], "rank": [0, 0], "open": [False] * 2}
    columns |= {"phase": ["forward"] * 2, "duration_ns": [50, 60], "blocked_ns": [20, -1], "node": "n"}
    columns |= {"category": "compute", "parent": ["step"] * 2}
    chdb_store.insert("spans", table("spans", 2, **columns), token="fed")
    (row,) = chdb_store.query("SELECT * FROM span_rollup WHERE job = 'fed'").to_pylist()
    assert (row["spans"], row["duration_ns"], row["blocked_ns"], row["blocked_known"]) == (2, 110, 20, 1)


def test_an_older_store_gets_the_settings_of_busy_tables(chdb_store):
    chdb_store.command("ALTER TABLE spans MODIFY SETTING merge_selector_base = 5")
    chdb_store.migrate()
    engines = {row["name"]: row["engine_full"] for row in storage.engines(chdb_store).to_pylist()}
    for name, wanted in ddl.TUNED.items():
        assert ddl.lacking(wanted, engines[name]) == {}


def test_an_older_store_is_summed_as_a_new_one_is(chdb_store):
    chdb_store.insert("steps", table("steps", 40, job="older", rank=list(range(40)), attempt=[0] * 40))
    for name in ddl.PROJECTIONS["steps"]:
        chdb_store.command(f"ALTER TABLE steps DROP PROJECTION {name} SETTINGS mutations_sync = 1")
    chdb_store.migrate()
    statements = {row["name"]: row["statement"] for row in storage.statements(chdb_store).to_pylist()}
    assert all(f"PROJECTION {name} (" in statements["steps"] for name in ddl.PROJECTIONS["steps"])
    assert count(chdb_store, "steps", "older") == 40


def test_settings_that_the_engine_does_not_know_are_left_out(chdb_store, monkeypatch):
    monkeypatch.setattr(ddl, "TUNED", {"spans": {"of_the_future": 1}})
    chdb_store.migrate()


def test_a_column_of_another_type_is_named(chdb_store):
    chdb_store.command("ALTER TABLE heartbeats MODIFY COLUMN pid Int64")
    try:
        with pytest.raises(SchemaMismatch, match=r"heartbeats\.pid is Int64, not Int32"):
            chdb_store.migrate()
    finally:
        chdb_store.command("ALTER TABLE heartbeats MODIFY COLUMN pid Int32")


def test_a_stream_that_cannot_be_read_is_a_mismatch_and_stores_nothing(chdb_store):
    columns = list(RECORDS["steps"].names)
    with pytest.raises(SchemaMismatch):
        chdb_store.insert_raw("steps", columns, b"no Arrow stream at all", token="broken")
    chdb_store.insert("steps", table("steps", 2, job="after"), token="after")
    assert count(chdb_store, "steps", "after") == 2


def test_a_wrong_statement_is_one_line(chdb_store):
    with pytest.raises(PulsetrainError, match="nowhere") as caught:
        chdb_store.query("SELECT * FROM nowhere")
    assert "\n" not in str(caught.value)


def test_a_folder_that_another_store_holds_is_named(chdb_store):
    with pytest.raises(UsageError, match=f"store is in use by process {os.getpid()}"):
        open_store(chdb_store.name)


def test_bad_urls_are_refused(tmp_path):
    with pytest.raises(UsageError, match="allowed are chdb:///folder and http"):
        open_store("postgres://x")
    with pytest.raises(UsageError, match="absolute path"):
        open_store("chdb://relative/folder")
    with pytest.raises(UsageError, match=r"store\.cluster = 'main': chdb://.* is no ClickHouse server"):
        open_store(f"chdb://{tmp_path}/db", engine=ddl.Engine(cluster="main"))
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"store folder .*/file/db"):
        open_store(f"chdb://{tmp_path}/file/db")


@pytest.mark.parametrize("cluster", ["main", "{cluster}"])
def test_the_engine_reads_the_statements_of_a_cluster(chdb_store, cluster):
    """chDB has no cluster, so that it parses them only."""
    engine = ddl.Engine(cluster=cluster)
    made = [ddl.create_table(record, engine) for record in RECORDS.values()]
    made += [ddl.create_offsets(engine), ddl.create_quarantine(engine), ddl.create_rollup(engine)]
    made += [ddl.create_rollup_feed(engine), ddl.set_settings("spans", {"merge_selector_base": 24}, engine)]
    made += [ddl.add_column(RECORDS["spans"], RECORDS["spans"].fields[0], engine)]
    made += ddl.add_projections("steps", list(ddl.PROJECTIONS["steps"]), engine)
    with chdb_store.client() as client:
        for sql in made:
            assert "Query" in str(client.command(f"EXPLAIN AST {sql}")), sql


def test_tokens_are_remembered_by_the_folder(tmp_path):
    program = textwrap.dedent(
        """
        import sys
        sys.path.insert(0, sys.argv[2])
        from tests.stream.rows import table
        from pulsetrain.stream.store.clickhouse import Store, open_store
        store = open_store(sys.argv[1])
        store.migrate()
        store.insert("steps", table("steps", 4), token="again")
        print(store.query("SELECT count() AS n FROM steps").column("n")[0].as_py())
        store.close()
        """
    )
    for _ in range(2):
        arguments = [
            sys.executable,
            "-c",
            program,
            f"chdb://{tmp_path}/store",
            str(ROOT),
        ]
        done = subprocess.run(arguments, capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["4"]


def test_a_server_that_never_answers_is_unavailable_after_a_while(monkeypatch):
    monkeypatch.setattr(clickhouse, "SILENT_S", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(Unavailable, match="not answer"):
        open_store(f"http://127.0.0.1:{silent.getsockname()[1]}")


def test_a_table_whose_view_fails_takes_rows_once_despite_it(chdb_store):
    for statement in (
        "CREATE TABLE viewed (x UInt64) ENGINE = MergeTree ORDER BY x "
        "SETTINGS non_replicated_deduplication_window = 100",
        "CREATE TABLE copied (x UInt64) ENGINE = MergeTree ORDER BY x",
        "CREATE MATERIALIZED VIEW failing TO copied AS SELECT x + throwIf(x = 3) AS x FROM viewed",
    ):
        chdb_store.command(statement)
    stream = ipc(pa.table({"x": pa.array([1, 2, 3], pa.uint64())}))
    try:
        for _ in range(2):
            with pytest.raises(Refused):
                chdb_store.insert_raw("viewed", ["x"], stream, token="t")
        chdb_store.insert_raw("viewed", ["x"], stream, token="t", despite_views=True)
        assert chdb_store.query("SELECT count() AS rows FROM viewed").to_pylist() == [{"rows": 3}]
    finally:
        for statement in ("DROP VIEW failing", "DROP TABLE copied", "DROP TABLE viewed"):
            chdb_store.command(statement)
