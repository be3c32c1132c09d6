"""Ranks compared with their own past."""

from __future__ import annotations

import numpy as np
import pytest

from pulsetrain.analytics.slowness import straggler
from pulsetrain.analytics.slowness.cohort import work_of
from pulsetrain.analytics.slowness.own_history import find_changed, has_all
from pulsetrain.analytics.slowness.straggler_config import StragglerConfig
from pulsetrain.analytics.slowness.timings import from_matrices
from tests.analytics.fleet import fleet, timings

CONFIG = StragglerConfig()


def changed(columns, ranks=(0, 1, 2, 3)):
    job = timings(columns)
    work = work_of(job, np.flatnonzero(job.usable)).whole
    return find_changed(job, work, np.array(ranks, np.int64), 4.0, CONFIG).suspects


def pairs(**more):
    return fleet(**{"ranks": 4, "per_node": 1, "steps": 120} | more)


def test_a_rank_that_became_slower_than_it_was_is_a_suspect():
    (suspect,) = changed(pairs(slow={1: 1.3}, slow_from=95))
    assert (suspect.subject, suspect.by_history) == ("1", True)
    assert suspect.ratio == pytest.approx(0.3, abs=0.03)
    assert len(suspect.rows) == CONFIG.short


def test_only_the_given_ranks_are_judged():
    assert changed(pairs(slow={1: 1.3}, slow_from=95), ranks=[0, 2, 3]) == []
    assert changed(pairs(slow={1: 1.3}, slow_from=95), ranks=[]) == []


def test_what_was_always_slow_or_became_slow_with_all_is_no_change():
    assert changed(pairs(slow={1: 1.3})) == []
    assert changed(pairs(everyone=np.where(np.arange(120) < 95, 1.0, 1.4))) == []


def test_one_lucky_stretch_in_the_past_raises_no_bar():
    columns = pairs()
    lucky = (columns["rank"] == 1) & (columns["step"] >= 40) & (columns["step"] < 60)
    columns["compute"] = columns["compute"] * np.where(lucky, 0.7, 1.0)
    assert changed(columns) == []


def test_too_few_steps_or_ranks_to_compare_give_nothing():
    assert changed(pairs(steps=40, slow={1: 2.0}, slow_from=30)) == []
    columns = pairs(slow={1: 1.3}, slow_from=95)
    columns["compute"] = np.where(columns["rank"] != 1, np.nan, columns["compute"])
    assert changed(columns) == []


def test_columns_without_gaps_are_found():
    values = np.array([[1.0, np.nan, 1.0], [1.0, 2.0, np.inf]])
    assert has_all(values).tolist() == [True, False, False]


def severity(noise, slowdown, steps):
    """Severity of what is found where the second of two stages is slower in the newest steps of 300."""
    random = np.random.default_rng(1)
    compute = 1e8 * np.exp(noise * random.standard_normal((300, 2)))
    compute[300 - steps :, 1] *= slowdown
    [finding] = straggler.find(from_matrices({"compute": compute}, stages=np.array([0, 1])))
    assert finding.subject == "1"
    return finding.severity


@pytest.mark.parametrize(("noise", "expected"), [(0.03, "warning"), (0.1, "info")])
def test_slower_than_its_own_past_is_information_unless_it_stands_out(noise, expected):
    assert severity(noise, 1.25, 20) == expected


@pytest.mark.parametrize(("steps", "expected"), [(20, "info"), (45, "info"), (80, "info"), (100, "warning")])
def test_a_little_slower_than_its_own_past_is_information_until_it_lasts(steps, expected):
    assert severity(0.02, 1.13, steps) == expected
