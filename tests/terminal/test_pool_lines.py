"""The pool in the status."""

import doctest

from pulsetrain.terminal import pool_lines as module
from pulsetrain.terminal.pool_lines import pool_lines


def test_examples():
    assert doctest.testmod(module).failed == 0


def test_without_a_pool_there_is_no_line():
    assert list(pool_lines(None)) == []


def test_a_job_that_waits_says_why_and_actions_say_what_they_cost():
    job = {
        "job": "b",
        "tier": "basic",
        "promised": False,
        "devices": 0,
        "most_devices": 8,
        "hour_share": None,
    }
    action = {"what": "preempt", "job": "b", "reason": "premium job p needs devices", "price_device_s": 240.0}
    machines = {"a": {"devices": 8, "used": 8}, "c": {"devices": 8, "used": 0}}
    pool = {"machines": machines, "jobs": [{**job, "why_waits": "8 are needed"}], "actions": [action] * 5}
    assert list(pool_lines(pool)) == [
        "Pool: 8 of 16 devices in use on 2 machines.",
        "  b: basic, 0 of 8 devices, waits: 8 are needed",
        *["  preempt b: premium job p needs devices (240 device-seconds)"] * 3,
    ]
