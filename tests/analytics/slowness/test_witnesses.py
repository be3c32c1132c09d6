"""Own time and the order of arrival together."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from pulsetrain.analytics.slowness import straggler
from pulsetrain.analytics.slowness.arrivals import Arrivals
from pulsetrain.analytics.slowness.timings import from_matrices
from pulsetrain.analytics.verdict import Healthy, Inconclusive, findings

MS = 1e6
STEPS = 40


def job(seed=0, *, slow=None, cpu_wait=0.0, **parts):
    rng = np.random.default_rng(seed)
    compute = 80 * MS * rng.lognormal(0, 0.01, (STEPS, 4))
    if slow is not None:
        compute[:, slow] *= 1.4
    return from_matrices(
        {
            "compute": compute,
            "cpu_wait": np.full((STEPS, 4), cpu_wait),
            "wait": np.full((STEPS, 4), 10 * MS),
            "duration_ns": np.full((STEPS, 4), 130 * MS),
            **parts,
        }
    )


def arrivals(late=None, by_ms=32.0):
    """Rank `late` comes last to every collective. A negative delay: it comes first."""
    lateness = np.random.default_rng(1).normal(0, 0.2 * MS, (30, 4))
    if late is not None:
        lateness[:, late] += by_ms * MS
    top = np.sort(lateness, axis=1)
    lead = np.where(lateness == top[:, -1:], lateness - top[:, -2:-1], lateness - top[:, -1:])
    ranks = np.arange(4)
    return Arrivals(
        steps=np.arange(10, STEPS), ranks=ranks, lateness_ns=lateness, lead_ns=lead, error_ns=np.full(4, 1e4)
    )


def find(timings, seen):
    return straggler.find(timings, arrivals=lambda: seen)


def test_two_witnesses_that_agree_are_surer_than_one():
    (both,) = findings(find(job(slow=2), arrivals(late=2)))
    (alone,) = findings(find(job(slow=2), None))
    assert (both.subject, alone.subject) == ("2", "2")
    assert both.confidence > alone.confidence
    assert both.evidence["witnesses"] == ["own time", "arrivals"]
    assert alone.evidence["witnesses"] == ["own time"]


def test_a_rank_that_seems_slow_and_comes_early_is_doubtful():
    (verdict,) = find(job(slow=2), arrivals(late=2, by_ms=-30.0))
    assert isinstance(verdict, Inconclusive)
    assert "comes 30" in verdict.reason


def test_a_rank_that_comes_last_without_a_reason_is_not_healthy():
    (verdict,) = find(job(), arrivals(late=1))
    assert isinstance(verdict, Inconclusive)
    assert "rank 1 comes last" in verdict.reason


def test_a_rank_that_comes_last_because_of_its_loader_is_the_loaders_business():
    data = np.full((STEPS, 4), MS)
    data[:, 1] += 32 * MS
    assert isinstance(find(job(data=data), arrivals(late=1))[0], Healthy)


@pytest.mark.parametrize(("part", "word"), [("checkpoint", "checkpoints"), ("other", "evaluation")])
def test_a_rank_that_comes_last_because_it_saves_or_evaluates_is_told_with_the_part(part, word):
    spent = np.zeros((STEPS, 4))
    spent[:, 1] += 32 * MS
    (verdict,) = find(job(**{part: spent}), arrivals(late=1))
    assert isinstance(verdict, Inconclusive)
    assert "rank 1 comes last" in verdict.reason
    assert f"spends 32.0 ms a step more than the others on {word}" in verdict.reason


def test_a_rank_of_a_role_of_its_own_that_comes_last_is_told_with_what_it_computes():
    timings = replace(job(slow=3), roles=np.array([0, 0, 0, 1]))
    (verdict,) = find(timings, arrivals(late=3))
    assert isinstance(verdict, Inconclusive)
    assert "rank 3 comes last" in verdict.reason
    assert re.search(r"computes 3\d\.\d ms a step more than the others, in .* of other use", verdict.reason)
    assert "does not explain" not in verdict.reason


def test_a_healthy_verdict_tells_whether_the_order_of_arrival_was_compared():
    compared = [find(job(), seen)[0].numbers["arrivals_compared"] for seen in (arrivals(), None)]
    assert compared == [True, False]


def test_a_sound_job_is_healthy_and_nobody_is_named():
    assert isinstance(find(job(), arrivals())[0], Healthy)


def test_on_an_oversubscribed_host_the_order_is_chance_and_is_not_even_loaded():
    def never():
        raise AssertionError("it was loaded")

    busy = job(cpu_wait=30 * MS)
    assert isinstance(straggler.find(busy, arrivals=never)[0], Healthy)


def test_without_compute_times_the_order_of_arrival_is_part_of_the_reason():
    nothing = from_matrices({"duration_ns": np.full((STEPS, 4), 130 * MS)})
    (verdict,) = find(nothing, arrivals(late=3))
    assert isinstance(verdict, Inconclusive)
    assert verdict.blind
    assert "rank 3 comes last" in verdict.reason


def test_what_is_left_net_of_long_queues_names_nobody_by_a_trifle():
    rng = np.random.default_rng(2)
    compute = 100 * MS * rng.lognormal(0, 0.02, (STEPS, 4))
    compute[:, 1] *= 1.1
    starving = from_matrices({"compute": compute, "cpu_wait": np.full((STEPS, 4), 2000 * MS)})
    assert not findings(find(starving, None))


def test_a_rank_whose_experts_get_more_tokens_is_loaded_and_not_slow():
    even = replace(job(slow=2), routed_bytes=np.full((STEPS, 4), 1e6))
    assert [f.subject for f in findings(find(even, None))] == ["2"]
    even.routed_bytes[:, 2] *= 1.4
    (verdict,) = find(even, None)
    assert isinstance(verdict, Inconclusive)
    assert "uneven load" in verdict.reason
