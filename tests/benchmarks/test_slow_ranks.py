"""Plans of slow ranks, and judging what the hub said of them."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time

import psutil
import pytest
from anyjob import core_speed, plan, slowing, untouched, verdicts
from anyjob.launch import Script, StepLog
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.faults.throttle import Work

SCRIPT = Script(name="job", argv=("job.py",), nodes=2, ranks_per_node=2)
OWN_CORE = Script(name="job", argv=("job.py",), nodes=2, ranks_per_node=1)
WAYS = ("stops", "competitor", "quota")


def finding(subject=("rank", "2"), kind="straggler", severity="warning"):
    return {"kind": kind, "subject_type": subject[0], "subject": subject[1], "severity": severity}


def row(*looks, what="slow", before=(), struck=(2,), nodes=(), session="a"):
    return {
        "what": what, "session": session, "job": "job", "variant": "untouched", "pinned": True,
        "way": "stops", "factor": 1.5, "struck": list(struck), "nodes": list(nodes),
        "before": list(before), "steps": 30,
        "looks": [{"steps": steps, "findings": list(findings)} for steps, findings in looks],
    }  # fmt: skip


def test_the_struck_rank_in_time_is_named():
    verdict = verdicts.judge(row((11, [finding()])))
    assert verdict == {"named": True, "steps": 11, "wrong": []}


@pytest.mark.parametrize(
    "said",
    [
        finding(severity="info"),
        finding(kind="data_stall"),
        finding(("node", "n1")),
        finding(("job", ""), "fail_slow"),
    ],
)
def test_information_another_kind_the_job_or_a_node_with_a_healthy_rank_do_not_name(said):
    assert not verdicts.judge(row((5, [said])))["named"]


def test_too_late_is_not_named():
    verdict = verdicts.judge(row((31, [finding()])))
    assert (verdict["named"], verdict["steps"]) == (False, 31)


@pytest.mark.parametrize("subject", [("rank", "1"), ("node", "n0"), ("group", "dp"), ("link", "n0-n1")])
def test_anybody_else_is_wrong_beside_the_right_one_and_after_the_episode(subject):
    beside = verdicts.judge(row((5, [finding()]), (9, [finding(), finding(subject)])))
    assert (beside["named"], len(beside["wrong"])) == (True, 1)
    settle = row((4, [finding(subject)]), what="settle")
    assert len(verdicts.judge(row((5, [finding()])), settle)["wrong"]) == 1


def test_a_node_counts_where_all_its_ranks_are_struck():
    verdict = verdicts.judge(row((8, [finding(("node", "n1"))]), struck=(2, 3), nodes=("n1",)))
    assert (verdict["named"], verdict["wrong"]) == (True, [])


def test_what_was_open_before_does_not_count():
    old = finding(("rank", "0"))
    episode = row((0, [old]), (7, [old, finding()]), before=["straggler rank 0"])
    assert verdicts.judge(episode) == {"named": True, "steps": 7, "wrong": []}
    window = row((0, [old]), what="clean", before=["straggler rank 0"])
    assert verdicts.clean([window])["false_alarms"] == 0


def test_a_clean_window_with_an_accusation_is_one_false_alarm():
    windows = [
        row(what="clean"),
        row((3, [finding(severity="info")]), what="clean"),
        row((3, [finding(), finding(("rank", "1"))]), what="clean"),
    ]
    said = verdicts.clean(windows)
    assert (said["clean_windows"], said["false_alarms"]) == (3, 1)
    assert said["alarms"] == ["straggler rank 1", "straggler rank 2"]


def test_totals_add_up_over_jobs_ways_and_pinning():
    rows = [row((5, [finding()])), row(what="settle"), row((5, [finding(("rank", "0"))])), row(session="b")]
    said = verdicts.slow(rows)
    assert (said["trials"], said["named"], said["wrong"]) == (3, 1, 1)
    assert said["by"]["job/untouched"]["trials"] == said["by"]["way stops"]["trials"] == 3


@given(st.permutations([0, 1, 2, 3]), st.integers(0, 3))
def test_renaming_the_ranks_renames_the_answer(order, struck):
    def said(names, rank):
        looks = [
            (5, [finding(("rank", str(names[struck]))), finding(("rank", str(names[(struck + 1) % 4])))])
        ]
        return verdicts.judge(row(*looks, struck=(rank,)))

    plain, renamed = said([0, 1, 2, 3], struck), said(order, order[struck])
    assert plain["named"] == renamed["named"] is True
    assert len(plain["wrong"]) == len(renamed["wrong"]) == 1


def test_a_plan_repeats_itself_and_another_seed_is_another():
    def planned(seed):
        return plan.sessions(SCRIPT, OWN_CORE, "untouched", trials=20, clean=30, seed=seed, ways=WAYS)

    assert planned(1) == planned(1) != planned(2)
    assert sum(len(s.episodes) for s in planned(1)) == 20
    assert sum(len(s.episodes) + s.clean for s in planned(1)) == 30
    assert len({s.key for s in planned(1)}) == len(planned(1))


@given(st.integers(0, 1000))
def test_an_episode_is_within_limits(seed):
    one = plan.episode(random.Random(seed), SCRIPT, WAYS)
    assert 1.3 <= one.factor <= 2.0
    assert len(one.struck) == 1
    assert set(one.struck) <= set(range(4))


def test_a_competitor_needs_a_rank_with_a_core_of_its_own():
    made = plan.sessions(SCRIPT, OWN_CORE, "untouched", trials=40, clean=0, seed=0, ways=WAYS)
    ways = {s.pinned: {e.way for e in s.episodes} for s in made}
    assert ways[True] >= {"competitor"}
    assert "competitor" not in ways[False]
    assert {(s.pinned, s.script.ranks) for s in made} == {(True, 2), (False, 4)}


def test_steps_are_read_from_whole_lines_and_a_new_start_is_counted(tmp_path):
    path = tmp_path / "log"
    log = StepLog(path)
    assert log.look() == -1
    path.write_bytes(b"[0] step 1 loss 2.0\n[0] step 2 loss 1.9\n[0] step 3")
    assert log.look() == 2
    with path.open("ab") as file:
        file.write(b"7 loss 1.8\n[1] step 36 loss 2\n")
    assert (log.look(), log.count) == (36, 1)


@pytest.mark.integration
def test_a_competitor_makes_work_take_so_much_longer_and_leaves_nothing_behind():
    core, before = sorted(os.sched_getaffinity(0))[0], set(psutil.Process().children())
    busy = subprocess.Popen([sys.executable, "-c", "while True: sum(range(1000))"], start_new_session=True)
    try:
        os.sched_setaffinity(busy.pid, {core})
        with slowing.competitor(core, busy.pid, 2.0, peers=[]):
            account = Work(busy.pid)
            time.sleep(1.5)
            ran_s, queued_s = account.since()
        left = {child.pid for child in set(psutil.Process().children()) - before}
    finally:
        busy.kill()
        busy.wait()
    assert (ran_s + queued_s) / ran_s > 1.8
    assert left == {busy.pid}


@pytest.mark.alone
@pytest.mark.integration
@pytest.mark.skipif(not slowing.quota_allowed(), reason="control groups cannot be made here")
@pytest.mark.parametrize("count", [1, 3])
def test_a_quota_makes_work_take_so_much_longer_also_where_processes_queue_for_a_core(count):
    core, spin = sorted(os.sched_getaffinity(0))[0], "while True: sum(range(1000))"
    busy = [subprocess.Popen([sys.executable, "-c", spin], start_new_session=True) for _ in range(count)]
    try:
        for process in busy:
            os.sched_setaffinity(process.pid, {core})
        struck, peers = busy[0].pid, [process.pid for process in busy[1:]]
        with slowing.quota(struck, 1.6, peers):
            time.sleep(1.0)
            own, others = Work(struck), [Work(pid) for pid in peers]
            time.sleep(4.0)
            ran_s, queued_s = own.since()
            usual = slowing.queueing(others)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert (ran_s + queued_s) / ran_s / (1 + usual) == pytest.approx(1.6, rel=0.15)


@pytest.mark.integration
def test_fast_cores_get_larger_batches_so_that_steps_last_as_long_everywhere():
    assert core_speed.gflops() > 0
    slow, fast = (untouched.batch(32, 2, gflops) for gflops in (50.0, 100.0))
    assert fast == pytest.approx(2 * slow, abs=1)
    assert untouched.batch(32, 4, 1e-3) == 1
