"""The page Pool."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

import pulsetrain.dashboard
from tests.dashboard.conftest import JOB

APP = Path(pulsetrain.dashboard.__file__).with_name("app.py")
NODES = [{"node": f"n<{i}>", "ranks": [i]} for i in range(6)]


@pytest.fixture
def pool(source):
    """A pool with one job that runs and one that waits."""
    action = {
        "ts_ns": time.time_ns() - 60 * 10**9, "what": "preempt", "job": "sweep", "from": {"m": 2}, "to": {},
        "reason": "room for gpt", "price_device_s": 1234.4,
    }  # fmt: skip
    jobs = [
        {"job": "sweep", "tier": "basic", "promised": False, "devices": 0, "most_devices": 2,
         "hour_share": None, "why_waits": "no device is free"},
        {"job": "gpt", "tier": "premium", "promised": True, "devices": 6, "most_devices": 8,
         "hour_share": 0.91, "why_waits": ""},
    ]  # fmt: skip
    shared = {"machines": {"m": {"devices": 8, "used": 6}}, "jobs": jobs, "actions": [action]}
    source.answers["status"] = {"jobs": [{**JOB, "nodes": NODES}], "hub": {}, "pool": shared}
    return shared


def test_each_job_has_its_tier_state_nodes_and_share(draw, pool):
    shown = draw("pool")
    assert "6 of 8 devices in use on 1 machine" in shown.text
    gpt, sweep = shown.rows()
    assert [gpt[i] for i in (0, 1, 3, 5, 6, 7)] == [
        "gpt", "premium", "6 of 8", "91.0% ▲ below 95%", "yes", "-",
    ]  # fmt: skip
    assert "hung" in gpt[2]
    assert gpt[4] == "n<0>, n<1>, n<2>, n<3> and 2 more"
    assert [sweep[i] for i in (0, 3, 4, 5, 7)] == ["sweep", "0 of 2", "-", "-", "waits: no device is free"]


def test_actions_say_when_what_and_why(draw, pool):
    (action,) = draw("pool").rows(1)
    assert action[0].startswith("1 min")
    assert action[1:] == ["pre-empt", "sweep", "m 2 → nothing", "room for gpt", "1,234"]


def test_a_pool_without_jobs_says_how_to_start_one(draw, pool):
    pool.update(jobs=[], actions=[])
    shown = draw("pool").text
    assert "No job shares the pool now." in shown
    assert "The pool has done nothing yet." in shown


def test_a_hub_without_a_pool_says_so(draw):
    assert "This hub has no pool" in draw("pool").text


def test_only_a_hub_with_a_pool_offers_the_page(source, pool):
    def visibility():
        app = AppTest.from_file(str(APP), default_timeout=30)
        app.run()
        assert not app.exception
        return app.session_state["pages"]["pool"].visibility

    assert visibility() == "visible"
    source.answers["status"]["pool"] = None
    assert visibility() == "hidden"
