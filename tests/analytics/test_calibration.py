"""Calibration: monotone, between what was stated and what was seen, and harmless where nothing is known."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.analytics import calibration
from pulsetrain.analytics.calibration import CalibrationPoint, apply, calibrated, fit, table
from pulsetrain.analytics.verdict import Finding, Healthy

statements = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=80)


def finding(confidence, kind="straggler"):
    return Finding(
        ts_ns=0, job="j", attempt=0, kind=kind, subject_type="rank", subject="3", severity="warning",
        confidence=confidence, summary="", evidence={"ratio": 2.0},
    )  # fmt: skip


@given(statements, st.floats(0, 1), st.floats(0, 1))
def test_the_order_of_confidences_stays(trials, a, b):
    points = fit(trials)
    low, high = sorted((a, b))
    assert calibrated(low, points) <= calibrated(high, points)


@given(statements)
def test_every_trial_is_in_one_point_and_points_ascend(trials):
    points = fit(trials)
    assert sum(k.trials for k in points) == len(trials)
    assert [k.stated for k in points] == sorted(k.stated for k in points)
    assert [k.observed for k in points] == sorted(k.observed for k in points)
    assert all(calibration.MIN_CONFIDENCE <= k.observed <= calibration.MAX_CONFIDENCE for k in points)


def test_an_overconfident_detector_is_brought_to_what_it_is_worth():
    draw = np.random.default_rng(0)
    stated = draw.uniform(0.6, 0.95, 2000)
    trials = [(s, bool(draw.random() < s - 0.3)) for s in stated.tolist()]
    points = fit(trials)
    assert all(abs(calibrated(s, points) - (s - 0.3)) < 0.08 for s in (0.65, 0.75, 0.85))


def test_a_few_trials_do_not_make_certainty():
    (point,) = fit([(0.7, True)])
    assert 0.7 < point.observed < 0.8


def test_findings_keep_what_was_stated_and_others_pass_untouched():
    points = {
        "straggler": (
            CalibrationPoint(stated=0.5, observed=0.25, trials=9),
            CalibrationPoint(stated=1.0, observed=0.75, trials=9),
        )
    }
    healthy = Healthy(analyzer="x")
    changed, other, same = apply([finding(0.75), finding(0.75, "other"), healthy], points)
    assert (changed.confidence, changed.evidence["stated_confidence"]) == (0.5, 0.75)
    assert (other.confidence, same) == (0.75, healthy)


def test_the_shipped_table_ascends():
    for points in table().values():
        assert [k.observed for k in points] == sorted(k.observed for k in points)
        assert all(0 < k.observed <= 1 and k.trials > 0 for k in points)


def test_where_the_table_was_not_counted_a_finding_says_so_and_is_less_sure():
    (covered,) = apply([finding(0.95, "hang")])
    (elsewhere,) = apply([finding(0.95, "hang")], covered=False)
    assert covered.evidence["calibrated"] is True
    assert elsewhere.evidence["calibrated"] is False
    assert covered.confidence > elsewhere.confidence == calibration.MAX_UNCALIBRATED
    assert elsewhere.evidence["stated_confidence"] == 0.95


@given(st.floats(0, 1), st.floats(0, 1))
def test_elsewhere_the_order_of_confidences_stays_and_none_rises(a, b):
    low, high = (apply([finding(x)], covered=False)[0].confidence for x in sorted((a, b)))
    assert low <= high <= max(a, b) + 1e-3


def test_a_kind_that_was_not_counted_keeps_its_confidence_and_says_so():
    (kept,) = apply([finding(0.7, "link_flap")])
    assert (kept.confidence, kept.evidence["calibrated"]) == (0.7, False)


def test_a_guess_below_all_that_was_counted_is_not_made_a_certainty():
    points = {"hang": (CalibrationPoint(stated=0.9282, observed=0.99, trials=44),)}
    assert [f.confidence for f in apply([finding(0.5, "hang"), finding(0.95, "hang")], points)] == [
        0.533,
        0.99,
    ]
