import math

import pytest

from pulsetrain.hub.kubernetes.hub_views import HubViews, view_of
from tests.protocol.fake_hub import fake_hub


def row(state="running", verdict="healthy", since_s=100.0, **nodes):
    return {
        "job": "gpt", "state": state, "since_ns": int(since_s * 1e9), "step": 7, "attempt": 2,
        "verdict": {"state": verdict, "sentence": "So it is."},
        "nodes": [{"node": name, "state": each} for name, each in nodes.items()],
    }  # fmt: skip


def test_nodes_are_told_by_what_they_are_to_the_job():
    said = row(a="active", b="standby", c="lost", d="evicted", e="left")
    said["nodes"][2]["gone_since_ns"] = 90_000_000_000
    view = view_of(said, 0)
    assert (view.step, view.attempt, view.sentence, view.ended) == (7, 2, "So it is.", "")
    assert view.standbys == {"b"}
    assert view.gone == {"c": 90.0, "d": math.inf}  # an older hub does not say when


@pytest.mark.parametrize("state", ["waiting", "checking", "starting"])
def test_no_standby_is_too_many_unless_the_job_trains(state):
    assert view_of(row(state, b="standby"), 0).standbys == set()


def test_a_job_is_served_while_one_of_its_agents_is_connected():
    there = row(a="active", b="lost")
    assert not view_of(there, 0).is_served
    there["nodes"][0]["connected"] = True
    assert view_of(there, 0).is_served
    assert view_of(there | {"state": "failed"}, 0).is_served is False


def test_nobody_is_gone_from_a_job_that_is_over():
    assert view_of(row("failed", "ended", a="lost"), 0).gone == {}


def test_a_job_that_a_signal_has_ended_goes_on():
    assert view_of(row("finished", "finished"), 0).ended == "finished"
    assert view_of(row("failed", "failed"), 0).ended == "failed"
    assert view_of(row("failed", "ended"), 0).ended == ""


def test_a_job_of_that_name_that_ended_before_is_another_one():
    assert view_of(row("finished", "finished", since_s=100), 101) is None
    assert view_of(row("running", "healthy", since_s=100), 101) is not None


def test_a_hub_is_asked_once_for_all_its_jobs():
    with fake_hub((200, {"hub": {}, "jobs": [row()]}), (200, {"hub": {}, "jobs": []})) as hub:
        views = HubViews({"PULSETRAIN_TOKEN": "t", "PULSETRAIN_DATA": "/nowhere"})
        assert views.view(hub.url, "gpt", 0).step == 7
        assert views.view(hub.url, "other", 0) is None
        assert len(hub.asked) == 1
        views.forget()
        assert views.view(hub.url, "gpt", 0) is None


def test_a_hub_that_is_away_knows_nothing():
    views = HubViews({"PULSETRAIN_TOKEN": "t", "PULSETRAIN_DATA": "/nowhere"})
    assert views.view("http://127.0.0.1:1", "gpt", 0) is None
