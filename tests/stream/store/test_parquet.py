from __future__ import annotations

import json
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from pulsetrain.cli import pulsetrain
from pulsetrain.core.errors import UsageError
from pulsetrain.records.batch import Batch
from pulsetrain.stream.store.parquet import files, load, rows_of
from tests.stream.conftest import TOKEN
from tests.stream.rows import table


class ListSink:
    """Keeps what it is given."""

    def __init__(self):
        self.batches: list[Batch] = []

    def put(self, batch):
        self.batches.append(batch)
        return batch.rows


def plain(record, rows, **columns):
    """A file's worth of the record as other tools write it: plain strings, wide integers, microseconds."""
    found = table(record, rows, **columns)
    for index, field in enumerate(found.schema):
        column = found.column(index)
        if pa.types.is_dictionary(field.type):
            column = column.cast(pa.string())
        if pa.types.is_int32(field.type):
            column = column.cast(pa.int64())
        if pa.types.is_timestamp(field.type):
            column = column.cast(pa.timestamp("us"), safe=False)
        found = found.set_column(index, field.name, column)
    return found


def test_a_file_is_sent_in_pieces_under_one_content_hash(tmp_path, monkeypatch):
    monkeypatch.setattr("pulsetrain.stream.store.parquet._ROWS", 40)
    for name in ("a", "b"):
        pq.write_table(plain("steps", 100), tmp_path / f"{name}.parquet")
    first, second = ListSink(), ListSink()
    sent = []
    imported = load("steps", tmp_path / "a.parquet", first, now_ns=0, report=lambda n, _=None: sent.append(n))
    assert imported.rows == 100
    assert sent == [40, 80, rows_of(tmp_path / "a.parquet")]
    load("steps", tmp_path / "b.parquet", second, now_ns=0)
    assert [(b.first_row, b.rows) for b in first.batches] == [(0, 40), (40, 40), (80, 20)]
    assert {b.source for b in first.batches} == {b.source for b in second.batches}


def test_only_files_named_after_records_count(tmp_path):
    (tmp_path / "other.parquet").write_text("")
    with pytest.raises(UsageError, match="no file named after a record"):
        files(tmp_path)
    (tmp_path / "spans.parquet").write_text("")
    assert list(files(tmp_path)) == ["spans"]
    with pytest.raises(UsageError, match="not a directory"):
        files(tmp_path / "nowhere")


def test_a_file_that_is_not_parquet_or_not_the_record_is_named(tmp_path):
    bad = tmp_path / "spans.parquet"
    bad.write_text("text")
    with pytest.raises(UsageError, match=r"spans\.parquet cannot be read as Parquet"):
        load("spans", bad, ListSink(), now_ns=0)
    pq.write_table(pa.table({"job": ["a"]}), bad)
    with pytest.raises(UsageError, match=r"spans\.parquet: spans\.attempt is missing"):
        load("spans", bad, ListSink(), now_ns=0)


@pytest.mark.integration
def test_a_folder_goes_over_a_hub_once(tmp_path, hub, chdb_store):
    pq.write_table(plain("steps", 30, job="imported"), tmp_path / "steps.parquet")
    pq.write_table(plain("topology", 3, job="imported").drop_columns(["ts"]), tmp_path / "topology.parquet")
    for expected in (33, 0):
        arguments = ["import", str(tmp_path), "--hub", hub, "--token", TOKEN, "--json"]
        done = CliRunner().invoke(pulsetrain, arguments)
        assert done.exit_code == 0, done.output
        assert sum(row["stored"] for row in json.loads(done.output)) == expected
    found = chdb_store.query("SELECT count() AS n FROM steps WHERE job = 'imported'")
    assert found["n"].to_pylist() == [30]


@pytest.mark.integration
def test_a_folder_goes_straight_into_a_store_once(tmp_path):
    pq.write_table(plain("spans", 30, job="imported"), tmp_path / "spans.parquet")
    arguments = [sys.executable, "-m", "pulsetrain.cli", "import", str(tmp_path)]
    for expected in (30, 0):
        done = subprocess.run(
            [*arguments, "--store", f"chdb://{tmp_path}/store", "--json"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert [row["stored"] for row in json.loads(done.stdout)] == [expected]


@pytest.mark.integration
def test_what_cannot_be_imported_is_one_line_and_status_2(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "pulsetrain.cli", "import", str(tmp_path / "nowhere")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "nowhere" in done.stderr
