"""The simulator of failures against published figures, and its own laws."""

from __future__ import annotations

import pytest

from pulsetrain.simulate.recovery import _SimulatedJob, simulate
from pulsetrain.simulate.recovery_estimate import closed_form
from pulsetrain.simulate.recovery_plan import RecoveryPlan
from tests.simulate.plans import gemini, high_frequency


@pytest.mark.parametrize(
    ("plan", "published"),
    [
        (gemini(8), 0.953),
        (gemini(15, 1000), 0.9115),
        (high_frequency(0), 0.856),
        (high_frequency(15), 0.582),
    ],
    ids=["8 a day", "1000 machines at 1.5 % a day", "storage only, no failure", "storage only, 15 a day"],
)
def test_published_efficiency_under_failures_is_within_ten_percent(plan, published):
    assert simulate(plan, runs=5).effective_ratio == pytest.approx(published, rel=0.1)
    assert closed_form(plan).effective_ratio == pytest.approx(published, rel=0.1)


def test_time_adds_up():
    plan = gemini(8)
    result = simulate(plan, runs=3)
    total = result.effective_ratio * plan.days * 86400 + sum(result.lost_s.values())
    assert total == pytest.approx(plan.days * 86400, rel=1e-6)


def test_one_seed_is_one_result():
    assert simulate(gemini(8), seed=3, runs=2) == simulate(gemini(8), seed=3, runs=2)
    assert simulate(gemini(8), seed=3, runs=2) != simulate(gemini(8), seed=4, runs=2)


def test_without_standbys_a_replacement_is_waited_for():
    with_standby = RecoveryPlan(failures_per_machine_day=0.2, replace_s=3600, standbys=5)
    without = RecoveryPlan(failures_per_machine_day=0.2, replace_s=3600, standbys=0)
    assert simulate(without).effective_ratio < simulate(with_standby).effective_ratio - 0.05
    assert simulate(without).effective_ratio == pytest.approx(closed_form(without).effective_ratio, rel=0.05)


class Scripted:
    """Failures of machines 0, 1, ... after these times, and none after them."""

    def __init__(self, *after_s):
        self.after_s, self.machine = list(after_s), -1

    def expovariate(self, rate):
        return self.after_s.pop(0) if self.after_s else 1e12

    def random(self):
        return 1.0

    def randrange(self, count):
        self.machine += 1
        return self.machine


def test_a_machine_that_fails_while_state_is_fetched_takes_one_standby_more():
    plan = RecoveryPlan(
        machines=4, failures_per_machine_day=1, detect_s=10, peer_fetch_s=60, warm_up_s=30, standbys=2,
        replace_s=3600,
    )  # fmt: skip
    job = _SimulatedJob(plan, Scripted(1000, 1e12, 1e12, 20))  # in training, and in the fetch
    job.train_until(job.next_failure())
    job.recover()
    assert job.failures == 2
    assert job.lost["replace"] == 0
