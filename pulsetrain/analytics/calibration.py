"""From the confidence that an analyzer states to how often such a statement was right when that was measured.

The table is the isotonic fit (pool adjacent violators) of a campaign of real faults and clean windows, kind
by kind, as docs/campaign.md describes it. It is monotone, so the surer finding stays the surer one. A kind
without a row keeps what its analyzer states.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from itertools import pairwise

from pulsetrain.analytics.verdict import Finding, Verdict

PRIOR = 4.0
"""statements that the analyzer's own figure counts for, so that a few trials do not make certainty"""
LEAST, MOST = 0.02, 0.99


@dataclass(frozen=True, kw_only=True)
class CalibrationPoint:
    """Statements around `stated` were right `observed` of the time, over `trials` of them."""

    stated: float
    observed: float
    trials: int


@cache
def table() -> Mapping[str, tuple[CalibrationPoint, ...]]:
    """The knots of each kind, ascending. tables/calibration.csv: kind, stated, observed, trials; its comment
    names the source."""
    text = files("pulsetrain.analytics").joinpath("tables/calibration.csv").read_text()
    knots: dict[str, list[CalibrationPoint]] = {}
    for row in csv.DictReader(line for line in text.splitlines() if not line.startswith("#")):
        knot = CalibrationPoint(
            stated=float(row["stated"]), observed=float(row["observed"]), trials=int(row["trials"])
        )
        knots.setdefault(row["kind"], []).append(knot)
    return {kind: tuple(sorted(found, key=lambda k: k.stated)) for kind, found in knots.items()}


def calibrated(confidence: float, knots: Sequence[CalibrationPoint]) -> float:
    """The observed frequency at a stated confidence, linear between knots and flat beyond them.

    >>> low = CalibrationPoint(stated=0.7, observed=0.5, trials=9)
    >>> ends = (low, CalibrationPoint(stated=0.9, observed=1.0, trials=9))
    >>> calibrated(0.8, ends), calibrated(0.2, ends), calibrated(0.4, ())
    (0.75, 0.5, 0.4)
    """
    if not knots:
        return confidence
    if confidence <= knots[0].stated:
        return knots[0].observed
    for low, high in pairwise(knots):
        if confidence <= high.stated:
            share = (confidence - low.stated) / (high.stated - low.stated)
            return round(low.observed + share * (high.observed - low.observed), 4)
    return knots[-1].observed


def apply(
    verdicts: Iterable[Verdict], knots: Mapping[str, Sequence[CalibrationPoint]] | None = None
) -> list[Verdict]:
    """The verdicts, each finding with its calibrated confidence; evidence keeps `stated_confidence`."""
    known = table() if knots is None else knots
    return [
        _calibrated(v, known[v.kind]) if isinstance(v, Finding) and v.kind in known else v for v in verdicts
    ]


def _calibrated(finding: Finding, knots: Sequence[CalibrationPoint]) -> Finding:
    stated = finding.confidence
    evidence = {**finding.evidence, "stated_confidence": stated}
    return replace(finding, confidence=round(calibrated(stated, knots), 3), evidence=evidence)


def fit(statements: Iterable[tuple[float, bool]]) -> tuple[CalibrationPoint, ...]:
    """The isotonic regression of right on stated confidence, each block with `PRIOR` statements of its own.

    >>> fit([(0.6, False), (0.6, True), (0.9, True), (0.9, True)])[0].observed < 0.7
    True
    """
    blocks: list[list[float]] = []  # sum of stated, number, number right
    for stated, right in sorted(statements):
        blocks.append([stated, 1.0, float(right)])
        while len(blocks) > 1 and _level(blocks[-2]) >= _level(blocks[-1]):
            last = blocks.pop()
            blocks[-1] = [a + b for a, b in zip(blocks[-1], last, strict=True)]
    return tuple(
        CalibrationPoint(
            stated=round(total / count, 4), observed=round(_level([total, count, hits]), 4), trials=int(count)
        )
        for total, count, hits in blocks
    )


def _level(block: Sequence[float]) -> float:
    total, count, hits = block
    level = (hits + PRIOR * total / count) / (count + PRIOR)
    return min(max(level, LEAST), MOST)
