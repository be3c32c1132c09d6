"""What `pulsetrain analyze` prints."""

from __future__ import annotations

import pytest

from pulsetrain.analytics import report
from pulsetrain.analytics.verdict import Failed, Finding, Healthy, Inconclusive
from pulsetrain.core.errors import UsageError


def finding(severity="warning", confidence=0.5, kind="straggler", subject="3"):
    return Finding(
        ts_ns=1,
        job="j",
        attempt=0,
        kind=kind,
        subject_type="rank",
        subject=subject,
        severity=severity,
        confidence=confidence,
        summary=f"Rank {subject}.",
    )


HEALTHY = Healthy(analyzer="mfu", numbers={"mfu": 0.4, "device": "H100", "peak_source": "NVIDIA"})
BLIND = Inconclusive(analyzer="logs", reason="no line", blind=True)
UNSURE = Inconclusive(analyzer="links", reason="one group")
FAILED = Failed(analyzer="network", error="ValueError: x")


def test_rows_are_ordered_by_severity_then_by_confidence():
    verdicts = [
        finding("info", 0.9),
        HEALTHY,
        finding("critical", 0.4),
        finding("warning", 0.6),
        finding("warning", 0.8),
    ]
    assert [(r["severity"], r["confidence"]) for r in report.rows(verdicts)] == [
        ("critical", 0.4),
        ("warning", 0.8),
        ("warning", 0.6),
        ("info", 0.9),
    ]


def test_the_order_of_verdicts_changes_nothing():
    verdicts = [finding(subject=str(r), kind=k) for r in range(3) for k in ("hang", "crash")]
    assert report.rows(verdicts) == report.rows(verdicts[::-1])


def test_text_has_findings_and_failures_and_on_request_the_rest():
    verdicts = [HEALTHY, BLIND, UNSURE, FAILED, finding()]
    short = [
        "warning: straggler: Rank 3. (confidence 0.50)",
        "failed: network: ValueError: x",
    ]
    assert report.lines(verdicts, everything=False) == short
    assert report.lines(verdicts, everything=True) == [
        short[0],
        "healthy: mfu: MFU 40.0% of H100 (NVIDIA)",
        "blind: logs: no line",
        "inconclusive: links: one group",
        short[1],
    ]


def test_a_healthy_verdict_says_how_many_ranks_were_compared_with_nobody_else():
    numbers = {"ranks": 8, "steps": 40}
    healthy = [Healthy(analyzer="straggler", numbers=numbers | {"alone": alone}) for alone in (2, 0)]
    assert report.lines(healthy, everything=True)[1:] == [
        "healthy: straggler: 2 of 8 ranks were compared with their own past only",
        "healthy: straggler",
    ]


def test_an_inconclusive_verdict_tells_what_was_measured_all_the_same():
    few = Inconclusive(analyzer="mfu", reason="28 steps", numbers=HEALTHY.numbers)
    assert report.lines([few], everything=True)[1:] == [
        "inconclusive: mfu: 28 steps: MFU 40.0% of H100 (NVIDIA)"
    ]
    assert report.states([few])[0]["numbers"] == HEALTHY.numbers
    assert "numbers" not in report.states([UNSURE])[0]


def test_no_finding_is_said():
    assert report.lines([Healthy(analyzer="hang")], everything=False) == ["No finding."]


@pytest.mark.parametrize(
    ("verdicts", "status"),
    [([HEALTHY, BLIND], 0), ([finding("info")], 0), ([finding()], 1), ([FAILED], 1), ([], 0)],
)
def test_the_exit_status_is_one_where_somebody_has_to_act(verdicts, status):
    assert report.exit_status(verdicts) == status


def test_every_verdict_has_a_state():
    states = [s["state"] for s in report.states([HEALTHY, BLIND, UNSURE, FAILED, finding()])]
    assert states == ["healthy", "blind", "inconclusive", "failed", "finding"]


def test_a_device_without_its_data_type_is_refused_by_the_name_of_the_option():
    with pytest.raises(UsageError, match=r"\[hub\] device 'H100': give DEVICE/DTYPE"):
        report.device_peak("H100", option="[hub] device")


def test_a_sites_own_peaks_are_used(tmp_path):
    path = tmp_path / "peaks.csv"
    path.write_text("device,dtype,tflops,source\nX1,fp8,9,ours\n")
    assert report.device_peak("X1/fp8", path).flops_per_s == 9e12


def test_what_was_not_looked_at_is_said_unasked():
    note = Inconclusive(analyzer="analyze", reason="only steps 40 to 59 were read")
    assert report.lines([UNSURE, note], everything=False) == [
        "No finding.",
        f"inconclusive: analyze: {note.reason}",
    ]
