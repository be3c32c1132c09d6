"""Stragglers: the laws of an analyzer, and the noise levels at which faults are found or left alone."""

from __future__ import annotations

import numpy as np
import pytest

from pulsetrain.analytics.slowness.straggler import find
from pulsetrain.analytics.slowness.timings import COMPUTED, from_matrices
from pulsetrain.analytics.verdict import Finding, Healthy, Inconclusive, asks_for_action, findings
from tests.analytics.fleet import fleet, timings


def subjects(verdicts) -> list[tuple[str, str]]:
    return [(f.subject_type, f.subject) for f in findings(verdicts)]


@pytest.mark.parametrize("noise", [0.01, 0.05, 0.15])
def test_clean_runs_have_no_straggler(noise):
    for seed in range(40):
        assert not findings(find(timings(fleet(seed=seed, noise=noise, steps=60))))


def test_a_clean_run_says_healthy():
    assert isinstance(find(timings(fleet()))[0], Healthy)


@pytest.mark.parametrize("noise", [0.02, 0.1, 0.15])
def test_a_node_half_as_fast_again_is_found_in_twenty_steps(noise):
    for seed in range(20):
        columns = fleet(steps=42, slow={4: 1.5, 5: 1.5}, slow_from=22, noise=noise, seed=seed)
        assert subjects(find(timings(columns))) == [("node", "n2")]


@pytest.mark.parametrize(
    ("ratio", "steps", "noise"), [(1.1, 30, 0.02), (1.1, 30, 0.03), (1.05, 200, 0.03), (1.05, 200, 0.04)]
)
def test_a_slightly_slow_rank_is_found(ratio, steps, noise):
    for seed in range(20):
        columns = fleet(steps=steps + 2, slow={3: ratio}, noise=noise, seed=seed)
        assert subjects(find(timings(columns))) == [("rank", "3")]


def test_the_onset_is_reported():
    (finding,) = findings(find(timings(fleet(steps=90, slow={6: 1.4}, slow_from=60))))
    assert abs(finding.evidence["first_step"] - 60) <= 1


def test_what_was_slow_once_is_found_only_when_asked_for():
    columns = fleet(steps=160, slow={6: 1.4}, slow_from=40, slow_until=80)
    assert not findings(find(timings(columns)))
    (finding,) = findings(find(timings(columns), scan=True))
    assert finding.subject == "6"
    assert abs(finding.evidence["first_step"] - 40) <= 2
    assert abs(finding.evidence["last_step"] - 80) <= 2


@pytest.mark.parametrize(("ranks", "ratio"), [(4, 1.5), (8, 1.5), (8, 2.0)])
def test_who_was_slow_once_and_is_a_little_slower_than_others_always_is_not_named_for_what_is_over(
    ranks, ratio
):
    for seed in range(20):
        compute = 1e8 * np.exp(np.random.default_rng(seed).normal(0, 0.02, (105, ranks)))
        compute[:, 1] *= 1.012
        compute[:30, 1] *= ratio
        assert not [
            f for f in findings(find(from_matrices({"compute": compute}))) if f.evidence["ratio"] > 1.04
        ]


def test_a_pipeline_imbalance_is_no_straggler():
    assert not findings(find(timings(fleet(stage_ratio={1: 1.5}))))


def test_two_slow_ranks_on_two_nodes_are_ranks():
    columns = fleet(ranks=16, slow={1: 1.4, 6: 1.4})
    assert sorted(subjects(find(timings(columns)))) == [("rank", "1"), ("rank", "6")]


def test_a_rank_of_a_cohort_of_two_is_judged_by_its_own_past():
    columns = fleet(ranks=4, stages=2, per_node=1, steps=120, slow={1: 1.3}, slow_from=90)
    assert subjects(find(timings(columns))) == [("rank", "1")]


def test_a_difference_that_was_always_there_in_a_cohort_of_two_is_left_alone():
    assert not findings(find(timings(fleet(ranks=4, per_node=1, steps=120, slow={1: 1.3}))))


def test_a_job_that_slows_down_together_has_no_straggler():
    everyone = np.where(np.arange(120) < 80, 1.0, 1.4)
    assert not findings(find(timings(fleet(ranks=4, steps=120, everyone=everyone))))
    assert not findings(find(timings(fleet(ranks=8, steps=120, everyone=everyone))))


def test_more_work_is_not_slowness():
    columns = fleet(slow={2: 1.5}, steps=40)
    columns["tokens"] = np.where(columns["rank"] == 2, 6144, 4096)
    assert not findings(find(timings(columns)))


def _without(columns, drop):
    return {n: v[~drop] for n, v in columns.items()}


def test_degenerate_data_gets_a_verdict():
    columns = fleet(steps=40)
    cases = [
        _without(columns, np.ones(len(columns["rank"]), np.bool_)),
        _without(columns, columns["rank"] > 0),
        _without(columns, columns["rank"] == 3),
        _without(columns, columns["step"] > 1),
        {**columns, "compute": np.full(len(columns["rank"]), np.nan)},
        {**columns, "compute": np.zeros(len(columns["rank"]))},
        {n: np.concatenate([v, v]) for n, v in columns.items()},
    ]
    for case in cases:
        verdicts = find(timings(case))
        assert verdicts
        assert all(isinstance(v, Finding | Healthy | Inconclusive) for v in verdicts)
        assert not findings(verdicts)


def test_a_rank_that_misses_rows_does_not_hide_the_slow_one():
    columns = fleet(ranks=16, slow={9: 1.4}, steps=60)
    assert subjects(find(timings(_without(columns, (columns["rank"] == 12) & (columns["step"] > 15))))) == [
        ("rank", "9")
    ]


def crowded(seed, **more):
    """Eight ranks on a host with too few processors: what they wait for one is chance, and counted."""
    columns = fleet(steps=24, noise=0.03, seed=seed, **more)
    compute = columns["compute"]
    waited = compute * np.random.default_rng(seed).exponential(0.5, len(compute))
    stretched = {name: columns[name] * (1 + waited / compute) for name in COMPUTED}
    return timings({**columns, **stretched, "cpu_wait": waited})


def test_on_a_crowded_host_waiting_for_a_processor_is_nobodys_fault():
    for seed in range(50):
        assert not findings(find(crowded(seed)))


def test_on_a_crowded_host_a_slow_node_is_seen_in_twelve_steps():
    for seed in range(20):
        verdicts = find(crowded(seed, slow={4: 1.5, 5: 1.5}, slow_from=12))
        assert subjects(verdicts) == [("node", "n2")]


def starved(seed, **more):
    """The same where ranks wait for processors about as long as they compute, now one more, now another for a
    while, and are slowed beyond what the kernel counts."""
    columns = fleet(steps=60, noise=0.03, seed=seed, **more)
    rng = np.random.default_rng(seed)
    spells = rng.choice([1.0, 4.0], size=(6, 8), p=[0.7, 0.3])[columns["step"] // 10, columns["rank"]]
    compute = columns["compute"]
    unseen = 0.5 * spells * rng.exponential(0.5, len(compute))
    waited = compute * spells * rng.exponential(1.0, len(compute))
    stretched = {name: columns[name] * (1 + unseen + waited / compute) for name in COMPUTED}
    return timings({**columns, **stretched, "cpu_wait": waited})


def test_who_is_unlucky_for_a_while_on_a_starved_host_is_not_accused():
    for seed in range(20):
        assert not asks_for_action(find(starved(seed)))


def test_who_is_slower_at_its_best_than_the_others_at_their_worst_is_found_there_too():
    for seed in range(5):
        assert ("rank", "2") in subjects(find(starved(seed, per_node=1, slow={2: 6.0})))


@pytest.mark.parametrize(("ratio", "severity"), [(1.08, "info"), (1.25, "warning"), (1.5, "critical")])
def test_less_than_what_all_ranks_wait_for_a_processor_is_information(ratio, severity):
    columns = fleet(steps=60, noise=0.005, per_node=1, slow={2: ratio})
    waited = 0.15 * columns["compute"]
    stretched = {name: columns[name] + waited * columns[name] / columns["compute"] for name in COMPUTED}
    (finding,) = findings(find(timings({**columns, **stretched, "cpu_wait": waited})))
    assert (finding.subject, finding.severity) == ("2", severity)


def test_a_slow_rank_among_steps_that_scatter_is_not_called_healthy():
    unsure = 0
    for seed in range(8):
        (verdict,) = find(timings(fleet(steps=202, stages=1, noise=0.15, slow={3: 1.17}, seed=seed)))
        if isinstance(verdict, Inconclusive):
            unsure += 1
            assert verdict.reason.startswith("rank 3 computes")
            assert "steps scatter so much" in verdict.reason
        else:
            assert subjects([verdict]) == [("rank", "3")]
    assert unsure


def test_steps_that_scatter_alike_are_healthy():
    for seed in range(10):
        assert isinstance(find(timings(fleet(steps=202, stages=1, noise=0.15, seed=seed)))[0], Healthy)
