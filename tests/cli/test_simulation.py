"""Fleets and failures on paper."""

import json

import pytest
from pyarrow import parquet

from pulsetrain.core.errors import UsageError
from pulsetrain.simulate.live import run
from pulsetrain.simulate.live.report import Summary

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


def test_ways_to_go_on_with_failed_devices_stand_side_by_side(cli):
    words = ("simulate", "fleet", "--set", "devices=2048", "--set", "days=5")
    answer = json.loads(cli(*words, "--json").output)
    names = ["wait", "dp-drop", "ntp", "ntp-pw"]
    assert [each["strategy"] for each in answer["strategies"]] == names
    lines = cli(*words).output.splitlines()
    assert lines[0].startswith("simulated: 2,048 devices, 5 days")
    assert [line.split()[0] for line in lines[2:]] == names


LIVE = ("simulate", "fleet-live")


def test_the_faults_of_a_live_fleet_are_listed_with_their_keys(cli):
    rows = json.loads(cli(*LIVE, "--list-faults", "--json").output)
    assert {row["kind"] for row in rows} >= {"slow_rank", "slow_node", "hung_rank", "flapping_link"}
    assert "hung_rank" in cli(*LIVE, "--list-faults").output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--nodes", 3, "--tp", 16), "24 ranks: not a multiple of tp x pp = 16"),
        (("--seconds", 0), "--seconds = 0.0"),
        (("--senders", 0), "--senders = 0"),
        (("--plan", "none.toml"), "--plan none.toml"),
    ],
)
def test_a_live_fleet_that_cannot_be_is_bad_usage(cli, words, says):
    done = cli(*LIVE, *words)
    assert isinstance(done.exception, UsageError)
    assert says in str(done.exception)


def test_a_live_fleet_without_a_hub_is_bad_usage(cli):
    assert "no hub" in str(cli(*LIVE, "--nodes", 2).exception)


@pytest.fixture
def live_run(monkeypatch):
    """What a live fleet would be run with, instead of running it."""
    asked = []
    summary = Summary(
        ranks=16, nodes=2, seconds=1.0, heartbeats=2, held_back=0, late_s_max=0.0, rows=3, dropped_rows=0,
        attempts=1, cpu_ratio=0.1, hub_cpu_ratio=0.2, status_s=0.0, status_bytes=9, interrupted=False,
        faults=(),
    )  # fmt: skip
    monkeypatch.setattr(run, "run", lambda *given: asked.append(given) or summary)
    return asked


def test_a_live_fleet_is_fed_with_the_default_plan_to_the_hub(ask, live_run):
    done = ask(*LIVE, "--nodes", 2, "--tp", 8, "--seconds", 60, "--heartbeat-s", 2)
    assert done.exception is None
    fleet, faults, options, hub, _ = live_run[0]
    assert (fleet.ranks, fleet.tp, options.heartbeat_s, len(faults)) == (16, 8, 2.0, 6)
    assert hub.url.startswith("http://127.0.0.1")
    assert "simulated fleet: 16 ranks on 2 nodes" in done.output
    assert "hung_rank" in done.output


def test_a_live_fleet_takes_its_faults_from_a_file(ask, live_run, tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text('[[fault]]\nkind = "silent_node"\nat_s = 3\nnode = "sim-00001"\n')
    done = ask(*LIVE, "--nodes", 2, "--plan", plan, "--json")
    assert [fault.kind for fault in live_run[0][1]] == ["silent_node"]
    assert json.loads(done.output)["ranks"] == 16
