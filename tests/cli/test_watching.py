"""How jobs are now: status and top."""

from __future__ import annotations

import json

import click
import pytest
from click.testing import CliRunner

import pulsetrain.cli.watching as module
from pulsetrain.cli import pulsetrain
from pulsetrain.core.errors import AuthError, Unavailable, UsageError
from pulsetrain.protocol.client import HubClient
from tests.terminal.answers import HANG, INCIDENT, alert, job, status

NODE = {
    "node": "node-a", "job": "gpt", "state": "active", "node_rank": 0, "ranks": [0, 1], "address": "10.0.0.1",
    "last_heartbeat_age_s": 0.4, "reason": "", "gauges": {"dropped_rows": 3, "dropped_spool_full": 3},
}  # fmt: skip
HUNG = job(says="hung", nodes=[NODE], findings=[HANG | {"evidence": '{"victims": [1]}'}])
LOOP = {
    "process": "hub", "node": "", "loop": "controller", "turns": 9, "failures": 0, "failures_in_a_row": 0,
    "last_error": "", "age_s": 0.2, "stale": False,
}  # fmt: skip


@pytest.fixture
def hub(canned_hub):
    """A hub with one job that hangs."""
    canned_hub.answers |= {
        "GET /v1/status": status(HUNG),
        "GET /v1/alerts": {"alerts": [alert()]},
        "GET /v1/incidents": {"incidents": [INCIDENT]},
    }
    return canned_hub


def test_status_says_how_each_job_is_what_to_do_and_what_nodes_dropped(ask, hub):
    lines = ask("status").output.splitlines()
    assert lines[0] == "gpt: gpt is hung."
    assert lines[1].startswith("  ■ hung since 2026-09-21 14:10:00 UTC, 3 min 20 s ago.")
    assert lines[2] == "  What to do: Read its stack."
    assert lines[4].split() == ["node-a", "active", "0", "0,", "1", "0.4", "spool_full", "3"]


def test_status_names_the_loops_that_are_stale_or_failed(ask, hub):
    failed = LOOP | {"loop": "live watch", "failures": 2, "last_error": "KeyError: 'x'"}
    hub.answers["GET /v1/status"] = status(HUNG) | {"loops": [LOOP, failed]}
    lines = ask("status").output.splitlines()
    assert lines[-3] == "Loops that are stale or had failures:"
    assert "live watch" in lines[-1]
    assert lines[-1].endswith("KeyError: 'x'")
    hub.answers["GET /v1/status"] = status(HUNG) | {"loops": [LOOP]}
    assert "Loops" not in ask("status").output


def test_status_says_what_the_script_saves_and_says_by_itself(ask, hub):
    own = {"step": 30, "bytes": 2_500_000, "age_s": 61.0, "path": "/c/30.pt", "complete": True}
    hub.answers["GET /v1/status"] = status(HUNG | {"own_checkpoint": own, "instrumentation": {"loss": "x"}})
    assert "Own checkpoint: step 30" in ask("status").output
    assert "Instrumentation: loss x" in ask("status").output


def test_status_says_how_a_job_was_updated(ask, hub):
    update = {"number": 2, "state": "rolled_back", "why": "exit code 1"}
    hub.answers["GET /v1/status"] = status(HUNG | {"update": update})
    assert "  Update 2: rolled back: exit code 1\n" in ask("status").output


def test_status_of_an_idle_hub_and_of_one_with_recordings(ask, canned_hub):
    canned_hub.answers["GET /v1/status"] = {"hub": {}, "jobs": []}
    assert ask("status").output == "No job has joined this hub.\n"
    canned_hub.answers["GET /v1/status"] = status(past=[job("old", "recorded", state="past")])
    assert "✓ old: old is recorded." in ask("status").output


def test_json_is_what_the_hub_says_with_evidence_as_an_object(ask, hub):
    report = json.loads(ask("status", "--json").output)
    assert report["jobs"][0]["findings"][0]["evidence"] == {"victims": [1]}
    assert report.keys() == status().keys()


@pytest.mark.parametrize(("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colours_are_for_terminals_and_no_color_is_respected(hub, environment, coloured):
    words = ["status", "--hub", hub.url, "--token", hub.token]
    done = CliRunner().invoke(pulsetrain, words, color=True, env=environment)
    assert ("\x1b[" in done.output) == coloured


class Stop(Exception):
    """Ends a watch."""


@pytest.fixture
def looks(monkeypatch):
    """Do something between two looks of a watch. It ends after the last."""

    def set_looks(*between):
        left = list(between)

        def sleep(seconds):
            if not left:
                raise Stop
            left.pop(0)()

        monkeypatch.setattr(module.time, "sleep", sleep)

    return set_looks


def test_a_watch_prints_again_when_something_changed(ask, hub, looks):
    def recover():
        hub.answers["GET /v1/status"] = status(job())

    looks(lambda: None, recover)
    done = ask("status", "--watch")
    assert isinstance(done.exception, Stop)
    assert [line for line in done.output.splitlines() if line.startswith("gpt: ")] == [
        "gpt: gpt is hung.", "gpt: gpt is healthy.",
    ]  # fmt: skip
    assert done.output.startswith("== ")


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_a_watch_says_once_that_the_hub_is_away_and_goes_on(ask, hub, looks, monkeypatch, flags):
    answering, away = HubClient.status, []

    def status_or_away(client):
        if away:
            raise Unavailable("hub h does not answer")
        return answering(client)

    monkeypatch.setattr(HubClient, "status", status_or_away)
    looks(lambda: away.append(True), lambda: None, away.clear)
    done = ask("status", "--watch", "5", *flags)
    assert done.output.count("No data: hub h does not answer. What is above is old. Still trying.") == 1
    assert ("No data" in done.stdout) == (not flags)
    assert done.stdout.count("gpt is hung.") == 2


def test_a_watch_goes_on_where_the_hub_fails_while_it_says_what_to_do(ask, hub, looks, monkeypatch):
    def lost(client):
        raise Unavailable("hub h does not answer")

    def hang():
        hub.answers["GET /v1/status"] = status(HUNG)
        monkeypatch.setattr(HubClient, "incidents", lost)

    answering = HubClient.incidents
    hub.answers["GET /v1/status"] = status(job())
    looks(hang, lambda: monkeypatch.setattr(HubClient, "incidents", answering))
    done = ask("status", "--watch")
    assert isinstance(done.exception, Stop)
    healthy, lost_line, hung = (done.output.index(words) for words in ("healthy.", "No data: hub h", "hung."))
    assert healthy < lost_line < hung
    assert "What to do: Read its stack." in done.output[hung:]


def test_a_watch_as_json_is_one_line_for_each_change(ask, hub, looks):
    looks(lambda: hub.answers.update({"GET /v1/status": status(job())}))
    done = ask("status", "--json", "--watch", "0.5")
    assert [json.loads(line)["jobs"][0]["verdict"]["state"] for line in done.stdout.splitlines()] == [
        "hung", "healthy",
    ]  # fmt: skip


@pytest.mark.parametrize("seconds", ["0", "nan", "inf"])
def test_a_watch_that_looks_too_often_or_never_is_bad_usage(ask, hub, seconds):
    assert isinstance(ask("status", "--watch", seconds).exception, click.UsageError)


def test_top_prints_one_screen_without_a_terminal(ask, hub, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    done = ask("top")
    assert done.return_value == 0
    for words in ("gpt is hung.", "What to do: Read its stack.", "slowest ranks", "alerts: 1 open"):
        assert words in done.output
    assert "\x1b" not in done.output
    assert max(map(len, done.output.splitlines())) <= 80


def test_top_as_json_is_one_object(ask, hub):
    answer = json.loads(ask("top", "gpt", "--json").output)
    assert [(j["job"], j["state"], j["to_do"]) for j in answer["jobs"]] == [
        ("gpt", "hung", "Read its stack."),
    ]  # fmt: skip
    assert (answer["stale"], answer["alerts"][0]["id"]) == (False, "a1")


def test_top_of_an_unknown_job_names_the_known_ones(ask, hub):
    done = ask("top", "bert")
    assert isinstance(done.exception, UsageError)
    assert "'bert'" in str(done.exception)
    assert "gpt" in str(done.exception)


@pytest.mark.parametrize("command", ["top", "status"])
def test_a_hub_that_refuses_or_is_away_is_an_error_and_never_a_healthy_job(cli, hub, command):
    done = cli(command, "--hub", hub.url, "--token", "wrong")
    assert isinstance(done.exception, AuthError)
    done = cli(command, "--hub", "http://127.0.0.1:9", "--token", "t")
    assert isinstance(done.exception, Unavailable)
    assert done.output == ""
