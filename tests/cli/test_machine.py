"""Checks of the machine on which the command runs."""

import json

import pytest

import pulsetrain.diagnostics.suite
from pulsetrain.collectors.machine import port_sampling
from pulsetrain.core.errors import UsageError


@pytest.fixture
def ports(tmp_path):
    """One active port. Its counter of downed links stands at its largest value."""
    port = tmp_path / "mlx5_0" / "ports" / "1"
    (port / "counters").mkdir(parents=True)
    for name, text in (
        ("state", "4: ACTIVE"), ("link_layer", "InfiniBand"), ("rate", "400 Gb/sec (4X NDR)"),
        ("counters/link_downed", "255"), ("counters/port_xmit_data", "100"),
    ):  # fmt: skip
        (port / name).write_text(f"{text}\n")
    return tmp_path


def add_files(folder, card, files):
    """Files of port 1 of a card."""
    for name, text in files.items():
        path = folder / card / "ports" / "1" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


def test_ports_are_a_table_with_the_counters_that_are_blind(cli, ports):
    lines = cli("rdma", ports).output.splitlines()
    assert lines[1].split() == [
        "mlx5_0/1", "4:", "ACTIVE", "InfiniBand", "400000000000.0", "rdma_link_downed_total",
    ]  # fmt: skip


def test_counters_are_in_bytes(cli, ports):
    (port,) = json.loads(cli("rdma", ports, "--json").output)
    assert port["counters"]["rdma_transmit_bytes"] == {"value": 400, "unit": "bytes", "saturated": False}


def test_sampled_traffic_stands_beside_the_line_rate(cli, ports):
    add_files(ports, "mlx5_0", {"counters/port_rcv_data": "50"})
    assert "covered_share" in cli("rdma", ports, "--seconds", 0.01).output
    (port,) = json.loads(cli("rdma", ports, "--seconds", 0.01, "--json").output)
    assert {row["direction"]: row["line_bits_per_s"] for row in port["traffic"]} == {
        "transmit": 400e9, "receive": 400e9,
    }  # fmt: skip


def test_sampling_the_traffic_keeps_to_its_budget(cli, ports, monkeypatch):
    add_files(ports, "mlx5_0", {"counters/port_rcv_data": "50"})
    asked = []
    sample = port_sampling.sample
    spy = lambda ports, **options: asked.append(options) or sample(ports, **options)  # noqa: E731 - one line
    monkeypatch.setattr(port_sampling, "sample", spy)
    cli("rdma", ports, "--seconds", 0.01)
    cli("rdma", ports, "--seconds", 0.01, "--budget", 1)
    assert [options["budget_ratio"] for options in asked] == [0.01, 1]


def test_a_port_that_cannot_be_sampled_has_no_traffic_and_hides_no_other(cli, ports):
    """A card that counts elsewhere, and a function that may not read its counters, as a virtual one."""
    add_files(ports, "mlx5_0", {"counters/port_rcv_data": "50"})
    add_files(ports, "efa_0", {"state": "4: ACTIVE"})
    add_files(ports, "mlx5_9", {"counters/port_xmit_data": "N/A (no PMA)", "counters/port_rcv_data": ""})
    found = json.loads(cli("rdma", ports, "--seconds", 0.01, "--json").output)
    assert {port["device"]: len(port["traffic"]) for port in found} == {
        "efa_0/1": 0, "mlx5_0/1": 2, "mlx5_9/1": 0,
    }  # fmt: skip


def test_a_machine_without_ports_is_bad_usage(cli, tmp_path):
    done = cli("rdma", tmp_path)
    assert isinstance(done.exception, UsageError)
    assert str(tmp_path) in str(done.exception)


@pytest.mark.parametrize(("ok", "status"), [(True, 0), (False, 1)])
def test_a_failed_check_is_status_1(cli, monkeypatch, ok, status):
    row = {"check": "gemm_checksum", "ok": ok, "value": 0, "unit": "errors", "limit": None, "detail": "fine"}
    report = {"ok": ok, "checks": [row]}
    monkeypatch.setattr(pulsetrain.diagnostics.suite, "run", lambda **_: report)
    done = cli("diagnose", "--json")
    assert (json.loads(done.output), done.return_value) == (report, status)


def test_a_length_that_cannot_be_is_bad_usage(cli):
    assert isinstance(cli("diagnose", "--seconds", 0).exception, UsageError)


def test_traffic_shows_both_directions_of_a_port(cli):
    (row,) = json.loads(cli("traffic", "--device", "lo", "--seconds", 0.05, "--json").output)
    assert (row["device"], row["samples"] > 5) == ("lo", True)
    assert "transmit" in cli("traffic", "--device", "lo", "--seconds", 0.02).output


def test_traffic_of_a_port_that_cannot_be_read_is_bad_usage_only_if_it_was_named(cli, ports, monkeypatch):
    add_files(ports, "mlx5_0", {"counters/port_rcv_data": "50"})
    add_files(ports, "efa_0", {"state": "4: ACTIVE"})
    list_ports = port_sampling.ports
    monkeypatch.setattr(port_sampling, "ports", lambda **o: list_ports(ports / "none", ports, **o))
    (row,) = json.loads(cli("traffic", "--seconds", 0.02, "--json").output)
    assert row["device"] == "mlx5_0/1"
    error = cli("traffic", "--device", "efa_0/1").exception
    assert isinstance(error, UsageError)
    assert "efa_0/1 cannot be read" in str(error)


def test_a_port_that_is_not_there_is_bad_usage(cli):
    error = cli("traffic", "--device", "nosuch0").exception
    assert isinstance(error, UsageError)
    assert "nosuch0" in str(error)


LINKS = {"job": "gpt", "attempt": 0, "phase": "running", "nodes": ["a", "b", "c"], "rounds": 2, "reason": ""}
PORT = {"kind": "port", "name": "b/net", "node": "b", "reason": "out: 40% of the usual rate", "broken": False}


@pytest.mark.parametrize(
    ("found", "status", "words"),
    [
        (
            {"state": "healthy", "named": [], "silent": {}},
            0,
            "The links of 3 nodes are good, after 2 rounds.",
        ),
        ({"state": "found", "named": [PORT], "silent": {}}, 1, "out: 40% of the usual rate"),
        ({"state": "healthy", "named": [], "silent": {}, "rdma_ports": ["mlx5_0/1"]}, 0, "ib_write_bw"),
        (
            {"state": "healthy", "named": [], "silent": {}, "unmeasured": ["eth1", "eth2"]},
            0,
            "Measured over TCP.\nNot measured: eth1, eth2.\n",
        ),
        (
            {"state": "inconclusive", "named": [], "silent": {"d": "not connected"}, "reason": "too few"},
            0,
            "Inconclusive after 2 rounds: too few\nd took no part: not connected",
        ),
    ],
)
def test_links_of_a_job_are_measured_and_what_is_named_is_status_1(ask, canned_hub, found, status, words):
    canned_hub.answers["POST /v1/jobs/gpt/links"] = LINKS | found
    done = ask("diagnose", "--links", "gpt", "--limit-mbit", 100)
    assert (done.return_value, done.exception) == (status, None)
    assert words in done.output
    assert canned_hub.requests[-1][1]["limit_mbit"] == 100


def test_links_as_json_are_what_the_hub_says(ask, canned_hub):
    canned_hub.answers["POST /v1/jobs/gpt/links"] = told = LINKS | {
        "state": "healthy",
        "named": [],
        "silent": {},
    }
    assert json.loads(ask("diagnose", "--links", "gpt", "--json").output) == told


def test_links_of_a_job_that_nobody_knows_are_one_line(ask, canned_hub):
    done = ask("diagnose", "--links", "none")
    assert isinstance(done.exception, UsageError)


CHECKED = {"job": "gpt", "level": "full", "finds": "faulty nodes", "inconclusive": "", "seconds": 9.0}


@pytest.mark.parametrize(("result", "status"), [("passed", 0), ("busy", 0), ("failed", 1)])
def test_standbys_are_checked_and_one_that_fails_is_status_1(ask, canned_hub, result, status):
    row = {"node": "d", "result": result, "reason": "why not"}
    canned_hub.answers["POST /v1/checks"] = told = CHECKED | {"nodes": [row]}
    done = ask("diagnose", "--nodes", "d, e", "--level", "full", "--job", "gpt")
    assert (done.return_value, done.exception) == (status, None)
    assert f"d     {result}" in done.output
    asked = canned_hub.requests[-1][1]
    assert (asked["nodes"], asked["level"], asked["job"]) == (["d", "e"], "full", "gpt")
    assert json.loads(ask("diagnose", "--nodes", "d", "--json").output) == told


@pytest.mark.parametrize(
    "options",
    [
        ("--links", "gpt", "--nodes", "d"),
        ("--job", "gpt"),
        ("--level", "full"),
        ("--nodes", "d", "--limit-mbit", "5"),
    ],
)
def test_options_that_would_be_ignored_are_refused(ask, canned_hub, options):
    assert isinstance(ask("diagnose", *options).exception, UsageError)
    assert canned_hub.requests == []
