"""Fleets and failures on paper."""

import json

import pytest
from pyarrow import parquet

from pulsetrain.core.errors import UsageError

SMALL = ("simulate", "telemetry", "--ranks", 4, "--tp", 2, "--steps", 3, "--microbatches", 2)


def test_telemetry_is_files_named_after_the_records(cli, tmp_path):
    report = json.loads(cli(*SMALL, "--out", tmp_path, "--job", "paper", "--json").output)
    assert report["job"] == "paper"
    assert report["rows"]["steps"] == 4 * 3
    steps = parquet.read_table(tmp_path / "steps.parquet")
    assert set(steps["job"].to_pylist()) == {"paper"}


def test_the_same_seed_makes_the_same_records(cli, tmp_path):
    for name in ("a", "b"):
        cli(*SMALL, "--out", tmp_path / name, "--start", "2026-11-21T10:00:00", "--seed", 5)
    assert parquet.read_table(tmp_path / "a/spans.parquet") == parquet.read_table(
        tmp_path / "b/spans.parquet"
    )


def test_the_first_step_begins_at_start(cli, tmp_path):
    cli(*SMALL, "--out", tmp_path, "--start", "2026-11-21T10:00:00")
    first = min(parquet.read_table(tmp_path / "steps.parquet")["start"].to_pylist())
    assert first.isoformat().startswith("2026-11-21T10:00:00")


def test_telemetry_goes_to_the_hub_unless_told_otherwise(ask, canned_hub):
    records = ("spans", "steps", "topology", "events", "heartbeats", "metrics", "logs")
    canned_hub.answers |= {f"POST /v1/records/{record}": {"stored": 1} for record in records}
    done = ask(*SMALL)
    assert done.exception is None
    assert "POST /v1/records/spans" in {key for key, _ in canned_hub.requests}
    assert "spans" in done.output


@pytest.mark.parametrize("fault", ["nonsense:rank=1", "straggler:rank"])
def test_a_fault_that_cannot_be_is_bad_usage(cli, tmp_path, fault):
    done = cli(*SMALL, "--fault", fault, "--out", tmp_path / "out")
    assert isinstance(done.exception, UsageError)
    assert not (tmp_path / "out").exists()


def test_recovery_answers_by_simulation_and_by_formula(cli):
    words = ("simulate", "recovery", "--set", "machines=200", "--set", "days=5", "--runs", 2)
    answer = json.loads(cli(*words, "--json").output)
    assert answer.keys() == {"simulated", "closed_form"}
    assert [line.split()[0] for line in cli(*words).output.splitlines()] == ["by", "simulated", "closed"]


def test_set_goes_before_the_plan_and_an_unknown_key_is_named(cli, tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text("[recovery]\nmachines = 100\ndays = 1.0\n")
    words = ("simulate", "recovery", "--plan", plan, "--runs", 1, "--json")
    few = json.loads(cli(*words).output)
    many = json.loads(cli(*words, "--set", "machines=200").output)
    assert many["closed_form"] != few["closed_form"]
    done = cli("simulate", "recovery", "--set", "nonsense=1")
    assert isinstance(done.exception, UsageError)
    assert "nonsense" in str(done.exception)
