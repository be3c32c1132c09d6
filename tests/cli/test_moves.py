"""`pulsetrain preempt`, `resume` and `migrate`."""

from __future__ import annotations

import click
import pytest

from pulsetrain.cli.moves import sentence

PATH = "/v1/jobs/gpt/moves"
ANSWER = {
    "job": "gpt", "what": "preempt", "node": "", "state": "running", "step": 12, "resume_step": 10,
    "lost_steps": 2, "standby": None, "dry_run": False, "can_do": True, "why_not": "",
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "will be pre-empted once a newer checkpoint is there"),
        ({"dry_run": True, "resume_step": -1, "lost_steps": 13}, "begin anew and do 13 steps again"),
        (
            {"what": "migrate", "node": "b", "standby": "z"},
            "will be taken off b once a newer checkpoint is there. z takes over.",
        ),
        ({"what": "resume"}, "goes on."),
        ({"what": "resume", "on_nodes": ["c", "d"]}, "goes on on c, d."),
        (
            {"what": "resize", "devices": 4, "nodes": 1, "how": "turns", "step_ratio": 2.0},
            "uses 4 devices. Its ranks take turns on them. A step takes up to 2 times as long.",
        ),
        ({"what": "resume", "dry_run": True}, "would go on."),
        ({"what": "resume", "waits_for": "pool"}, "goes on once the pool has devices for it."),
        ({"dry_run": True, "process_dump": "processes are not dumped"}, " Processes are not dumped."),
        (
            {"process_dump": "processes are not dumped (no criu on a)"},
            "once a newer checkpoint is there. Processes are not dumped (no criu on a).",
        ),
        (
            {"process_dump": ""},
            "gpt will be pre-empted. Its processes are dumped, and no step is done again.",
        ),
        ({"dry_run": True, "process_dump": ""}, "gpt would be pre-empted. Its processes are dumped"),
        ({"dry_run": True, "why_not": "no standby"}, "cannot be done: no standby"),
    ],
)
def test_the_answer_is_one_sentence(changes, words):
    assert words in sentence(ANSWER | changes)


@pytest.mark.parametrize(
    ("arguments", "body"),
    [
        (("preempt", "gpt", "--wait", "5", "--lose-progress"), {"wait_s": 5.0, "lose_progress": True}),
        (("migrate", "gpt", "--from", "b", "--dry-run"), {"node": "b", "dry_run": True, "wait_s": 60.0}),
        (("resume", "gpt"), {"what": "resume", "lose_progress": False}),
        (("resume", "gpt", "--lose-progress"), {"what": "resume", "lose_progress": True}),
        (("resume", "gpt", "--nodes", "c, d"), {"what": "resume", "nodes": ["c", "d"]}),
        (("resize", "gpt", "--devices", "4"), {"what": "resize", "devices": 4}),
    ],
)
def test_the_request_goes_to_the_hub_with_its_reason(ask, canned_hub, arguments, body):
    resized = {"devices": 4, "nodes": 1, "how": "turns", "step_ratio": 2.0}
    canned_hub.answers[f"POST {PATH}"] = {**ANSWER, **resized}
    done = ask(*arguments, "--reason", "noon")
    assert done.exit_code == 0, done.output
    sent = canned_hub.requests[-1][1]
    assert {key: sent[key] for key in body} == body
    assert (sent["what"], sent["reason"]) == (arguments[0], "noon")


@pytest.mark.parametrize("nodes", ["", "c,,d"])
def test_empty_names_of_nodes_are_refused(ask, canned_hub, nodes):
    refused = ask("resume", "gpt", "--nodes", nodes, "--reason", "noon").exception
    assert isinstance(refused, click.BadParameter)
    assert "names of nodes, separated by commas" in str(refused)


def test_a_reason_is_required(ask, canned_hub):
    assert isinstance(ask("preempt", "gpt").exception, click.MissingParameter)


@pytest.mark.parametrize(("why_not", "status"), [("no standby", 1), ("", 0)])
def test_a_dry_run_of_what_cannot_be_done_exits_with_1(ask, canned_hub, why_not, status):
    canned_hub.answers[f"POST {PATH}"] = {**ANSWER, "dry_run": True, "why_not": why_not}
    assert ask("preempt", "gpt", "--reason", "noon", "--dry-run").return_value == status
