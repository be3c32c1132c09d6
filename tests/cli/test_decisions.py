"""`pulsetrain pending`."""

from __future__ import annotations

import pytest

from pulsetrain.cli.decisions import sentence
from pulsetrain.core.errors import UsageError

S = 10**9
PATH = "/v1/jobs/gpt/pending_hang"
HANG = {
    "rank": 3, "since_ns": 10 * S, "act_at_ns": 55 * S, "action": "restart", "why": "It may only pause.",
    "condition": "waits", "place": "", "decisions": ["wait", "now"],
}  # fmt: skip
ANSWER = {"job": "gpt", "decision": "", "dry_run": False, "can_do": True, "pending_hang": HANG}


def test_what_is_pending_is_one_sentence_with_the_time_that_is_left():
    assert sentence(ANSWER, 30 * S) == (
        "gpt: hangs at rank 3 for 20 s. It may only pause. It is restarted in 25 s."
    )
    told = ANSWER | {"pending_hang": HANG | {"act_at_ns": None}}
    assert sentence(told, 30 * S).endswith("It is not restarted.")


def test_a_decision_is_confirmed_and_a_dry_run_is_not():
    assert sentence(ANSWER | {"decision": "now"}, 0) == "gpt: is restarted now, as you said."
    assert "as you said" not in sentence(ANSWER | {"decision": "now", "dry_run": True}, 0)


def test_the_hub_is_asked_and_nothing_is_decided_without_a_decision(ask, canned_hub):
    canned_hub.answers[f"GET {PATH}"] = ANSWER
    done = ask("pending", "gpt")
    assert (done.exit_code, done.output.startswith("gpt: hangs at rank 3")) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "decision", "seconds"),
    [(("--wait", "30"), "wait", 1800.0), (("--now",), "now", 0.0)],
)
def test_a_decision_goes_to_the_hub_with_its_reason(ask, canned_hub, arguments, decision, seconds):
    canned_hub.answers[f"POST {PATH}"] = ANSWER | {"decision": decision}
    done = ask("pending", "gpt", *arguments, "--reason", "debugging")
    assert done.exit_code == 0, done.output
    body = canned_hub.requests[-1][1]
    assert (body["decision"], body["seconds"], body["reason"]) == (decision, seconds, "debugging")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("--now",), "--reason"), (("--now", "--wait", "5", "--reason", "r"), "give one of them")],
)
def test_bad_usage_is_one_line(ask, canned_hub, arguments, words):
    done = ask("pending", "gpt", *arguments)
    assert isinstance(done.exception, UsageError)
    assert words in str(done.exception)
