"""A pool of devices on paper, at the command line."""

from __future__ import annotations

import json

from pulsetrain.core.errors import ConfigError

SMALL = ("simulate", "schedule", "--set", "devices=64", "--set", "largest_devices=16", "--set", "jobs=20")


def test_what_each_tier_got_of_a_pool(cli):
    words = (*SMALL, "--set", "days=1")
    answer = json.loads(cli(*words, "--json").output)
    assert [each["tier"] for each in answer["tiers"]] == ["premium", "standard", "basic"]
    assert answer["tiers"][0]["worst_share"] >= 0.95
    lines = cli(*words).output.splitlines()
    assert lines[0].startswith("simulated: 64 devices, 1 days, 20 jobs")
    assert [line.split()[0] for line in lines[2:]] == ["premium", "standard", "basic"]


def test_an_impossible_pool_is_bad_usage(cli):
    done = cli(*SMALL, "--set", "days=0")
    assert isinstance(done.exception, ConfigError)
    assert "days" in str(done.exception)
