"""What `pulsetrain status` prints for people."""

from __future__ import annotations

import doctest

import click
import pytest

from pulsetrain.terminal import status_lines
from pulsetrain.terminal.view import Answers, view
from tests.terminal.answers import HANG, INCIDENT, NOW, PENDING, S, job, status


def lines(*jobs, past=(), **answers):
    seen = view(Answers(status=status(*jobs, past=past), **answers), here_ns=0)
    shown = [*(line for j in seen.jobs if j.runs_here for line in status_lines.job_lines(j, seen.now_ns))]
    return [click.unstyle(line) for line in [*shown, *status_lines.past_lines(seen)]]


def test_a_healthy_job_has_two_lines():
    assert lines(job()) == [
        "gpt: gpt is healthy.",
        "  ● healthy since 2026-09-21 14:10:00 UTC, 3 min 20 s ago. Step 1,234, 820 ms a step, attempt 1.",
    ]


def test_a_job_in_trouble_says_what_to_do_and_how_to_decide():
    shown = lines(job(says="hung", findings=[HANG], pending_hang=PENDING), incidents=[INCIDENT])
    assert shown[2:] == [
        "  What to do: Read its stack.",
        "  Decide: pulsetrain pending gpt --wait MINUTES | --now --reason TEXT",
    ]


@pytest.mark.parametrize("since_ns", [0, NOW - 5 * S])
def test_since_when_is_left_out_where_nobody_knows(since_ns):
    verdict = {"state": "slow", "sentence": "S.", "since_ns": since_ns}
    assert ("since" in lines(job(verdict=verdict))[1]) == bool(since_ns)


@pytest.mark.parametrize(
    ("described", "state", "told"),
    [
        ({"steps": "none"}, "running", True),
        ({"steps": "none"}, "finished", False),
        ({"steps": "inferred", "loss": "none"}, "finished", True),
        ({}, "running", False),
    ],
)
def test_a_job_that_was_over_at_once_does_not_say_how_it_was_instrumented(described, state, told):
    assert status_lines.tells_instrumentation({"instrumentation": described, "state": state}) is told


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"state": "waiting", "until_ns": 7200 * S},
            " of ann (a fix): waits for the next restart, at the latest in 2 h 00 min",
        ),
        ({"state": "waiting"}, " of ann (a fix): waits for the next restart, or for the next saved step"),
        (
            {"state": "waiting", "why": "it has no checkpoint"},
            " of ann (a fix): waits for the next restart, or for the next saved step: it has no checkpoint",
        ),
        ({"state": "trying"}, " of ann (a fix): is tried"),
        (
            {"state": "trying", "failed_attempts": ["exit code 1"]},
            " of ann (a fix): is tried, 1 attempts failed",
        ),
        ({"state": "in_force"}, ": in force"),
        ({"state": "cancelled", "why": "not yet"}, ": cancelled: not yet"),
    ],
)
def test_an_update_says_how_far_it_is(changes, words):
    update = {
        "number": 3, "state": "trying", "actor": "ann", "reason": "a fix", "until_ns": 0,
        "failed_attempts": [], "why": "",
    }  # fmt: skip
    assert status_lines.update_line(update | changes, 0) == f"Update 3{words}"


def test_an_update_of_a_job_that_is_over_waits_for_nothing():
    update = {"number": 3, "state": "waiting", "actor": "ann", "reason": "a fix", "until_ns": 0, "why": ""}
    expected = "Update 3 of ann (a fix): the job was over before it was in force"
    assert status_lines.update_line(update, 0, over=True) == expected
    assert status_lines.update_line(update | {"state": "in_force"}, 0, over=True) == "Update 3: in force"


def test_a_command_to_copy_has_the_name_as_a_shell_reads_it():
    hung = job(says="hung", findings=[HANG], pending_hang=PENDING, job='it "is" & a')
    shown = lines(hung, incidents=[INCIDENT])
    assert """pulsetrain pending 'it "is" & a' --wait""" in shown[-1]


def test_the_mfu_is_shown_where_it_is_known():
    detectors = [{"analyzer": "mfu", "numbers": {"mfu": 0.413}}]
    assert "MFU 41.3%" in lines(job(detectors=detectors))[1]


def test_jobs_on_record_are_one_line_each_and_not_endless():
    past = [job(f"j{n:02d}", "recorded", state="past") for n in range(12)]
    shown = lines(past=past)
    assert shown[:2] == ["On record:", "  ✓ j00: j00 is recorded."]
    assert shown[-1] == "  and 2 more"


def test_the_examples_are_true():
    assert doctest.testmod(status_lines).failed == 0
