"""Which steps are usable, who is compared with whom, and times net of waits for a processor."""

from __future__ import annotations

import numpy as np
import pytest

from pulsetrain.analytics.slowness import stalls, straggler
from pulsetrain.analytics.slowness.timings import COMPUTED, from_matrices, running_ratio
from pulsetrain.analytics.verdict import Healthy, findings
from tests.analytics.fleet import fleet, timings


def test_warm_up_checkpoints_and_evaluation_are_no_usable_steps():
    columns = fleet(steps=30)
    columns["checkpoint"] = np.where(columns["step"] == 10, 0.5 * columns["duration_ns"], 0)
    evaluates = (columns["step"] == 20) & (columns["rank"] == 3)
    columns["other"] = np.where(evaluates, 0.5 * columns["duration_ns"], 0)
    assert set(range(30)) - set(np.flatnonzero(timings(columns).usable)) == {0, 1, 10, 20}


def test_a_phase_that_every_step_has_is_part_of_the_step():
    columns = fleet(steps=30)
    columns["other"] = np.where(columns["rank"] == 3, 0.5 * columns["duration_ns"], 0)
    assert timings(columns).usable.sum() == 28


def evaluating(ranks, *, longer):
    """A job of 60 steps. In every second one, one rank evaluates for a fifth of it, another one each time."""
    columns = fleet(ranks=ranks, steps=60)
    step, rank = columns["step"], columns["rank"]
    evaluates = (step % 2 == 0) & (rank == step // 2 % ranks)
    columns["other"] = np.where(evaluates, 0.2 * columns["duration_ns"], 0)
    columns["duration_ns"] = np.where((step % 2 == 0) & longer, 1.2, 1.0) * columns["duration_ns"]
    return columns


@pytest.mark.parametrize(("ranks", "longer", "usable"), [(40, False, 58), (40, True, 29), (8, False, 29)])
def test_few_ranks_that_evaluate_cost_no_step_where_nobody_waits_for_them(ranks, longer, usable):
    assert timings(evaluating(ranks, longer=longer)).usable.sum() == usable


def test_few_ranks_that_evaluate_hide_no_slow_rank_and_are_not_slow():
    columns = evaluating(40, longer=False)
    assert [type(v) for v in straggler.find(timings(columns))] == [Healthy]
    for part in COMPUTED:
        columns[part] = np.where(columns["rank"] == 7, 1.5, 1.0) * columns[part]
    (slow,) = findings(straggler.find(timings(columns)))
    assert (slow.subject_type, slow.subject) == ("rank", "7")


@pytest.mark.parametrize(
    ("part", "what"), [("checkpoint", "saves a checkpoint"), ("other", "category other")]
)
def test_a_job_of_which_hardly_a_step_is_usable_is_blind_and_says_why(part, what):
    columns = fleet(ranks=8, steps=60)
    busy = columns["rank"] == columns["step"] % 8
    columns[part] = np.where(busy, 0.2 * columns["duration_ns"], 0)
    job = timings(columns)
    said = [*straggler.find(job), *stalls.find(job, stalls.DATA)]
    assert all(v.blind and what in v.reason for v in said)
    assert timings(fleet(ranks=8, steps=10)).unusable == ""


def test_a_restart_in_the_middle_of_a_range_warms_up_at_its_own_first_step():
    assert timings(fleet(steps=30, first=100), first_step=100).usable.sum() == 28
    assert timings(fleet(steps=30, first=100), first_step=7).usable.sum() == 30


def test_cohorts_are_the_ranks_of_each_stage():
    cohorts = timings(fleet(ranks=8, stages=2)).cohorts
    assert [cohort.tolist() for cohort in cohorts] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [c.tolist() for c in from_matrices({"compute": np.ones((2, 3))}).cohorts] == [[0, 1, 2]]


def test_tokens_count_only_where_they_differ():
    columns = fleet(steps=10)
    assert timings(columns).varying_tokens() == 1.0
    columns["tokens"] = np.where(columns["rank"] == 1, 8192, 4096)
    assert timings(columns).varying_tokens()[0, :2].tolist() == [4096, 8192]


def waited(share):
    columns = fleet(steps=40)
    lost = share * columns["compute"]
    stretched = {part: columns[part] * (1 + share) for part in COMPUTED}
    return columns, timings({**columns, **stretched, "cpu_wait": lost})


def test_where_ranks_often_wait_for_a_processor_compute_is_net_of_it():
    columns, job = waited(0.5)
    net, own = job.parts["compute"], columns["compute"].reshape(40, 8)
    assert (net >= own - 1).all()
    usual = own >= np.quantile(own, 0.25, axis=0)
    assert net[usual] == pytest.approx(own[usual])
    assert job.measured("compute").reshape(-1) == pytest.approx(1.5 * columns["compute"])


def test_rare_waits_are_left_in():
    _, job = waited(0.01)
    assert job.running_ratio is None
    assert job.measured("compute") is job.parts["compute"]


def test_no_step_counts_for_less_than_its_rank_usually_needs():
    compute, wait = np.full((10, 2), 100.0), np.full((10, 2), 20.0)
    wait[3, 0] = 99.0
    ratio = running_ratio({"compute": compute, "cpu_wait": wait})
    assert ratio == pytest.approx(np.full((10, 2), 0.8))


def test_a_rank_without_spans_has_no_waits_taken_out():
    compute, wait = np.full((10, 2), 100.0), np.full((10, 2), 20.0)
    compute[:, 1] = np.nan
    ratio = running_ratio({"compute": compute, "cpu_wait": wait})
    assert ratio[:, 1].tolist() == [1.0] * 10


def test_a_finding_is_on_the_attempt_and_rounds_its_confidence():
    job = timings(fleet(steps=5))
    finding = job.finding(
        "x", "rank", "3", severity="info", confidence=0.12345, summary="s", evidence={"a": 1}
    )
    assert (finding.job, finding.ts_ns, finding.confidence, finding.evidence) == ("j", 1, 0.123, {"a": 1})
