"""What became of an action is news of its own job, and not for ever."""

import pytest

from pulsetrain.dashboard import outcomes


@pytest.fixture
def two_jobs(source):
    jobs = source.answers["status"]["jobs"]
    jobs.append({**jobs[0], "job": "bert"})
    source.client.plan = {
        "job": "gpt", "node": "node-1", "ranks": [0], "allowed": True, "can_do": True, "why_not": "",
        "resume_step": 9, "lost_steps": 2, "standby": "node-5",
    }  # fmt: skip
    source.answers["nodes"] = [{"node": "node-1", "job": "gpt", "state": "active", "ranks": [0]}]
    jobs[0]["pending_hang"] = {"rank": 5, "since_ns": 1, "act_at_ns": None, "why": "It may only pause."}
    return source


def seen(shown, job=""):
    """The boxes of success as they are drawn now, with another job chosen where one is given."""
    if job:
        shown.app.query_params["job"] = job
    shown.app.run()
    assert not shown.app.exception
    return [box.value for box in shown.app.success]


@pytest.mark.parametrize(
    ("page", "plan", "reason", "do"),
    [
        ("nodes", "move_preempt", "move_reason", "move"),
        ("nodes", "dry_run", "reason", "evict"),
        ("overview", "hang_now", "hang_reason", "hang_decide"),
    ],
)
def test_what_became_of_an_action_is_said_of_its_own_job_for_a_minute(
    draw, two_jobs, monkeypatch, page, plan, reason, do
):
    shown = draw(page, node="node-1").click(plan)
    shown.app.text_input(key=reason).set_value("noon")
    shown.click(do)
    (said,) = seen(shown)
    assert said.startswith("gpt")
    assert said.find("noon") > 0
    assert seen(shown, "bert") == []
    assert seen(shown, "gpt") == [said]
    now_s = outcomes.time.monotonic()
    monkeypatch.setattr(outcomes.time, "monotonic", lambda: now_s + outcomes.NEWS_S)
    assert seen(shown) == []
