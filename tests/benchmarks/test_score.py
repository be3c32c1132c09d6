"""The campaign's arithmetic: intervals, judging a trial, reliability, and plans that repeat themselves."""

from __future__ import annotations

import random

import pytest
from campaign import plan
from hypothesis import given
from hypothesis import strategies as st
from trials import kinds, report, score
from trials.watching import LEAD, timetable


def finding(kind="straggler", subject=("rank", "3"), confidence=0.9, severity="warning"):
    return {
        "kind": kind, "subject_type": subject[0], "subject": subject[1], "severity": severity,
        "confidence": confidence, "stated": confidence, "summary": "", "numbers": {},
    }  # fmt: skip


def trial(*findings, roots=(), subjects=(("rank", "3"),), struck=(3,), within=30, steps=20):
    look = {
        "steps": steps, "seconds": 1.5, "findings": list(findings), "abstained": [],
        "hypotheses": list(roots), "root_confidence": 0.9,
    }  # fmt: skip
    return {
        "what": "trial", "session": 0, "kind": "slow_rank", "kinds": ["straggler", "fail_slow"],
        "subjects": [list(s) for s in subjects], "struck": list(struck), "nodes": ["n1"], "within": within,
        "stalls": False, "looks": [look],
    }  # fmt: skip


@given(st.integers(0, 400), st.integers(1, 400))
def test_an_interval_holds_its_proportion_and_narrows(hits, of):
    hits = min(hits, of)
    low, high = score.wilson(hits, of)
    assert 0 <= low <= hits / of + 1e-9
    assert hits / of <= high + 1e-9 <= 1 + 1e-9
    tighter = score.wilson(10 * hits, 10 * of)
    assert tighter[1] - tighter[0] < high - low


def test_published_values_of_the_interval():
    assert score.wilson(0, 300)[1] == pytest.approx(0.0126, abs=1e-3)
    assert score.wilson(95, 100)[0] == pytest.approx(0.8882, abs=1e-3)


def test_a_trial_that_is_named_is_right_and_a_neighbour_is_not():
    good = score.judge(trial(finding(), roots=["rank 3", "rank 5"]))
    assert (good["detected"], good["kind"], good["top1"], good["victims"]) == (True, True, True, [])
    bad = score.judge(trial(finding(subject=("rank", "5")), roots=["rank 5", "rank 3"]))
    assert (bad["detected"], bad["top1"], bad["top3"]) == (False, False, True)
    assert (bad["victims"], bad["victim_root"]) == (["5"], True)


def test_nothing_said_is_a_miss_and_no_accusation():
    silent = score.judge(trial())
    assert not any(silent[what] for what in ("detected", "kind", "top1", "top3", "victims", "victim_root"))


def test_a_group_is_known_by_its_description():
    row = trial(finding("slow_link", ("group", "dp-2:11")), subjects=[("group", "dp-2")])
    assert score.names(row, "group", "dp-2:11")
    assert not score.names(row, "group", "dp-0:9")


def test_found_too_late_is_found_but_not_in_time():
    table = score.by_kind([trial(finding(), roots=["rank 3"], steps=20), trial(finding(), steps=44)])
    assert (table["slow_rank"]["detected"]["hits"], table["slow_rank"]["in_time"]) == (2, 1)


def test_a_false_alarm_is_a_warning_in_a_clean_window_and_information_is_not():
    def window(*findings):
        return {"what": "clean", "session": 1, "mode": "device", "seconds": 36.0, "findings": list(findings)}

    quiet = score.clean([window(), window(finding(severity="info")), window(finding())])
    assert (quiet["false_alarms"]["hits"], quiet["with_information"]["hits"]) == (1, 2)
    assert quiet["alarms_an_hour"] == pytest.approx(1 / 0.03, rel=1e-3)


def test_reliability_puts_every_statement_into_one_bin():
    draw = random.Random(0)
    told = [("x", draw.random(), draw.random() < 0.5) for _ in range(500)]
    assert sum(row["of"] for row in score.reliability([*told, ("x", 1.0, True)])) == 501


def test_calibration_learns_nothing_from_what_it_is_judged_by():
    rows = [dict(trial(finding(confidence=0.6)), session=i) for i in range(40)]
    held = score.held_out(rows)
    assert len(held) == 40
    assert all(0.9 < confidence <= 0.99 for _, confidence, _ in held)
    assert "straggler," in report.table(rows, "a test")


def test_weights_cover_every_kind_and_counts_add_up():
    assert set(kinds.weights()) == set(kinds.KINDS)
    assert sum(kinds.weights().values()) == pytest.approx(1)
    assert len(kinds.KINDS) >= 20
    for trials in (31, 200, 777):
        assert sum(kinds.counts(trials).values()) == trials


def test_one_seed_is_one_campaign_and_another_is_another():
    assert plan(60, 3, 80) == plan(60, 3, 80) != plan(60, 4, 80)
    tables = plan(200, 0, 300)
    assert sum(len(t.slots) for t in tables) == 200
    assert sum(len(t.slots) + t.clean for t in tables) >= 300


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_a_fault_lies_in_its_slot_after_clean_steps(kind):
    table = timetable(0, "device", ["nan", kind], seed=1)
    first, second = table.slots
    assert second.since > first.until
    assert second.onset - second.since >= LEAD
    assert all(second.onset <= f.step <= f.last_step <= second.until for f in second.plan.faults)
    assert second.until < table.steps


def test_the_figures_that_other_programs_read_count_trials_and_windows():
    window = {"what": "clean", "session": 1, "mode": "device", "seconds": 36.0, "findings": [finding()]}
    rows = [trial(finding(), roots=["rank 3"]), trial(), {**window, "findings": []}, window]
    assert score.counted(rows) == {
        "trials": 2,
        "kind_correct": 1,
        "top1": 1,
        "top3": 1,
        "clean_windows": 2,
        "false_alarms": 1,
        "abstained": 0,
        "mttd_p50_s": 1.5,
        "mttd_p95_s": 1.5,
    }
