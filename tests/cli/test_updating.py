"""`pulsetrain update`."""

from __future__ import annotations

import doctest
import json

import click
import pytest

from pulsetrain.cli import updating
from pulsetrain.cli.updating import sentence
from pulsetrain.core.errors import UsageError

PATH = "/v1/jobs/gpt/updates"
ANSWER = {
    "job": "gpt", "what": "apply", "state": "running", "number": 3, "argv": ["train.py"], "environment": [],
    "until_ns": 1_800_000_000_000_000_000, "now": False, "step": 12, "dry_run": False, "can_do": True,
    "why_not": "", "lost_steps": 0, "risk": "",
    "price": {"stop_s": None, "lost_gpu_s": None, "ettr_1h_change": None},
}  # fmt: skip
PRICE = {"stop_s": 30.0, "lost_gpu_s": 3600.0, "ettr_1h_change": -0.01}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "update 3 comes into force with the next restart, at the latest"),
        ({"now": True}, "comes into force with the next restart, or at the next saved step."),
        ({"now": True, "risk": "all 9 steps may be lost"}, "saved step. All 9 steps may be lost."),
        ({"dry_run": True}, "would come into force"),
        ({"dry_run": True, "price": PRICE}, "GPU hour"),
        ({"what": "cancel", "dry_run": True}, "update 3 would be taken back."),
        ({"dry_run": True, "why_not": "update 2 is being tried"}, "cannot be done: update 2 is being tried"),
    ],
)
def test_the_answer_is_one_line(changes, words):
    told = sentence(ANSWER | changes)
    assert words in told
    assert "\n" not in told


@pytest.mark.parametrize(
    ("arguments", "body"),
    [
        (("--", "b.py", "--lr", "2", "--now"), {"what": "apply", "argv": ["b.py", "--lr", "2", "--now"]}),
        (("--env", "K=a=b", "--env", "EMPTY="), {"environment": {"K": "a=b", "EMPTY": ""}, "argv": []}),
        (("--now",), {"within_s": 0.0}),
        (("--within", "60"), {"within_s": 60.0}),
        (("--revert", "--dry-run"), {"what": "revert", "dry_run": True}),
        (("--cancel",), {"what": "cancel", "dry_run": False}),
    ],
)
def test_the_request_goes_to_the_hub_with_its_reason(cli, canned_hub, arguments, body):
    canned_hub.answers[f"POST {PATH}"] = ANSWER
    hub = ("--hub", canned_hub.url, "--token", canned_hub.token)
    done = cli("update", "gpt", *hub, "--reason", "a fix", *arguments)
    assert done.exit_code == 0, done.output
    sent = canned_hub.requests[-1][1]
    assert {key: sent[key] for key in body} == body
    assert sent["reason"] == "a fix"


def test_a_variable_without_a_value_has_that_of_the_caller(ask, canned_hub, monkeypatch):
    canned_hub.answers[f"POST {PATH}"] = ANSWER
    monkeypatch.setenv("API_KEY", "hunter2")
    monkeypatch.delenv("NOSUCH", raising=False)
    ask("update", "gpt", "--reason", "a fix", "--env", "API_KEY")
    assert canned_hub.requests[-1][1]["environment"] == {"API_KEY": "hunter2"}
    refused = ask("update", "gpt", "--reason", "a fix", "--env", "NOSUCH")
    assert "NOSUCH=VALUE" in str(refused.exception)


def test_the_hubs_own_time_holds_where_nobody_says_one(ask, canned_hub):
    canned_hub.answers[f"POST {PATH}"] = ANSWER
    ask("update", "gpt", "--reason", "a fix")
    assert "within_s" not in canned_hub.requests[-1][1]


def test_json_is_what_the_hub_says(ask, canned_hub):
    canned_hub.answers[f"POST {PATH}"] = ANSWER
    assert json.loads(ask("update", "gpt", "--reason", "a fix", "--json").output) == ANSWER


@pytest.mark.parametrize("both", [("--revert", "--cancel"), ("--now", "--within", "5")])
def test_options_that_exclude_each_other_are_refused(ask, canned_hub, both):
    assert isinstance(ask("update", "gpt", "--reason", "x", *both).exception, UsageError)
    assert canned_hub.requests == []


def test_a_reason_is_required(ask, canned_hub):
    assert isinstance(ask("update", "gpt").exception, click.MissingParameter)


def test_the_examples_of_the_docstrings_hold():
    assert doctest.testmod(updating).failed == 0


@pytest.mark.parametrize(("why_not", "status"), [("update 2 is being tried", 1), ("", 0)])
def test_a_dry_run_of_what_cannot_be_done_exits_with_1(ask, canned_hub, why_not, status):
    canned_hub.answers[f"POST {PATH}"] = {**ANSWER, "dry_run": True, "why_not": why_not}
    assert ask("update", "gpt", "--reason", "a fix", "--dry-run").return_value == status
