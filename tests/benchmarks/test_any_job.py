"""Units of work that are kept, gone on with, and reported."""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
import time

import pytest
from anyjob import costs, dealing, halves, parts, pauses, report, scripts, verdicts
from anyjob.kept import Kept
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.core.errors import PulsetrainError
from tests.repository import ROOT


def unit(name, *rows, fails=0):
    """A unit whose first runs break."""
    runs = []

    def run(folder):
        runs.append(folder)
        assert folder.is_dir()
        yield from rows
        if len(runs) <= fails:
            raise PulsetrainError("the job ended")

    return parts.Unit(name=name, run=run), runs


def test_finished_units_are_not_run_again(tmp_path):
    file = tmp_path / "rows.jsonl"
    first, ran = unit("idle/hub", {"what": "idle hub", "cpu_ratio": 0.02})
    parts.run([first], Kept(file), until_s=time.monotonic() + 60, logs=None)
    again = Kept(file)
    parts.run([first], again, until_s=time.monotonic() + 60, logs=None)
    assert len(ran) == 1
    assert report.result(again)["idle_hub_cpu_ratio"] == 0.02


def test_a_line_that_was_not_written_to_its_end_is_run_again(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"unit": "idle/hub", "what": "idle hub", "cpu_ratio": 0.03}\n{"unit": "demo/0", "wh')
    kept = Kept(file)
    assert kept.done("idle/hub")
    assert not kept.done("demo/0")


def test_nothing_begins_after_the_time(tmp_path):
    one, ran = unit("demo/0", {"what": "demo"})
    parts.run([one], Kept(None), until_s=time.monotonic() - 1, logs=None)
    assert ran == []


def test_a_unit_that_breaks_is_tried_again_and_told():
    one, ran = unit("demo/0", {"what": "demo", "step_ratio": 1.2}, fails=1)
    kept = Kept(None)
    parts.run([one], kept, until_s=time.monotonic() + 60, logs=None)
    assert len(ran) == 2
    said = report.result(kept)
    assert [broken["unit"] for broken in said["broken"]] == ["demo/0"]
    assert said["demo_step_ratio"] == 1.2


def test_every_field_is_there_without_any_row():
    said = report.result(Kept(None))
    assert said["slow"]["trials"] == said["clean_windows"] == said["false_alarms"] == 0
    assert said["demo_step_ratio"] is said["idle_hub_cpu_ratio"] is None
    assert said["scripts"] == []
    assert said["pauses"]["runs"] == 0
    assert list(report.lines(Kept(None)))


def test_processor_time_of_a_process_grows_and_of_none_is_nothing():
    before = costs.cpu_s([os.getpid()])
    while costs.cpu_s([os.getpid()]) < before + 0.02:
        sum(range(10_000))
    assert costs.cpu_s([2**22 + 1]) == 0


def pair(ours_s=0.1, plain_s=0.1, final="1.25", exit_=0, job="ddp"):
    plain = {"exit": 0, "final_loss": "1.25", "steps": 120, "step_s": plain_s, "cpu_s": 0.2}
    ours = {"exit": exit_, "final_loss": final, "steps": 120, "step_s": ours_s, "cpu_s": 0.21}
    return {"what": "pair", "job": job, "torchrun": plain, "pulsetrain": ours}


def test_the_step_ratio_is_the_median_over_pairs():
    (said,) = scripts.table([pair(0.1), pair(0.101), pair(0.2)])
    assert (said["step_ratio"], said["same_result"], said["pairs"]) == (1.01, True, 3)
    assert said["rank_cpu_ratio"] == pytest.approx(1.05)
    assert said["collectives_match"] is None


@pytest.mark.parametrize("other", [{"final": "1.26"}, {"exit_": 1}, {"final": None}])
def test_another_loss_or_status_is_another_result(other):
    (said,) = scripts.table([pair(), pair(**other)])
    assert not said["same_result"]


def test_a_wrong_count_of_collectives_is_told():
    about = {
        "what": "recording",
        "job": "ddp",
        "same_result": True,
        "steps": True,
        "phases": True,
        "loss": False,
    }
    (said,) = scripts.table([pair(), about | {"collectives_match": False}])
    assert said["collectives_match"] is False
    assert said["recorded"] == {"steps": True, "phases": True, "loss": False}


@given(st.floats(0.01, 1.0), st.integers(0, 10_000))
def test_a_late_look_at_the_log_does_not_change_a_step(step_s, seed):
    """Lines are seen up to a fifth of a step late."""
    draw = random.Random(seed)
    stamps = {step: step * step_s + draw.uniform(0, 0.2 * step_s) for step in range(120)}
    assert scripts.step_s(stamps) == pytest.approx(step_s, rel=0.01)


def test_steps_of_a_young_job_do_not_count_where_that_is_wanted():
    slow = {step: 0.5 * step for step in range(60)}
    quick = {60 + step: 30.0 + 0.2 * step for step in range(60)}
    assert scripts.step_s(slow | quick, after_s=30.0) == pytest.approx(0.2)
    assert scripts.step_s(slow | quick, after_s=60.0) is None


def pause(kind="save", restarts=0, exit_=0, **more):
    return {
        "what": "pause", "kind": kind, "seconds": 5, "save": True, "exit": exit_, "finished": exit_ == 0,
        "restarts": restarts, "healed_s": None, "named": [], **more,
    }  # fmt: skip


def test_restarts_of_pauses_are_counted():
    said = pauses.pauses([pause(), pause("loader", 2), pause(exit_=1)])
    assert (said["runs"], said["restarts"], said["finished"]) == (3, 2, 2)
    assert said["by"]["loader"] == {"runs": 1, "restarts": 2}


def hang(after_s, healed_s, subject="1"):
    named = {"kind": "hang", "subject_type": "rank", "subject": subject, "severity": "critical"}
    return pause("stop", 1, named=[{"after_s": after_s, **named}], healed_s=healed_s) | {"what": "hang"}


def test_a_hang_is_named_by_its_own_rank_in_time_and_healed_in_time():
    said = pauses.hangs([hang(2.0, 20.0), hang(6.0, 61.0), hang(2.0, None, subject="0")])
    assert (said["runs"], said["named"], said["healed"]) == (3, 1, 1)


def test_there_are_fifty_eight_pauses_and_no_two_of_a_group_share_a_name():
    groups = pauses.groups()
    assert sum(map(len, groups)) == 58
    assert all(len(set(group)) == len(group) for group in groups)


def test_a_job_that_was_launched_again_is_counted_once_for_each_launch():
    window = {"what": "clean", "session": "a", "try": 0, "unit": "clean/a"}
    rows = [window | {"attempt": attempt} for attempt in (0, 1, 1)]
    assert report.restarts([*rows, window | {"session": "b", "attempt": 0}]) == 1


JOBS = ("ddp", "fsdp2", "moe")


@given(st.integers(1, 120), st.integers(0, 50))
def test_faults_are_dealt_whole_and_repeatably(trials, seed):
    hands = dealing.deal(JOBS, trials, seed)
    assert hands == dealing.deal(JOBS, trials, seed)
    assert sum(len(hand.faults) for hand in hands) == trials
    assert {hand.job for hand in hands} <= set(JOBS)
    for hand in hands:
        assert all(f.plan.kind not in dealing.LAST for f in hand.faults[:-1])
        assert all(one.onset + one.plan.steps <= two.onset for one, two in itertools.pairwise(hand.faults))


def test_without_phases_nothing_is_dealt_that_shows_in_phases_alone():
    hands = dealing.deal(JOBS, 200, 1)
    kinds = {
        variant: {f.plan.kind for h in hands if h.variant == variant for f in h.faults}
        for variant in dealing.VARIANTS
    }
    assert kinds["auto"] == {*dealing.LASTING, *dealing.LAST}
    assert kinds["no_auto"] == kinds["auto"] - dealing.NEEDS_PHASES


def test_each_half_has_jobs_of_its_own():
    assert halves.half_of("ddp") == "tuned"
    assert halves.half_of("pipeline") == "held_out"


def test_every_kind_of_row_has_a_line():
    rows = [pair(), pause(), {"what": "broken", "reason": "x"}, {"what": "idle hub", "cpu_ratio": 0.01}]
    assert all(verdicts.line(row) for row in rows)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.integration
def test_a_quick_run_watches_a_slow_rank_and_leaves_a_pause_alone(tmp_path):
    parts_ = ["--part", "slow", "--part", "pauses", "--variants", "instrumented"]
    command = [sys.executable, ROOT / "benchmarks" / "any_job.py", "--quick", *parts_]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["broken"] == []
    assert (said["slow"]["trials"], said["clean_windows"], said["restarts"]) == (1, 1, 0)
    assert (said["pauses"]["runs"], said["pauses"]["restarts"], said["pauses"]["finished"]) == (1, 0, 1)
