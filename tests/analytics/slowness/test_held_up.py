"""Ranks that something outside the job stops, or keeps from their processor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.analytics.slowness import robust, straggler
from pulsetrain.analytics.slowness.held_up import OFF, STARVED, find_held_up
from pulsetrain.analytics.slowness.straggler_config import StragglerConfig
from pulsetrain.analytics.slowness.timings import from_matrices
from pulsetrain.analytics.verdict import Healthy, Inconclusive, findings

CONFIG = StragglerConfig()
MS = 1e6


def busy_job(seed=0, steps=60, ranks=4, *, off=None, starved=None, ratio=0.4):
    """A job on an oversubscribed host: long queues that follow no rank, and hardly any time off it.

    Rank `off` is stopped in seven of each ten steps.
    """
    rng = np.random.default_rng(seed)
    compute = 30 * MS * rng.lognormal(0, 0.2, (steps, ranks))
    queued = 50 * MS * rng.lognormal(0, 0.6, (steps, ranks))
    stopped = np.where(rng.random((steps, ranks)) < 0.02, 20 * MS, 0.2 * MS)
    if off is not None:
        struck = rng.permuted(np.tile(np.arange(10) < 7, (steps // 10, 1)), axis=1).ravel()
        lumps = np.where(struck, ratio * 30 * MS / 0.7, 0.0)
        stopped[:, off] += lumps
        compute[:, off] += lumps
    if starved is not None:
        queued[:, starved] += 150 * MS
    parts = {"compute": compute, "cpu_wait": queued, "off_cpu": stopped, "forward": compute / 3}
    return from_matrices({**parts, "backward": compute / 3, "optimizer": compute / 3})


def named(job):
    return [(s.subject, s.cause) for s in find_held_up(job, CONFIG)]


@given(st.integers(0, 10**6), st.integers(0, 3))
def test_a_rank_that_is_stopped_is_named_however_busy_the_host(seed, rank):
    assert named(busy_job(seed, off=rank)) == [(str(rank), OFF)]


@given(st.integers(0, 10**6), st.integers(0, 3))
def test_a_starved_rank_is_named(seed, rank):
    assert named(busy_job(seed, starved=rank)) == [(str(rank), STARVED)]


@given(st.integers(0, 10**6))
def test_a_busy_host_alone_holds_up_nobody(seed):
    assert named(busy_job(seed)) == []


@pytest.mark.parametrize("cause", [OFF, STARVED])
def test_a_node_whose_ranks_are_all_held_up_is_named_once(cause):
    job = busy_job(8)
    lost = 30 * MS if cause == OFF else 150 * MS
    for part in (cause, "compute") if cause == OFF else (cause,):
        job.parts[part][:, [2, 3]] += lost
    nodes = replace(job, nodes=np.array(["a", "a", "b", "b"]))
    (suspect,) = find_held_up(nodes, CONFIG)
    assert (suspect.subject_type, suspect.subject, suspect.cause) == ("node", "b", cause)
    assert suspect.columns.tolist() == [2, 3]


def test_a_worse_stop_is_never_milder():
    ratios = [s.ratio for r in (0.3, 0.6, 0.9) for s in find_held_up(busy_job(1, off=2, ratio=r), CONFIG)]
    assert len(ratios) == 3
    assert ratios == sorted(ratios)


def test_waiting_for_a_loader_or_a_disk_is_not_being_stopped():
    job = busy_job(3, off=1)
    loading = job.parts | {"data": job.parts["off_cpu"]}
    assert named(from_matrices(loading)) == []


def test_only_the_newest_steps_count():
    job = busy_job(4, steps=120, off=1)
    job.parts["off_cpu"][-25:, 1] = 0.0
    assert named(job) == []


def staged(job):
    """The same job as a pipeline of two stages with two replicas each."""
    return replace(job, stages=np.array([0, 0, 1, 1]))


@given(st.integers(0, 10**6), st.integers(0, 3))
def test_in_a_pipeline_a_rank_that_began_to_be_stopped_is_named(seed, rank):
    job = busy_job(seed, steps=80)
    slow = busy_job(seed, steps=80, off=rank)
    for part in ("off_cpu", "compute"):
        job.parts[part][-25:] = slow.parts[part][-25:]
    assert named(staged(job)) == [(str(rank), OFF)]


@given(st.integers(0, 10**6))
def test_a_first_stage_that_always_waits_for_its_loader_is_not_stopped(seed):
    assert named(staged(busy_job(seed, steps=80, off=0))) == []
    assert named(staged(busy_job(seed, steps=80))) == []


@pytest.mark.parametrize(("computes_longer", "held"), [(False, []), (True, [("0", OFF)])])
def test_one_of_two_ranks_that_came_to_sleep_between_its_phases_is_not_stopped(computes_longer, held):
    compute = 80 * MS * np.random.default_rng(0).lognormal(0, 0.01, (140, 2))
    off = np.zeros((140, 2))
    off[100:, 0] = 0.15 * 80 * MS
    assert named(from_matrices({"compute": compute + computes_longer * off, "off_cpu": off})) == held


def queueing(more_ms, ranks=8):
    """Ranks that compute for 60 ms and queue for some 6 ms, rank 2 for longer from the first step on."""
    rng = np.random.default_rng(0)
    queued = 6 * MS * rng.lognormal(0, 0.4, (60, ranks))
    queued[:, 2] += more_ms * MS
    own = 60 * MS * rng.lognormal(0, 0.02, (60, ranks))
    parts = {"compute": own, "cpu_wait": queued, "duration_ns": own + queued + 50 * MS}
    return replace(from_matrices(parts), running_ratio=own / (own + queued))


@pytest.mark.parametrize(("more_ms", "doubt"), [(0, ""), (3, ""), (12, "rank 2"), (15, "rank 2")])
def test_beside_a_rank_that_always_queues_longer_nobody_is_healthy(more_ms, doubt):
    (said,) = straggler.find(queueing(more_ms))
    assert getattr(said, "reason", "").startswith(doubt)
    assert isinstance(said, Inconclusive if doubt else Healthy)


@pytest.mark.parametrize("ranks", [1, 2])
def test_one_or_two_ranks_have_no_majority(ranks):
    assert named(busy_job(5, ranks=ranks, off=0)) == []


def test_missing_and_wrong_values_give_an_answer():
    job = busy_job(6, off=2)
    job.parts["off_cpu"][3, :] = np.nan
    job.parts["compute"][50, 0] = np.nan
    assert named(job) == [("2", OFF)]
    nothing = from_matrices({"compute": np.full((40, 4), np.nan)})
    assert named(nothing) == []


def test_the_straggler_analyzer_says_what_holds_the_rank_up():
    (finding,) = findings(straggler.find(busy_job(7, off=3, ratio=0.5)))
    assert finding.subject == "3"
    assert finding.evidence["cause"] == OFF
    assert "is stopped or sleeps again and again" in finding.summary
    assert finding.severity != "info"
    assert isinstance(straggler.find(busy_job(7))[0], Healthy)


def small_job(seed=0, steps=60, ranks=2, *, struck=None, cause=OFF, since=50, past=None):
    """Ranks with cores of their own. From `since` on one of them loses half as much as it computes."""
    rng = np.random.default_rng(seed)
    compute = 60 * MS * rng.lognormal(0, 0.1, (steps, ranks))
    lost = {OFF: np.zeros((steps, ranks)), STARVED: 5 * MS * rng.lognormal(0, 0.6, (steps, ranks))}
    wait = np.full((steps, ranks), 10 * MS)
    for rank, first, end in [(struck, since, steps), *([past] if past else [])]:
        if rank is not None:
            lost[cause][first:end, rank] += 30 * MS
            wait[first:end] += 30 * MS
            wait[first:end, rank] -= 30 * MS
    compute += lost[OFF] + lost[STARVED]
    return from_matrices({"compute": compute, "wait": wait, **lost})


@pytest.mark.parametrize(("cause", "steps"), [(OFF, 6), (STARVED, 9)])
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_few_steps_suffice_in_a_job_of_any_size(cause, steps, ranks):
    for seed in range(10):
        assert named(small_job(seed, ranks=ranks)) == []
        job = small_job(seed, ranks=ranks, struck=1, cause=cause, since=60 - steps)
        assert named(job) == [("1", cause)]


@pytest.mark.parametrize("cause", [OFF, STARVED])
def test_the_end_of_ones_trouble_accuses_nobody_else(cause):
    for seed in range(10):
        job = small_job(seed, steps=80, cause=cause, past=(0, 30, 66))
        assert named(job) == []
        assert not [f for f in findings(straggler.find(job)) if f.severity != "info"]


def test_where_both_ranks_come_to_queue_it_is_nobody():
    job = small_job(struck=1, cause=STARVED, since=40)
    job.parts[STARVED][40:, 0] += 30 * MS
    assert named(job) == []


@pytest.mark.parametrize("late", [1, 3, 6])
def test_a_node_whose_newest_steps_are_still_on_their_way_hides_nothing(late):
    job = small_job(struck=1, since=48)
    for name in ("compute", "wait", OFF, STARVED):
        job.parts[name][-late:, 0] = np.nan
    assert named(job) == [("1", OFF)]
    assert [f.subject for f in findings(straggler.find(job))] == ["1"]


def sleeping(asleep_ms, more_ms, *, on_device, ranks=8):
    """Ranks whose main threads sleep in each step while they compute for 60 ms, rank 0 for longer."""
    rng = np.random.default_rng(0)
    compute = 60 * MS * rng.lognormal(0, 0.01, (40, ranks))
    off = asleep_ms * MS * rng.lognormal(0, 0.005, (40, ranks))
    off[:, 0] += more_ms * MS
    if not on_device:
        compute[:, 0] += more_ms * MS
    duration = np.full((40, ranks), 200 * MS)
    parts = {"compute": compute, "off_cpu": off, "wait": np.full((40, ranks), 40 * MS)}
    return replace(from_matrices({**parts, "duration_ns": duration}), on_device=on_device)


@pytest.mark.parametrize(("asleep_ms", "more_ms"), [(0, 9), (110, 1), (110, 9), (110, 40)])
@pytest.mark.parametrize("ranks", [2, 8])
def test_a_thread_that_sleeps_while_its_device_computes_costs_nothing(asleep_ms, more_ms, ranks):
    job = sleeping(asleep_ms, more_ms, on_device=True, ranks=ranks)
    assert named(job) == []
    assert isinstance(straggler.find(job)[0], Healthy)


def test_where_all_sleep_in_their_phases_a_rank_is_stopped_by_what_it_sleeps_more():
    assert named(sleeping(54, 1, on_device=False)) == []
    (suspect,) = find_held_up(sleeping(54, 15, on_device=False), CONFIG)
    assert (suspect.subject, suspect.cause) == ("0", OFF)
    assert suspect.ratio == pytest.approx(0.25, abs=0.02)


def test_what_a_look_costs_does_not_grow_with_the_square_of_ranks_that_are_alone(monkeypatch):
    calls = []
    medians = robust.medians_of_others
    monkeypatch.setattr(robust, "medians_of_others", lambda values: calls.append(1) or medians(values))

    def cost(ranks):
        calls.clear()
        job = replace(busy_job(ranks=ranks, off=2), stages=np.arange(ranks))
        find_held_up(job, CONFIG)
        return len(calls)

    assert cost(64) <= cost(8)
