"""Fail-slow: a recorded job, ranks and jobs that became slower, and what is said of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from pulsetrain.analytics.slowness.fail_slow import find, for_recording
from pulsetrain.analytics.slowness.load_timings import from_tables
from pulsetrain.analytics.slowness.slow_windows import slow_against_peers
from pulsetrain.analytics.slowness.step_times_file import read
from pulsetrain.analytics.slowness.timings import from_matrices
from pulsetrain.analytics.verdict import Finding, Healthy, Inconclusive, findings
from tests.analytics.slowness.series import calm
from tests.repository import DATA

RECORDED = DATA / "fail-slow"


@pytest.mark.skipif(not RECORDED.is_dir(), reason=f"no recordings in {DATA}")
def test_names_the_slow_worker_of_the_recorded_job_in_its_window_and_nobody_else():
    (path,) = RECORDED.glob("*.csv")
    (verdict,) = find(read(path), config=for_recording())
    assert isinstance(verdict, Finding)
    assert (verdict.subject_type, verdict.subject) == ("rank", "6")
    begin, end = verdict.evidence["share_of_run"]
    assert 0.59 <= begin < end <= 0.71
    assert verdict.evidence["slow_ratio"] > 1.2


def records(compute, *, wait=0.1, duration=None, first=0):
    """Timings of ranks that compute as given [rank, step] and wait for the slowest."""
    ranks, steps = compute.shape
    step, rank = np.meshgrid(np.arange(first, first + steps), np.arange(ranks), indexing="ij")
    whole = compute.max(axis=0) + wait if duration is None else duration
    flat = {
        "step": step.ravel(),
        "rank": rank.ravel(),
        "node": [f"n{r // 2}" for r in rank.ravel()],
        "start_ns": step.ravel() * 10**9,
        "duration_ns": np.broadcast_to(whole[:, None], step.shape).ravel() * 1e9,
        "tokens": np.full(step.size, 100),
    }
    parts = {
        "step": step.ravel(),
        "rank": rank.ravel(),
        "compute": compute.T.ravel() * 1e9,
        "wait": (whole[:, None] - compute.T).ravel() * 1e9,
        **{name: np.zeros(step.size) for name in ("data", "checkpoint", "gc", "gc_longest", "other")},
        **{name: np.zeros(step.size) for name in ("forward", "backward", "optimizer")},
    }
    topology = pa.table(
        {"rank": np.arange(ranks), "node": [f"n{r // 2}" for r in range(ranks)], "pp": np.zeros(ranks, int)}
    )
    return from_tables(
        steps=pa.table(flat), parts=pa.table(parts), topology=topology, job="j", attempt=0, now_ns=7
    )


def test_the_rank_that_makes_all_wait_is_named_and_the_job_is_not_blamed_as_well():
    compute = calm(noise=0.005)
    compute[3, 150:] *= 1.5
    (verdict,) = findings(find(records(compute)))
    assert (verdict.subject_type, verdict.subject, verdict.evidence["node"]) == ("rank", "3", "n1")
    assert verdict.severity == "critical"
    assert abs(verdict.evidence["first_step"] - 150) <= 2


@pytest.mark.parametrize(
    ("ranks", "ratio", "since", "severity"),
    [(2, 1.15, 175, "info"), (2, 1.15, 80, "warning"), (2, 1.6, 175, "critical"), (3, 1.15, 175, "warning")],
)
def test_in_a_pair_a_small_and_short_slowdown_is_information(ranks, ratio, since, severity):
    compute = calm(ranks=ranks, steps=200, noise=0.005)
    compute[1, since:] *= ratio
    found = [f for f in findings(find(records(compute))) if f.subject_type == "rank"]
    assert [(f.subject, f.severity) for f in found] == [("1", severity)]


def test_a_slow_down_of_all_says_what_grew():
    compute = calm(noise=0.005)
    compute[:, 150:] *= 1.3
    (code,) = findings(find(records(compute)))
    assert (code.subject_type, code.subject) == ("job", "j")
    assert code.evidence["cause"].startswith("compute of all ranks")
    steady = calm(noise=0.005)
    longer = np.where(np.arange(300) < 150, 1.5, 2.0)
    (network,) = findings(find(records(steady, duration=longer)))
    assert network.evidence["cause"] == "communication: the network"


@pytest.mark.parametrize("counted", [True, False])
def test_a_job_that_is_counted_to_have_more_flops_to_do_is_not_slower(counted):
    more = np.where(np.arange(300) < 100, 1.0, 1.6)
    compute = calm(noise=0.005).T * more[:, None] * 1e8
    flops = 1e12 * more if counted else np.full(300, 1e12)
    duration, flops = compute.max(axis=1, keepdims=True) * 1.1, flops[:, None]
    steps = {"compute": compute, "duration_ns": duration, "wait": duration - compute, "flops": flops}
    found = findings(find(from_matrices({name: np.broadcast_to(m, (300, 8)) for name, m in steps.items()})))
    assert [f.subject_type for f in found] == ([] if counted else ["job"])


def test_a_job_whose_flops_nobody_counts_may_just_have_more_work():
    compute = calm(noise=0.005)
    compute[:, 150:] *= 2
    (told,), (guessed,) = (findings(find(records(compute), inferred=says)) for says in (bool, lambda: True))
    assert (told.severity, guessed.severity) == ("critical", "info")
    assert "may be more work" in guessed.summary


@pytest.mark.parametrize(("known", "severity"), [(True, "critical"), (False, "warning")])
def test_longer_steps_may_be_more_work_unless_ranks_are_known_to_compute_as_before(known, severity):
    compute = calm(noise=0.005)
    whole = compute.max(axis=0) + np.where(np.arange(300) < 150, 0.1, 1.5)
    job = records(compute, duration=whole)
    if not known:
        job.parts["compute"][:] = np.nan
    (found,) = findings(find(job, inferred=lambda: True))
    assert (found.subject_type, found.evidence["measure"], found.severity) == ("job", "step", severity)
    assert ("may be more work" in found.summary) is not known


def test_waiting_for_one_rank_is_not_put_to_the_network():
    compute, late = calm(noise=0.005), np.where(np.arange(300) < 150, 0.25, 0.55)
    whole = compute.max(axis=0) + late
    job = records(compute, duration=whole)
    job.parts["wait"][:, 3] = 0.25e9
    (held,) = findings(find(job))
    assert (held.subject_type, held.evidence["cause"]) == ("job", "ranks wait longer for each other")
    assert "network" not in held.summary


def staged(compute, *, tokens=None, node_of=lambda rank: f"n{rank // 4}"):
    """Four stages of four ranks, each stage on a node. `compute` is [step, rank]."""
    ranks = compute.shape[1]
    wait = compute.max(axis=1, keepdims=True) - compute + 0.1
    given = {"compute": compute * 1e8, "wait": wait * 1e8, "duration_ns": (compute + wait) * 1e8}
    if tokens is not None:
        given["tokens"] = np.broadcast_to(np.asarray(tokens, float)[:, None], compute.shape)
    timings = from_matrices(given, stages=np.arange(ranks) // 4)
    return replace(timings, nodes=np.array([node_of(rank) for rank in range(ranks)]))


def four_stages(seed=3):
    return np.random.default_rng(seed).lognormal(0, 0.02, (240, 16)) * np.repeat([1.3, 1.0, 1.0, 1.2], 4)


def test_a_node_that_holds_a_whole_stage_is_named_where_steps_stayed_the_same_work():
    compute = four_stages()
    compute[120:, 8:12] *= 1.3
    (finding,) = find(staged(compute, tokens=np.full(240, 4096)))
    assert (finding.subject_type, finding.subject) == ("node", "n2")
    assert finding.evidence["ranks"] == [8, 9, 10, 11]
    assert 110 <= finding.evidence["first_step"] <= 130
    found = find(staged(compute, tokens=np.full(240, 4096), node_of=lambda rank: f"n{rank % 4}"))
    assert "node" not in {f.subject_type for f in findings(found)}


def test_a_stage_that_longer_steps_cost_more_accuses_no_node():
    compute = four_stages()
    compute[120:] *= 2
    compute[120:, 8:12] *= 1.3
    for tokens in (None, np.where(np.arange(240) < 120, 4096, 8192)):
        assert "node" not in {f.subject_type for f in findings(find(staged(compute, tokens=tokens)))}


def test_a_doubtful_rank_does_not_hide_that_the_whole_job_became_slower():
    compute = np.random.default_rng(4).lognormal(0, 0.01, (4, 240))
    compute[:, 120:] *= 1.3
    compute[3, 120:] *= 1.15
    timings = replace(records(compute), stages=np.arange(4))
    assert "job" in {f.subject_type for f in findings(find(timings))}


def test_where_compute_is_not_known_the_cause_is_not_known_either():
    job = records(calm(noise=0.005), duration=np.where(np.arange(300) < 150, 1.5, 2.0))
    job.parts["compute"][:] = np.nan
    slow, ranks = find(job)
    assert slow.evidence["cause"] == "unknown"
    assert isinstance(ranks, Inconclusive)
    assert slow.evidence["grew"].keys() == {"communication"}


def unseen(job):
    (verdict,) = find(job)
    assert isinstance(verdict, Inconclusive), verdict
    return verdict.reason


def test_where_ranks_cannot_be_compared_the_answer_is_not_healthy():
    job = records(calm(noise=0.005))
    job.parts["compute"][:] = np.nan
    assert "step times tell of the whole job alone" in unseen(job)
    assert unseen(replace(job, unknown="communication overlaps")) == "communication overlaps"
    job.parts["compute"][:, 3] = 1e9
    assert unseen(job) == "the compute time of 1 of 8 ranks is known"


def test_where_chance_decides_who_gets_a_processor_the_answer_is_not_healthy():
    rng = np.random.default_rng(0)
    job = records(calm(noise=0.2))
    job.parts["cpu_wait"] = job.parts["compute"] * rng.lognormal(0, 0.5, job.parts["compute"].shape)
    job.parts["compute"] += job.parts["cpu_wait"]
    assert "chance decides who is slow" in unseen(job)


def test_a_job_of_one_rank_is_judged_by_its_own_past():
    compute = calm(ranks=1, noise=0.005)
    assert isinstance(find(records(compute))[0], Healthy)
    compute[:, 150:] *= 1.3
    assert [f.subject_type for f in findings(find(records(compute)))] == ["job"]


def test_renaming_ranks_renames_the_answer_and_order_changes_nothing():
    compute = calm(noise=0.005)
    compute[3, 150:] *= 1.5
    (straight,) = findings(find(records(compute)))
    (mirrored,) = findings(find(records(compute[::-1])))
    assert (straight.subject, mirrored.subject) == ("3", "4")
    assert straight.evidence["slow_ratio"] == pytest.approx(mirrored.evidence["slow_ratio"])


def test_it_says_when_it_sees_too_little_and_when_all_is_well():
    (blind,) = find(records(calm(steps=9)))
    assert isinstance(blind, Inconclusive)
    (well,) = find(records(calm(noise=0.005)))
    assert isinstance(well, Healthy)


def test_a_recording_judged_once_accuses_nobody_for_noise_and_still_names_who_was_slow():
    config = for_recording()
    noisy = [calm(10, 300, noise=0.1, seed=s) for s in range(12)]
    assert sum(bool(slow_against_peers(values, config)) for values in noisy) <= 1
    for values in noisy:
        values[6, 200:240] *= 1.35
    named = [{s.row for s in slow_against_peers(values, config)} for values in noisy]
    assert named.count({6}) >= 11
