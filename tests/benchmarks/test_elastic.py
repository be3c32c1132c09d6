"""Whether the benchmark of elastic jobs would notice what goes wrong, and prints what others read."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from elasticity import ntp, points, report, survivors
from elasticity.judge import judge, read
from elasticity.site import Shape

from pulsetrain.elastic import ElasticSampler
from tests.repository import ROOT

SAMPLES, BATCH = 24, 4
FIELDS = {
    "shrink_s", "survivors_s", "regrow_s", "points", "wrong", "samples_lost", "samples_doubled",
    "ntp_max_error", "ntp_overhead_ratio",
}  # fmt: skip


def ids_of(step, rank, world):
    sampler = ElasticSampler(SAMPLES, batch=BATCH, rank=rank, world=world)
    share = list(sampler)[step]
    return [index for micro in share.microbatches for index in micro]


def steps(first, last, world):
    """What ranks write of steps `first` to `last`."""
    return [
        row
        for step in range(first, last + 1)
        for rank in range(world)
        for row in (
            {"step": step, "world": world, "ids": ids_of(step, rank, world)},
            {"step": step, "world": world, "ids": [], "digests": {"w": f"{step}"}},
        )
    ]


def restored(step, world, digest=""):
    return [{"restored": step, "world": world, "digests": {"w": digest or str(step)}} for _ in range(world)]


def said(rows):
    return judge(rows, samples=SAMPLES, batch=BATCH)


def test_a_job_that_shrank_and_grew_without_a_loss_is_right():
    rows = {0: steps(0, 3, 2), 1: restored(2, 1) + steps(3, 4, 1), 2: restored(4, 2) + steps(5, 5, 2)}
    verdict = said(rows)
    assert (verdict["wrong"], verdict["restores"], verdict["steps"]) == ([], 2, 6)
    assert (verdict["samples_lost"], verdict["samples_doubled"]) == (0, 0)


def test_a_restore_of_other_bits_is_wrong():
    rows = {0: steps(0, 3, 2), 1: restored(2, 1, "other") + steps(3, 4, 1)}
    assert said(rows)["wrong"] == ["attempt 1: step 2 is not as any attempt has saved it"]


def test_ranks_that_restore_different_steps_are_wrong():
    rows = {0: steps(0, 3, 2), 1: [*restored(2, 2)[:1], *restored(3, 2)[:1]]}
    assert "different steps [2, 3]" in said(rows)["wrong"][0]


def test_a_job_that_begins_anew_is_wrong():
    assert said({0: steps(0, 3, 2), 1: steps(0, 0, 1)})["wrong"] == ["attempt 1 began anew"]


def test_samples_that_were_skipped_or_used_twice_are_counted():
    skipped = {0: steps(0, 1, 1) + steps(3, 3, 1)}
    assert said(skipped)["samples_lost"] == BATCH
    doubled = {0: steps(0, 1, 1)}
    doubled[0][2]["ids"].append(doubled[0][0]["ids"][0])
    assert said(doubled)["samples_doubled"] == 1


def test_a_rank_that_died_before_it_could_say_that_the_step_was_done_took_part_all_the_same():
    rows = {0: steps(0, 3, 2)[:-1], 1: restored(3, 1) + steps(4, 4, 1)}
    assert (said(rows)["samples_lost"], said(rows)["samples_doubled"]) == (0, 0)


def test_a_step_that_was_begun_and_not_done_does_not_count():
    begun = [row for row in steps(3, 3, 2) if "digests" not in row]
    rows = {0: steps(0, 2, 2) + begun, 1: restored(2, 1) + steps(3, 3, 1)}
    assert (said(rows)["samples_lost"], said(rows)["samples_doubled"]) == (0, 0)


def test_a_line_that_was_cut_off_does_not_count(tmp_path):
    (tmp_path / "attempt-0-rank-0.jsonl").write_text('{"step": 1}\n{"st')
    assert read(tmp_path) == {0: [{"step": 1}]}


def test_points_of_a_seed_are_the_same_and_take_up_to_three_nodes():
    drawn = points.draw(3, 60)
    assert drawn[:10] == points.draw(3, 10)
    assert {len(point.victims) for point in drawn} == {1, 2, 3}
    assert all(len(set(point.victims)) == len(point.victims) for point in drawn)


def test_a_shape_knows_how_many_ranks_fit_on_the_nodes_that_are_left():
    shape = Shape(nodes=4, nproc=2, tp=2, pp=2)
    assert [shape.ranks(nodes) for nodes in (1, 2, 3, 4)] == [0, 4, 4, 8]
    assert Shape(nodes=4, nproc=4, tp=2, pp=1).unit == 1


def test_fields_are_there_without_any_row_and_tell_why_one_is_missing():
    found = report.result([])
    assert set(found) >= FIELDS
    assert (found["survivors_s"], found["torchft_s"]) == (None, None)


def test_survivors_stand_still_for_the_median_of_the_runs():
    run = {"what": "survivors", "library": "pulsetrain", "survivors": 2}
    rows = [{**run, "stall_s": stall_s} for stall_s in (0.5, 9.0, 0.7)]
    found = report.result([*rows, {**run, "library": "torchft", "stall_s": None, "why_not": "no module"}])
    assert (found["survivors_s"], found["torchft_s"], found["torchft_why_not"]) == (0.7, None, "no module")


def test_a_process_that_was_killed_or_is_new_is_no_survivor():
    stayed = [(0, 3, 1.0), (1, 3, 1.1), (1, 2, 2.1), (2, 2, 2.2)]
    killed, new = [(0, 3, 1.0), (1, 3, 1.2)], [(1, 2, 2.1), (2, 2, 2.2)]
    assert survivors.stalls_s({1: stayed, 2: killed, 3: new}, killed_s=1.15) == [1.0]


def test_what_was_done_with_fewer_replicas_before_the_kill_does_not_count():
    before = [(step, 2, 0.1 * step) for step in range(survivors.STEPS_AFTER)]
    after = [(step, 2, 9.0 + 0.1 * step) for step in range(survivors.STEPS_AFTER)]
    assert not survivors.moved_on({1: before, 2: before}, killed_s=8.0)
    assert survivors.moved_on({1: after, 2: before + after, 3: []}, killed_s=8.0)


def test_what_jobs_found_is_added_up():
    job = {"what": "job", "wrong": ["x"], "samples_lost": 1, "samples_doubled": 2, "restores": 3, "steps": 4}
    point = {"what": "point", "ranks": 2, "shrink_s": 4.0, "regrow_s": 5.0}
    found = report.result([job, job, point, {"what": "ntp", "max_error": 1e-15, "overhead_ratio": 0.001}])
    assert (found["wrong"], found["samples_lost"], found["samples_doubled"], found["points"]) == (2, 2, 4, 1)
    assert (found["shrink_s"], found["regrow_s"], found["ntp_max_error"]) == (4.0, 5.0, 1e-15)


@pytest.mark.parametrize("degrees", ntp.DEGREES)
def test_moves_of_a_healthy_replica_hide_in_the_model(degrees):
    assert 0 < ntp.overhead_ratio(*degrees) <= 0.01


@pytest.mark.long
@pytest.mark.integration
@pytest.mark.timeout(600)
def test_a_quick_run_prints_every_field_and_finds_nothing_wrong():
    command = [sys.executable, str(ROOT / "benchmarks" / "elastic.py"), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=550, check=False)
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found) >= FIELDS
    assert (done.returncode, found["points"], found["wrong"]) == (0, 1, 0), done.stderr[-2000:]
