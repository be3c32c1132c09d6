"""From the confidence that an analyzer states to the measured frequency with which such findings are right.

The table is the isotonic fit (pool adjacent violators) of a campaign of real faults and clean windows, kind
by kind. docs/campaign.md describes it. It is monotone, so the order of confidences stays.

The campaign ran on processors with gloo. Nobody counted how often a finding on GPUs is right. There, and for
a kind without a row, the evidence has `calibrated` = false. On GPUs a finding of a kind in the table gets the
lower of the stated and the calibrated confidence, and at most 0.85. A kind without a row keeps the confidence
that its analyzer states.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from itertools import pairwise

from pulsetrain.analytics.verdict import Finding, Verdict

PRIOR_TRIALS = 4.0
"""how many trials the stated confidence counts for, so that a few trials do not make certainty"""
MIN_CONFIDENCE, MAX_CONFIDENCE = 0.02, 0.99
MAX_UNCALIBRATED = 0.85
"""the highest confidence where the table does not hold"""
Points = Sequence["CalibrationPoint"]  # of one kind, by ascending stated confidence


@dataclass(frozen=True, kw_only=True)
class CalibrationPoint:
    """Findings with a confidence of about `stated` were right with frequency `observed`, over `trials`."""

    stated: float
    observed: float
    trials: int


@cache
def table() -> Mapping[str, tuple[CalibrationPoint, ...]]:
    """Return the points of each kind from tables/calibration.csv, by ascending stated confidence.

    Columns: kind, stated, observed, trials. A comment in the file names the source.
    """
    text = files("pulsetrain.analytics").joinpath("tables/calibration.csv").read_text()
    points: dict[str, list[CalibrationPoint]] = {}
    for row in csv.DictReader(line for line in text.splitlines() if not line.startswith("#")):
        point = CalibrationPoint(
            stated=float(row["stated"]), observed=float(row["observed"]), trials=int(row["trials"])
        )
        points.setdefault(row["kind"], []).append(point)
    return {kind: tuple(sorted(of_kind, key=lambda p: p.stated)) for kind, of_kind in points.items()}


def calibrated(confidence: float, points: Points) -> float:
    """Return the observed frequency at a stated confidence: linear between points, constant above them.

    Below the first point nobody counted anything, so it falls in proportion. Without points, return the
    stated confidence.

    >>> low = CalibrationPoint(stated=0.8, observed=0.4, trials=9)
    >>> ends = (low, CalibrationPoint(stated=0.9, observed=1.0, trials=9))
    >>> calibrated(0.85, ends), calibrated(0.2, ends), calibrated(0.4, ())
    (0.7, 0.1, 0.4)
    """
    if not points:
        return confidence
    if confidence <= points[0].stated:
        first = points[0]
        return round(confidence * first.observed / first.stated, 4) if first.stated else first.observed
    for low, high in pairwise(points):
        if confidence <= high.stated:
            share = (confidence - low.stated) / (high.stated - low.stated)
            return round(low.observed + share * (high.observed - low.observed), 4)
    return points[-1].observed


def apply(
    verdicts: Iterable[Verdict], points: Mapping[str, Points] | None = None, *, covered: bool = True
) -> list[Verdict]:
    """Return the verdicts, each finding with its calibrated confidence.

    The evidence keeps `stated_confidence`, and says with `calibrated` whether the table holds. `points`
    defaults to the table. `covered`: the job runs under the conditions of the table, without GPUs.
    """
    known = table() if points is None else points
    return [_calibrated(v, known, covered=covered) if isinstance(v, Finding) else v for v in verdicts]


def _calibrated(finding: Finding, known: Mapping[str, Points], *, covered: bool) -> Finding:
    stated = finding.confidence
    if finding.kind not in known:
        return replace(finding, evidence={**finding.evidence, "calibrated": False})
    confidence = calibrated(stated, known[finding.kind])
    if not covered:
        confidence = min(stated, confidence, MAX_UNCALIBRATED)
    evidence = {**finding.evidence, "stated_confidence": stated, "calibrated": covered}
    return replace(finding, confidence=round(confidence, 3), evidence=evidence)


def fit(statements: Iterable[tuple[float, bool]]) -> tuple[CalibrationPoint, ...]:
    """Return the isotonic regression of being right on stated confidence.

    `statements` are (stated confidence, whether the finding was right). Each block has `PRIOR_TRIALS` more
    trials, right as often as stated.

    >>> fit([(0.6, False), (0.6, True), (0.9, True), (0.9, True)])[0].observed < 0.7
    True
    """
    blocks: list[_Block] = []
    for stated, right in sorted(statements):
        blocks.append(_Block(stated_sum=stated, trials=1, right=int(right)))
        while len(blocks) > 1 and blocks[-2].level >= blocks[-1].level:
            last = blocks.pop()
            blocks[-1] = blocks[-1].merged(last)
    return tuple(
        CalibrationPoint(
            stated=round(block.stated_sum / block.trials, 4),
            observed=round(block.level, 4),
            trials=block.trials,
        )
        for block in blocks
    )


@dataclass(frozen=True)
class _Block:
    """Trials that share one level of the isotonic regression."""

    stated_sum: float
    trials: int
    right: int

    @property
    def level(self) -> float:
        prior = PRIOR_TRIALS * self.stated_sum / self.trials
        level = (self.right + prior) / (self.trials + PRIOR_TRIALS)
        return min(max(level, MIN_CONFIDENCE), MAX_CONFIDENCE)

    def merged(self, other: _Block) -> _Block:
        return _Block(
            self.stated_sum + other.stated_sum, self.trials + other.trials, self.right + other.right
        )
