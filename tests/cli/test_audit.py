"""`pulsetrain audit verify`."""

from __future__ import annotations

import json

import pytest

from pulsetrain.core.errors import UsageError
from pulsetrain.hub.audit_log import NAME, AuditLog


@pytest.fixture
def log(tmp_path):
    AuditLog(tmp_path / NAME).append([{"kind": "evict", "node": "b"}, {"kind": "recovery", "node": "b"}])
    return tmp_path / NAME


def test_a_sound_log_says_its_last_hash(cli, log):
    done = cli("audit", "verify", "--data", log.parent)
    assert done.return_value == 0
    assert done.output.startswith("2 records, all as they were written. The last hash is ")
    head = done.output.split()[-1].rstrip(".")
    assert cli("audit", "verify", "--data", log.parent, "--head", head).return_value == 0
    assert cli("audit", "verify", "--data", log.parent, "--head", "5f").return_value == 1


def test_a_changed_record_is_named(cli, log):
    log.write_text(log.read_text().replace("evict", "nothing"))
    done = cli("audit", "verify", "--data", log.parent, "--json")
    answer = json.loads(done.output)
    assert (done.return_value, answer["ok"], answer["records"]) == (1, False, 2)
    assert answer["problems"] == [{"line": 1, "what": "was changed after it was written"}]


def test_a_folder_without_a_log_is_bad_usage(cli, tmp_path):
    done = cli("audit", "verify", "--data", tmp_path / "empty")
    assert isinstance(done.exception, UsageError)
    assert "no audit log" in str(done.exception)


def test_a_last_line_that_is_half_written_is_told_and_no_problem(cli, log):
    with log.open("a") as file:
        file.write('{"event":{"kind":"evict"')
    done = cli("audit", "verify", "--data", log.parent)
    assert done.return_value == 0
    assert f"{log}:3: half written" in done.output
    assert "2 records, all as they were written." in done.output
    answer = json.loads(cli("audit", "verify", "--data", log.parent, "--json").output)
    assert (answer["ok"], answer["torn_line"]) == (True, 3)


def test_what_only_looks_half_written_is_a_problem(cli, log):
    whole = log.read_text()
    for text in (whole.replace("recovery", "nothing").rstrip("\n"), whole + "half\n"):
        log.write_text(text)
        done = cli("audit", "verify", "--data", log.parent, "--json")
        answer = json.loads(done.output)
        assert (done.return_value, answer["ok"], answer["torn_line"]) == (1, False, None)
