"""`pulsetrain checkpoint`: how often to save, and storages that hold nothing."""

import json

import pytest

from pulsetrain.core.errors import UsageError


def test_advice_is_an_interval_and_what_is_lost(cli):
    words = ("--step-s", 12, "--stall-s", 0.4, "--save-s", 30, "--mttf-s", 86400)
    first, second = cli("checkpoint", "advise", *words).output.splitlines()
    assert first.startswith("save every 22 steps (264 s): ")
    assert second == "lost to saving, recomputing and recovering: 0.41% of the time"


def test_the_rate_of_nodes_stands_for_the_jobs(cli):
    by_node = ("--failures-per-node-day", 0.01, "--nodes", 100)
    answers = [
        json.loads(cli("checkpoint", "advise", "--step-s", 5, "--stall-s", 1, *rate, "--json").output)
        for rate in (by_node, ("--mttf-s", 86400))
    ]
    assert answers[0]["every_steps"] == answers[1]["every_steps"]
    assert answers[0]["mttf_s"] == pytest.approx(86400)


def test_advice_needs_a_rate_of_failures(cli):
    assert isinstance(cli("checkpoint", "advise", "--step-s", 5).exception, UsageError)


@pytest.mark.parametrize("words", [("ls",), ("verify",), ("export", "-o", "out")])
def test_a_storage_without_checkpoints_is_bad_usage(cli, tmp_path, words):
    done = cli("checkpoint", *words, "--storage", tmp_path)
    assert isinstance(done.exception, UsageError)
    assert str(tmp_path) in str(done.exception)
