"""MFU and its decay: when it is one, in which phase, and because of whom."""

from __future__ import annotations

import numpy as np
import pytest

from pulsetrain.analytics.slowness import device_peaks, mfu
from pulsetrain.analytics.verdict import Healthy, Inconclusive, findings
from pulsetrain.core.errors import UsageError
from tests.analytics.fleet import fleet, timings


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


@pytest.mark.parametrize(("part", "severity"), [("forward", "info"), ("data", "critical")])
def test_longer_compute_may_be_more_work_where_flops_are_inferred(part, severity):
    columns = fleet(steps=120, noise=0.02)
    extra = np.where(columns["step"] >= 80, 0.6 * columns["duration_ns"], 0)
    columns[part], columns["duration_ns"] = columns[part] + extra, columns["duration_ns"] + extra
    (finding,) = findings(mfu.find(timings(columns), inferred=lambda: True))
    assert (finding.evidence["phase"], finding.severity) == (part, severity)
    (finding,) = findings(mfu.find(timings(columns)))
    assert finding.severity == "critical"


@pytest.mark.parametrize(
    ("part", "where", "severity"),
    [
        ("other", "mostly in other phases of all ranks", "critical"),
        ("checkpoint", "mostly in checkpoint of all ranks", "critical"),
        (None, "in no known phase", "warning"),
    ],
)
def test_growth_is_put_to_the_phase_that_explains_it_or_to_none(part, where, severity):
    """As of generation in RLHF, whose texts grow longer. Some milliseconds of another phase are no cause."""
    columns = fleet(steps=120, noise=0.02)
    late = columns["step"] >= 80
    extra = np.where(late, 0.6 * columns["duration_ns"], 0)
    columns["other"] = 0.3 * columns["duration_ns"]
    columns["checkpoint"] = np.where(late, 1e6, 0)
    if part:
        columns[part] = columns[part] + extra
    columns["duration_ns"] = columns["duration_ns"] + extra
    (finding,) = findings(mfu.find(timings(columns)))
    assert where in finding.summary
    assert (finding.severity, finding.evidence["phase"]) == (severity, part or "")


def test_a_decay_that_was_over_is_found_on_request():
    columns = fleet(steps=240, noise=0.02)
    during = (columns["step"] >= 80) & (columns["step"] < 150)
    extra = np.where(during, 0.4 * columns["duration_ns"], 0)
    columns["data"], columns["duration_ns"] = extra, columns["duration_ns"] + extra
    assert not findings(mfu.find(timings(columns)))
    (finding,) = findings(mfu.find(timings(columns), scan=True))
    assert "for a while from" in finding.summary
    assert abs(finding.evidence["first_step"] - 80) <= 3
    assert finding.evidence["last_step"] < 160


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
    assert verdict.numbers["mfu"] == pytest.approx(float(np.median(rate[-20:])) / 989.4e12)


def test_few_steps_have_an_mfu_and_no_answer_on_its_decay():
    device = device_peaks.peak("H100-SXM", "bf16")
    (few,), (enough,) = (mfu.find(timings(fleet(steps=steps)), device) for steps in (30, 80))
    assert isinstance(few, Inconclusive)
    assert "28 steps tell their model FLOPs; 60 are needed" in few.reason
    assert few.numbers["mfu"] > 0
    assert isinstance(enough, Healthy)


def test_checkpoint_steps_do_not_count():
    columns = fleet(steps=60)
    every = columns["step"] % 20 == 10
    columns["checkpoint"] = np.where(every, 0.5 * columns["duration_ns"], 0)
    columns["duration_ns"] = columns["duration_ns"] + columns["checkpoint"]
    steps, _ = mfu.achieved(timings(columns))
    assert not set(steps.tolist()) & {10, 30, 50}


@pytest.mark.parametrize(
    "row",
    ["MyGPU,bf16", "MyGPU,bf16,fast,me", "MyGPU,bf16,0,me", "MyGPU,bf16,nan,me"],
)
def test_a_line_of_a_sites_peaks_that_cannot_be_read_is_named(tmp_path, row):
    table = tmp_path / "peaks.csv"
    table.write_text(f"# ours\ndevice,dtype,tflops,source\nA,bf16,1,me\n{row}\n")
    with pytest.raises(UsageError, match=r"peaks\.csv, line 4: allowed: device,dtype,tflops,source"):
        device_peaks.peak("A", "bf16", table)


def test_a_table_of_peaks_that_lacks_a_column_or_is_no_text_is_named(tmp_path):
    lacks, binary = tmp_path / "lacks.csv", tmp_path / "binary.csv"
    lacks.write_text("device,tflops\nA,1\n")
    binary.write_bytes(b"\xff\xfe\x00")
    for table, words in ((lacks, "line 2"), (binary, "it is no text")):
        with pytest.raises(UsageError, match=words):
            device_peaks.peak("A", "bf16", table)
