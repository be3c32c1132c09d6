"""By how much ranks exceed their cohort, on quiet and on oversubscribed hosts."""

from __future__ import annotations

import numpy as np
import pytest

from pulsetrain.analytics.slowness.cohort import (
    measure,
    oversubscribed,
    processor_wait_ratio,
    slowness_is_chance,
    work_from,
    work_of,
)
from pulsetrain.analytics.slowness.straggler import find
from pulsetrain.analytics.slowness.timings import COMPUTED, from_matrices
from pulsetrain.analytics.verdict import Inconclusive, findings
from tests.analytics.fleet import fleet, timings

ALL = np.arange(8)


def work(columns):
    job = timings(columns)
    return work_of(job, np.flatnonzero(job.usable))


def test_a_ranks_excess_is_the_log_of_how_much_longer_it_computes():
    excess = measure(work(fleet(stages=1, slow={3: 1.3})), ALL, np.arange(10, 50))
    assert excess.excess[3] == pytest.approx(np.log(1.3), abs=0.02)
    assert np.delete(excess.excess, 3) == pytest.approx(np.zeros(7), abs=0.02)
    assert excess.noise == pytest.approx(0.02, rel=0.3)
    assert not excess.noisy


def test_the_excess_lately_tells_who_is_still_slow():
    columns = fleet(stages=1, slow={3: 1.5}, slow_until=30)
    excess = measure(work(columns), ALL, np.arange(2, 60))
    assert excess.recent[3] == pytest.approx(0, abs=0.03)


def test_half_a_cohort_of_slow_ranks_does_not_move_the_reference():
    excess = measure(work(fleet(stages=1, slow=dict.fromkeys(range(4), 1.5))), ALL, np.arange(10, 50))
    assert excess.excess[:4] == pytest.approx([np.log(1.5)] * 4, abs=0.03)
    assert excess.excess[4:] == pytest.approx([0] * 4, abs=0.03)


def test_more_steps_make_it_surer():
    job = work(fleet(stages=1, steps=200))
    few, many = (measure(job, ALL, np.arange(200 - n, 200)).error.mean() for n in (20, 180))
    assert many < 0.5 * few


def test_a_rank_that_misses_steps_is_left_out_and_too_few_cannot_be_compared():
    columns = fleet(stages=1)
    holes = (columns["rank"] == 2) & (columns["step"] > 20)
    columns["compute"] = np.where(holes, np.nan, columns["compute"])
    excess = measure(work(columns), ALL, np.arange(10, 50))
    assert 2 not in excess.columns
    assert len(excess.columns) == 7
    assert measure(work(columns), ALL[:3], np.arange(10, 50)) is None
    assert measure(work(columns), ALL, np.arange(4)) is None


def gappy(compute):
    """Two ranks that each lack another quarter of the steps."""
    step = np.arange(len(compute))[:, None]
    rank = np.arange(compute.shape[1])
    return np.where(((rank == 20) & (step % 4 == 1)) | ((rank == 40) & (step % 4 == 3)), np.nan, compute)


def test_two_ranks_with_gaps_do_not_keep_the_others_from_being_compared():
    rng = np.random.default_rng(0)
    compute = 1e8 * (1 + 0.02 * rng.standard_normal((240, 64)))
    clean = from_matrices({"compute": gappy(compute)})
    excess = measure(work_of(clean, np.arange(240)), np.arange(64), np.arange(40, 240))
    assert len(excess.columns) == 63
    assert len(excess.rows) == 150
    assert not findings(find(clean))
    compute[:, 7] *= 1.3
    assert [f.subject for f in findings(find(from_matrices({"compute": gappy(compute)})))] == ["7"]


def test_a_rank_that_cannot_be_compared_for_its_gaps_is_told():
    rng = np.random.default_rng(0)
    compute = 1e8 * (1 + 0.02 * rng.standard_normal((40, 64)))
    step = np.arange(40) % 10
    compute[np.isin(step, (1, 5)), 20] = np.nan
    compute[np.isin(step, (2, 4, 8)), 40] = np.nan
    [verdict] = find(from_matrices({"compute": compute}))
    assert isinstance(verdict, Inconclusive)
    assert "rank 40 cannot be compared with others: too many of its steps are missing" in verdict.reason


def test_more_tokens_are_more_work():
    columns = fleet(stages=1, slow={3: 1.5})
    columns["tokens"] = np.where(columns["rank"] == 3, 6144, 4096)
    excess = measure(work(columns), ALL, np.arange(10, 50))
    assert excess.excess == pytest.approx(np.zeros(8), abs=0.02)


def test_on_a_noisy_host_levels_are_low_quantiles():
    columns = fleet(stages=1, noise=0.02, steps=100)
    rng = np.random.default_rng(0)
    for part in ("forward", "backward", "optimizer"):
        columns[part] = columns[part] * np.where(rng.random(800) < 0.4, rng.uniform(1, 5, 800), 1)
    columns["compute"] = columns["forward"] + columns["backward"] + columns["optimizer"]
    noisy = work(columns)
    assert noisy.low_noise > 0
    excess = measure(noisy, ALL, np.arange(10, 100))
    assert excess.noisy
    assert excess.excess == pytest.approx(np.zeros(8), abs=0.1)
    assert (excess.quartile_gap < 0).all()
    assert oversubscribed(timings(columns))
    assert work(fleet(stages=1)).low_noise is None


def waiting(share):
    """A fleet that waits for processors for a share of what it computes, and the kernel counts it."""
    columns = fleet()
    lost = share * columns["compute"]
    stretched = {part: columns[part] * (1 + share) for part in COMPUTED}
    return timings({**columns, **stretched, "cpu_wait": lost})


@pytest.mark.parametrize(("share", "busy"), [(0.0, False), (0.01, False), (0.08, True), (0.5, True)])
def test_a_host_on_which_ranks_wait_for_processors_is_oversubscribed(share, busy):
    assert oversubscribed(waiting(share)) == busy


def test_the_share_of_waiting_is_of_what_was_measured():
    assert processor_wait_ratio(waiting(0.5)) == pytest.approx(0.5 / 1.5)
    assert processor_wait_ratio(timings(fleet())) == 0


def test_waiting_alone_is_no_chance_as_long_as_steps_do_not_scatter():
    assert not slowness_is_chance(waiting(2.0))
    assert not slowness_is_chance(timings(fleet(noise=0.3)))


def test_any_times_can_be_compared():
    times = np.ones((30, 5))
    times[:, 2] = 2
    cohort = [np.arange(5)]
    job = work_from(np.log(times), times[None], cohort, np.arange(30))
    assert measure(job, cohort[0], np.arange(30)).excess == pytest.approx([0, 0, np.log(2), 0, 0])
