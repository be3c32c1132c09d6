"""Imbalance, stalls and MFU: planted faults are found, clean runs are left alone, nothing raises."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsetrain.analytics import report
from pulsetrain.analytics.slowness import device_peaks, imbalance, mfu, stalls
from pulsetrain.analytics.slowness.timings import COMPUTED
from pulsetrain.analytics.verdict import Finding, Healthy, Inconclusive, findings
from pulsetrain.core.errors import UsageError
from tests.analytics.fleet import fleet, parts_of, timings

ANALYZERS = {
    "stages": imbalance.stages,
    "data": partial(stalls.find, stall=stalls.DATA),
    "gc": partial(stalls.find, stall=stalls.GC),
    "mfu": mfu.find,
}
each = pytest.mark.parametrize("analyzer", ANALYZERS.values(), ids=ANALYZERS.keys())


def with_share(columns, part, share, ranks=None):
    """A fleet in which some ranks lose a share of each step to `part`."""
    hit = np.isin(columns["rank"], ranks) if ranks is not None else np.ones(len(columns["rank"]), np.bool_)
    return {**columns, part: np.where(hit, share * columns["duration_ns"], 0.001 * columns["duration_ns"])}


@each
def test_clean_runs_give_no_finding(analyzer):
    for seed in range(30):
        for noise in (0.01, 0.1):
            assert not findings(analyzer(timings(fleet(seed=seed, noise=noise, steps=120))))


def test_a_heavier_stage_is_named_and_no_rank():
    (finding,) = findings(imbalance.stages(timings(fleet(stage_ratio={1: 1.5}))))
    assert (finding.kind, finding.subject_type, finding.subject) == ("stage_imbalance", "stage", "1")
    assert finding.severity == "warning"


def test_a_slow_node_in_a_stage_is_no_imbalance_of_stages():
    assert not findings(imbalance.stages(timings(fleet(slow={4: 1.5, 5: 1.5}))))


def waiting(columns, shares):
    """The same where stages wait for processors for these shares of what they compute, and it is counted."""
    lost = np.array(shares)[columns["pp"]] * columns["compute"]
    stretched = {p: columns[p] * (1 + lost / columns["compute"]) for p in COMPUTED}
    return {**columns, **stretched, "cpu_wait": lost}


def test_a_stage_that_waits_more_for_processors_makes_the_other_no_longer():
    """What is counted as waiting may be more than what lengthened the computing."""
    columns = waiting(fleet(noise=0.02), (0.5, 0.5))
    columns["cpu_wait"] = columns["cpu_wait"] * np.where(columns["pp"] == 1, 1.9, 1.0)
    assert not findings(imbalance.stages(timings(columns)))


def test_a_heavier_stage_is_named_on_a_crowded_host_too():
    (finding,) = findings(imbalance.stages(timings(waiting(fleet(stage_ratio={1: 1.5}), (0.3, 0.3)))))
    assert finding.subject == "1"


@pytest.mark.parametrize(("stall", "share"), [(stalls.DATA, 0.3), (stalls.GC, 0.1)])
def test_lost_time_of_all_is_the_jobs_and_of_one_is_its_own(stall, share):
    everyone = findings(stalls.find(timings(with_share(fleet(), stall.part, share)), stall))
    assert [(f.kind, f.subject_type) for f in everyone] == [(stall.kind, "job")]
    one = findings(stalls.find(timings(with_share(fleet(), stall.part, share, [3])), stall))
    assert [(f.subject_type, f.subject) for f in one] == [("rank", "3")]


@pytest.mark.parametrize("stall", [stalls.DATA, stalls.GC])
def test_a_step_that_stood_in_a_run_queue_is_no_stall(stall):
    """Where a rank loads data when it loses its processor, the loading takes as long as it is away."""
    columns = fleet(per_node=1)
    hit = (columns["rank"] == 3) & (columns["step"] == 30)
    away = np.where(hit, 20.0 * columns["duration_ns"], 0.0)
    long = {stall.part: 0.001 * columns["duration_ns"] + away, "duration_ns": columns["duration_ns"] + away}
    (finding,) = findings(stalls.find(timings({**columns, **long}), stall))
    assert (finding.subject_type, finding.subject) == ("rank", "3")
    assert not findings(stalls.find(timings({**columns, **long, "cpu_wait": away}), stall))


def test_collections_are_found_on_a_host_whose_ranks_stand_in_run_queues():
    columns = fleet(per_node=1)
    hit = columns["rank"] == 3
    gc = np.where(hit, 0.08 * columns["duration_ns"], 0.0)
    queued = 0.3 * columns["duration_ns"]
    (finding,) = findings(stalls.find(timings({**columns, "gc": gc, "cpu_wait": queued}), stalls.GC))
    assert (finding.kind, finding.subject) == ("gc_pause", "3")


def test_a_decay_of_throughput_is_found_and_attributed():
    columns = fleet(steps=120, noise=0.02)
    late = columns["step"] >= 80
    extra = np.where(late, 0.3 * columns["duration_ns"], 0)
    columns["data"], columns["duration_ns"] = extra, columns["duration_ns"] + extra
    (finding,) = findings(mfu.find(timings(columns)))
    assert finding.kind == "mfu_decay"
    assert finding.evidence["phase"] == "data"
    assert abs(finding.evidence["first_step"] - 80) <= 3
    assert finding.evidence["loss"] == pytest.approx(1 - 1 / 1.3, abs=0.03)


@pytest.mark.parametrize(("slow", "cohort"), [([3], "rank 3"), ([2, 3], "node n1"), ([0, 3, 5], "3 ranks")])
def test_a_decay_that_most_only_wait_for_is_put_to_those_who_cause_it(slow, cohort):
    columns = fleet(steps=120, noise=0.02)
    late = columns["step"] >= 80
    culprit = late & np.isin(columns["rank"], slow)
    extra = np.where(late, 0.3 * columns["duration_ns"], 0)
    columns["forward"] = columns["forward"] + np.where(culprit, extra, 0)
    columns["wait"] = columns["wait"] + np.where(culprit, 0, extra)
    columns["duration_ns"] = columns["duration_ns"] + extra
    (finding,) = findings(mfu.find(timings(columns)))
    assert (finding.evidence["phase"], finding.evidence["cohort"]) == ("forward", cohort)
    assert finding.evidence["ranks"] == slow


def test_one_lucky_fast_window_is_no_decay_afterwards():
    columns = fleet(steps=200, noise=0.02)
    lucky = (columns["step"] >= 60) & (columns["step"] < 80)
    columns["duration_ns"] = columns["duration_ns"] * np.where(lucky, 0.7, 1.0)
    assert not findings(mfu.find(timings(columns)))


def test_mfu_is_flops_over_time_and_peak():
    columns = fleet(steps=30, noise=0.0)
    t = timings(columns)
    steps, rate = mfu.achieved(t)
    assert len(steps) == 28
    assert rate[0] == pytest.approx(1e9 / (columns["duration_ns"][2 * 8] / 1e9))
    (verdict,) = mfu.find(t, device_peaks.peak("H100-SXM", "bf16"))
    assert isinstance(verdict, Healthy)
    assert verdict.numbers["mfu"] == pytest.approx(float(np.median(rate[-20:])) / 989.4e12)


def test_checkpoint_steps_do_not_count():
    columns = fleet(steps=60)
    every = columns["step"] % 20 == 10
    columns["checkpoint"] = np.where(every, 0.5 * columns["duration_ns"], 0)
    columns["duration_ns"] = columns["duration_ns"] + columns["checkpoint"]
    steps, _ = mfu.achieved(timings(columns))
    assert not set(steps.tolist()) & {10, 30, 50}


@pytest.mark.parametrize(("text", "words"), [("H100", "DEVICE/DTYPE"), ("H900/bf16", "no peak on record")])
def test_a_device_is_named_with_its_data_type(text, words):
    assert report.device_peak("H100-SXM/bf16").flops_per_s == pytest.approx(989.4e12)
    with pytest.raises(UsageError, match=words):
        report.device_peak(text, option="[hub] device")


def test_an_unknown_device_names_those_that_are_known():
    with pytest.raises(UsageError, match="H200/bf16"):
        device_peaks.peak("H900", "bf16")


def test_a_sites_table_overrides_ours(tmp_path):
    path = tmp_path / "peaks.csv"
    path.write_text("device,dtype,tflops,source\nA100,bf16,300,measured\nX1,fp8,9,ours\n")
    assert device_peaks.peak("A100", "bf16", path).flops_per_s == 300e12
    assert device_peaks.peak("X1", "fp8", path).source == "ours"


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=5, deadline=None)
def test_order_of_rows_changes_nothing(seed):
    columns = with_share(with_share(fleet(stage_ratio={1: 1.5}), "data", 0.3), "gc", 0.1)
    order = np.random.default_rng(seed).permutation(len(columns["rank"]))
    for analyzer in ANALYZERS.values():
        assert analyzer(timings(columns, order=order)) == analyzer(timings(columns))


@each
def test_degenerate_data_gets_a_verdict(analyzer):
    columns = fleet(steps=40)
    count, cases = len(columns["rank"]), parts_of(columns)
    cases += [
        {**columns, "compute": np.full(count, np.nan), "flops": np.full(count, np.nan)},
        {**columns, "duration_ns": np.zeros(count), "forward": np.zeros(count)},
        {n: np.concatenate([v, v]) for n, v in columns.items()},
    ]
    for case in cases:
        verdicts = analyzer(timings(case))
        assert verdicts
        assert all(isinstance(v, Finding | Healthy | Inconclusive) for v in verdicts)


@pytest.mark.parametrize(
    ("analyzer", "plant"),
    [
        (imbalance.stages, lambda x: fleet(stage_ratio={1: 1 + x})),
        (ANALYZERS["data"], lambda x: with_share(fleet(), "data", min(x, 0.9))),
        (ANALYZERS["gc"], lambda x: with_share(fleet(), "gc", min(x, 0.9))),
    ],
)
def test_a_worse_fault_is_never_milder(analyzer, plant):
    order = {"info": 1, "warning": 2, "critical": 3}
    weights = [
        max(
            ((order[f.severity], f.confidence) for f in findings(analyzer(timings(plant(x))))),
            default=(0, 0.0),
        )
        for x in (0.0, 0.05, 0.2, 0.3, 0.5, 0.8)
    ]
    assert weights == sorted(weights)
