"""A GPU that lost clock is named, by its own past and beside its peers. Nobody is named where all lost it."""

from __future__ import annotations

import random

import pytest

from pulsetrain.analytics.machines.gpu_health import find
from pulsetrain.analytics.verdict import findings
from tests.analytics.machines.gpu_rows import reported, rows, table

STEP_HZ = 15e6  # of an NVIDIA GPU's clock
FELL_AT = 60
READ = ("gpu_sm_clock_hz", "gpu_utilization_ratio", "gpu_clock_event_reasons")


def clock(seed, *, ratio=1.0, level=1.98e9, jitter=2):
    """A clock that wanders by some steps and falls to `ratio` of itself."""
    draw = random.Random(seed)
    noise = [draw.randint(-jitter, jitter) * STEP_HZ for _ in range(200)]
    return lambda i: level * (ratio if i >= FELL_AT else 1.0) + noise[i]


def gpu(number, samples=90, **more):
    values = {key: more.pop(key) for key in ("ratio", "level", "jitter") if key in more}
    made = rows(f"GPU-{number}", samples, period_s=1, gpu_sm_clock_hz=clock(number, **values), **more)
    return [row for row in made if row[2] in READ]


PEERS = [gpu(n) for n in range(1, 8)]
NAMED = {("throttle", "n1/GPU-0", "warning")}


def test_a_drop_of_ten_percent_is_named_without_a_reason_of_the_driver():
    assert reported(gpu(0, ratio=0.9), *PEERS) == NAMED
    (finding,) = findings(find(table(gpu(0, ratio=0.9), *PEERS), now_ns=1))
    assert finding.evidence["clock_ratio"] == pytest.approx(0.9, abs=0.02)
    assert finding.evidence["peers"] == 7


@pytest.mark.parametrize("seed", range(10))
def test_few_peers_are_enough(seed):
    peers = [gpu(100 * seed + n) for n in range(1, 6)]
    made = gpu(100 * seed, samples=100, ratio=0.9)
    assert reported(made, *peers) == {("throttle", f"n1/GPU-{100 * seed}", "warning")}


@pytest.mark.parametrize("seed", range(20))
def test_clocks_that_only_wander_name_nobody(seed):
    assert reported(*(gpu(100 * seed + n, jitter=4) for n in range(8))) == set()


def test_a_drop_that_lasts_stays_found():
    assert reported(gpu(0, samples=190, ratio=0.9), *(gpu(n, samples=190) for n in range(1, 8))) == NAMED


def test_a_drop_of_all_peers_is_the_jobs():
    assert reported(*(gpu(n, ratio=0.9) for n in range(8))) == set()


def test_gpus_of_one_model_may_differ_all_the_time():
    levels = [1.98e9, 1.9e9, 1.85e9, 1.95e9, 1.8e9]
    assert reported(*(gpu(n, level=level) for n, level in enumerate(levels))) == set()


def test_an_idle_gpu_lowers_its_clock_on_purpose():
    idle = {"gpu_utilization_ratio": lambda i: 0.98 if i < FELL_AT else 0.0}
    assert reported(gpu(0, ratio=0.3, **idle), *PEERS) == set()


def test_a_drop_of_a_few_seconds_is_not_told():
    assert reported(gpu(0, samples=FELL_AT + 6, ratio=0.9), *PEERS) == set()


def test_without_peers_a_drop_on_purpose_names_nobody():
    fell = {"ratio": 0.9}
    assert reported(gpu(0, **fell)) == NAMED
    assert reported(gpu(0, **fell, gpu_clock_event_reasons=4.0)) == set()
    assert reported(gpu(0, **fell, gpu_clock_event_reasons=4.0), *PEERS) == NAMED


def test_a_wild_clock_hides_a_small_drop():
    assert reported(gpu(0, ratio=0.9, jitter=40), *PEERS) == set()


def test_a_gpu_that_the_driver_calls_throttled_has_one_finding():
    hot = gpu(0, ratio=0.9, gpu_clock_event_reasons=float(0x40))
    assert reported(hot, *PEERS) == {("throttle", "n1/GPU-0", "critical")}


def test_peers_of_another_model_are_no_peers():
    models = {f"GPU-{n}": "NVIDIA H100" for n in range(1, 8)}
    (finding,) = findings(find(table(gpu(0, ratio=0.9), *PEERS), now_ns=1, models=models))
    assert finding.evidence["peers"] == 0


def test_too_few_samples_and_missing_ones_say_nothing():
    assert reported(gpu(0, samples=20, ratio=0.5)) == set()
    without = [row for row in gpu(0, ratio=0.9) if row[2] != "gpu_utilization_ratio"]
    assert reported(without, *PEERS) == set()


def test_a_deeper_drop_is_never_milder():
    found = [findings(find(table(gpu(0, ratio=r), *PEERS), now_ns=1)) for r in (1.0, 0.97, 0.9, 0.5)]
    assert [len(f) for f in found] == [0, 0, 1, 1]
    assert found[3][0].evidence["clock_ratio"] < found[2][0].evidence["clock_ratio"]


def test_a_longer_past_of_clocks_tells_what_is_usual():
    """An attempt that began when the clock was low already: in its own time nothing falls."""
    all_rows = [gpu(0, ratio=0.9), *PEERS]
    own = table(*(made[-len(READ) * 25 :] for made in all_rows))
    assert findings(find(own, now_ns=1)) == []
    (finding,) = findings(find(own, now_ns=1, clocks=table(*all_rows)))
    assert (finding.kind, finding.subject) == ("throttle", "n1/GPU-0")


def test_without_peers_a_gpu_that_warms_up_over_minutes_is_left_alone():
    slowly = rows("GPU-0", 600, period_s=1, gpu_sm_clock_hz=lambda i: 1.98e9 * (1 - 0.1 * i / 600))
    assert reported([row for row in slowly if row[2] in READ]) == set()
