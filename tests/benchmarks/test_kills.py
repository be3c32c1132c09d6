"""The benchmark that kills something at each stage of a move: its points, its judgement, and three points."""

import json
import sys
from collections import Counter

import pytest
from moving import kill_draw, kill_judge, kills, staged_hub

from pulsetrain.diagnostics import process_dump


def did(rank, attempt, word, *steps):
    return [(rank, attempt, 100 * attempt + rank, word, step) for step in steps]


def test_points_of_a_seed_stay_the_same_when_more_are_drawn():
    assert kill_draw.draw(7, 20) == kill_draw.draw(7, 50)[:20]
    assert kill_draw.draw(7, 20) != kill_draw.draw(8, 20)


def test_fifty_points_come_to_every_stage_of_every_kind_and_kill_each_kind_of_process():
    points = kill_draw.draw(1, 50)
    stages = {(point.kind, point.stage) for point in points}
    assert stages == {(kind, stage) for kind, of in kill_draw.STAGES.items() for stage in of}
    assert min(Counter((p.kind, p.victim) for p in points).values()) >= 2


def test_no_rank_is_to_be_killed_where_none_runs():
    points = [p for seed in range(20) for p in kill_draw.draw(seed, 50)]
    assert not [p for p in points if p.victim == "rank" and p.stage in kill_draw.NO_RANKS]
    assert not [p for p in points if p.other and (p.victim != "agent" or p.kind == "image")]


def test_a_host_that_cannot_dump_processes_has_points_without_images():
    assert {p.kind for p in kill_draw.draw(1, 30, images=False)} == {"preempt", "migrate"}


def test_an_attempt_that_begins_before_a_saved_step_has_lost_it():
    lines = did(0, 1, "restored", 49) + did(1, 1, "restored", 49)
    assert kill_judge.lost(lines, after=0, bound=49) == []
    assert kill_judge.lost(lines, after=1, bound=60) == []
    [why] = kill_judge.lost(lines, after=0, bound=50)
    assert "attempt 1" in why


def test_only_what_all_ranks_have_saved_in_one_attempt_must_not_be_lost():
    lines = did(0, 0, "saved", 50, 51, 52) + did(1, 0, "saved", 50, 51) + did(0, 1, "saved", 60)
    assert kill_judge.saved(lines) == 51
    assert kill_judge.saved([]) == -1


def test_steps_that_are_done_again_are_counted_once_for_all_ranks():
    lines = did(0, 0, "did", 1, 2, 3) + did(0, 1, "did", 2, 3) + did(1, 0, "did", 1, 2) + did(1, 1, "did", 2)
    assert kill_judge.redone(lines) == 2


def test_ranks_that_go_on_saving_every_step_are_named():
    assert kill_judge.still_saves(did(0, 1, "saved", 400) + did(1, 1, "saved", *range(440, 450)), 450)
    assert not kill_judge.still_saves(did(0, 1, "saved", *range(300, 400)), 450)
    moved_late = did(0, 1, "saved", *range(400, 440)) + did(0, 2, "restored", 439)
    assert not kill_judge.still_saves(moved_late, 450)


def test_a_rank_that_runs_twice_is_named():
    assert kill_judge.doubled({0: [1], 1: [2, 3]}) == ["rank 1 runs 2 times"]


def test_the_report_says_why_points_failed():
    point = {"kind": "preempt", "stage": "saving", "victim": "hub", "redone": 1}
    rows = [
        {**point, "number": 0, "passed": True, "worst_s": 2.0, "wrong": []},
        {**point, "number": 1, "passed": False, "worst_s": 9.0, "wrong": ["it stands"]},
    ]
    found = kills.report(rows)
    assert (found["kill_points"], found["kill_passed"], found["kill_worst_s"]) == (2, 1, 2.0)
    assert found["kill_failed"] == [
        {"number": 1, "kind": "preempt", "stage": "saving", "victim": "hub", "wrong": ["it stands"]}
    ]
    assert kills.report([])["kill_worst_s"] is None


def test_points_that_are_kept_are_not_run_again(tmp_path, monkeypatch):
    def struck(point, folder, expected):
        done.append((point.number, expected))
        return {"what": "point", **vars(point), "passed": True, "wrong": [], "worst_s": 1.0}

    done = []
    monkeypatch.setattr(kills, "strike", struck)
    monkeypatch.setattr(kills, "undisturbed", lambda folder, kind: kind)
    monkeypatch.setattr(process_dump, "lacks", lambda: "criu is not installed")
    kept = tmp_path / "rows.jsonl"
    assert kills.run(quick=False, seed=1, points=2, resume=kept)["kill_passed"] == 2
    assert kills.run(quick=False, seed=1, points=4, resume=kept, beside=2)["kill_passed"] == 4
    assert sorted(done) == [(0, "preempt"), (1, "migrate"), (2, "preempt"), (3, "migrate")]
    assert len(kept.read_text().splitlines()) == 6


def test_the_hub_stands_still_only_at_the_stage_that_is_armed(tmp_path, monkeypatch):
    monkeypatch.setattr(staged_hub, "FOLDER", tmp_path)
    monkeypatch.setattr(staged_hub, "_known", lambda job: {"phase": "running"})
    (tmp_path / "armed").write_text("saving")
    (tmp_path / "go").touch()
    staged_hub.reach(None, "asked")
    assert not (tmp_path / "reached").exists()
    staged_hub.reach(None, "saving")
    assert json.loads((tmp_path / "reached").read_text()) == {"phase": "running"}
    assert not (tmp_path / "armed").exists()


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(600)
def test_jobs_end_as_they_would_have_whatever_is_killed_while_they_are_moved(tmp_path):
    found = kills.run(quick=True, seed=1, resume=tmp_path / "rows.jsonl")
    print(found, file=sys.stderr)
    assert found["kill_points"] == found["kill_passed"] == 3
