"""The page Checkpoints."""

import time

import pytest


@pytest.fixture
def checkpoints(source):
    now = time.time_ns()
    done = {"attempt": 1, "step": 119, "ranks": 8, "bytes": 3 << 20, "ts_ns": now}
    source.stored |= {
        "checkpoints": [
            {**done, "stage": "copy", "tier": "memory", "longest_ns": 5_000_000},
            {**done, "stage": "replicate", "tier": "peer", "longest_ns": 21_000_000, "step": 118},
        ],
        "checkpoint_tiers": [
            {"tier": "memory", "step": 119, "bytes": 24 << 20, "copies": 8, "ranks": 8, "ts_ns": now},
            {"tier": "peer", "step": 118, "bytes": 24 << 20, "copies": 16, "ranks": 8, "ts_ns": now},
        ],
        "progress": [{"last_step": 119, "step_ns": 250_000_000}],
    }
    return source


def test_what_a_failure_now_would_cost_comes_first(draw, checkpoints):
    shown = draw("checkpoints")
    assert "The loss of a node would cost 1 step: the job would resume from step 118" in shown.text
    held, costs, stages = shown.rows(0), shown.rows(1), shown.rows(2)
    assert [row[:2] for row in held] == [["memory", "119"], ["peer", "118"]]
    assert held[1][4] == "2"
    assert costs[0] == ["a rank", "119", "memory", "0", "0 ns", "-"]
    assert costs[2][1:3] == ["the first", "-"]
    assert [row[0] for row in stages] == ["119", "118"]
    assert stages[0][4:] == ["8 ranks, 5.00 ms", "-"]


def test_a_job_without_checkpoints_says_how_to_save(draw):
    text = draw("checkpoints").text
    assert "No data: no checkpoint of this job is on record." in text
    assert "pulsetrain.Checkpointer" in text


def test_checkpoints_of_the_chosen_time(draw, checkpoints):
    draw("checkpoints", **{"from": "2026-11-25T03:00", "to": "2026-11-25T03:30"})
    (options,) = [dict(options) for view, _, options in checkpoints.asked if view == "checkpoints"]
    assert (options["from_ns"], options["steps"]) == (1_795_575_600 * 10**9, 200)
    checkpoints.stored["checkpoints"] = []
    assert "no checkpoint of this job was reported in this time" in draw("checkpoints", last="1 day").text
