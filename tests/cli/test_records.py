"""Records on their way to the store."""

import json

import pyarrow as pa
import pytest
from pyarrow import parquet

import pulsetrain.core.log
import pulsetrain.hub.ingest
from pulsetrain.core.errors import ConfigError, UsageError
from tests.collectors.machine.test_nccl_inspector import line


@pytest.fixture
def recording(tmp_path):
    """A folder with one file of two steps."""
    folder = tmp_path / "recording"
    folder.mkdir()
    rows = [{"job": "gpt", "attempt": 0, "rank": rank, "step": 1, "duration_ns": 5} for rank in range(2)]
    parquet.write_table(pa.Table.from_pylist(rows), folder / "steps.parquet")
    return folder


def test_import_sends_files_to_the_hub(ask, canned_hub, recording):
    canned_hub.answers["POST /v1/records/steps"] = {"stored": 2}
    rows = json.loads(ask("import", recording, "--json").output)
    assert [(r["record"], r["rows"], r["stored"]) for r in rows] == [("steps", 2, 2)]


@pytest.mark.integration
def test_import_straight_into_a_store_stores_each_row_once(cli, recording, tmp_path):
    words = ("import", recording, "--store", f"chdb://{tmp_path}/store")
    first, second = cli(*words).output, cli(*words).output
    assert first.splitlines()[1].split()[:3] == ["steps", "2", "2"]
    assert second.splitlines()[1].split()[:3] == ["steps", "2", "0"]


def test_import_takes_files_of_nccl_inspector_too(ask, canned_hub, tmp_path):
    (tmp_path / "node-3-pid7.log").write_text(f"{line(1)}\n{line(2)}\n")
    canned_hub.answers["POST /v1/records/metrics"] = {"stored": 5}
    (row,) = json.loads(ask("import", tmp_path, "--json").output)
    assert (row["record"], row["rows"], row["stored"]) == ("metrics", 5, 5)
    assert row["file"].endswith("node-3-pid7.log")


def test_import_of_a_folder_without_records_is_bad_usage(cli, tmp_path):
    assert isinstance(cli("import", tmp_path).exception, UsageError)


def test_import_without_a_hub_says_how_to_name_one(cli, recording):
    assert "--hub URL" in str(cli("import", recording).exception)


def test_tail_of_an_unknown_record_is_bad_usage(cli):
    done = cli("tail", "nonsense")
    assert isinstance(done.exception, UsageError)
    assert "spans" in str(done.exception)


def test_an_unknown_key_in_the_file_is_named(cli, tmp_path):
    file = tmp_path / "kafka.toml"
    file.write_text("[kafka]\nbrokers = 'b:1'\n")
    done = cli("tail", "steps", "--config", file)
    assert isinstance(done.exception, ConfigError)
    assert "kafka.brokers" in str(done.exception)


def test_ingest_passes_its_flags_on(cli, monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr(pulsetrain.core.log, "configure", lambda **_: None)
    monkeypatch.setattr(pulsetrain.hub.ingest, "run_ingest", lambda *given: seen.append(given[:5]))
    file = tmp_path / "ingest.toml"
    cli(
        "ingest",
        "--store",
        "chdb:///s",
        "--kafka",
        "b:1",
        "--member",
        "m",
        "--config",
        file,
        "--metrics-port",
        9,
    )
    assert seen == [("chdb:///s", file, {"servers": "b:1"}, {"group": None, "member": "m"}, 9)]


@pytest.mark.parametrize(
    "command", [("tail", "steps", "--rows", "-1"), ("ingest", "--metrics-port", "70000")]
)
def test_numbers_that_cannot_be_are_bad_usage(cli, command):
    assert "is not in the range" in str(cli(*command).exception)
