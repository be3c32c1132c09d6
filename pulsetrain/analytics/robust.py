"""Statistics that a few wild values do not move, over the rows (steps) of a steps x ranks matrix."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

TRIM = 0.15  # share of the steps cut off at each end of a trimmed mean
_MAD_TO_SIGMA = 1.4826  # of a normal distribution
_TRIMMED_LOSS = 1.03  # standard error of that trimmed mean over that of the mean, normal distribution


def trimmed_mean(values: Floats) -> Floats:
    """Mean of each column without its `TRIM` lowest and highest values. No NaN; at least one row.

    >>> trimmed_mean(np.array([[1.0], [1.0], [1.0], [1.0], [1.0], [1.0], [100.0]])).tolist()
    [1.0]
    """
    cut = int(np.ceil(TRIM * len(values))) if len(values) > 2 else 0
    ordered = np.sort(values, axis=0)
    middle: Floats = ordered[cut : len(values) - cut].mean(axis=0)
    return middle


def sigma(residuals: Floats, axis: int | None = None) -> Floats:
    """Standard deviation of residuals around 0, from their median absolute value."""
    spread: Floats = np.median(np.abs(residuals), axis=axis) * _MAD_TO_SIGMA
    return spread


def autocorrelation(residuals: Floats) -> float:
    """Correlation of a step's residual with the next step's, over all columns; 0..0.9."""
    if len(residuals) < 3:
        return 0.0
    limit = 3 * float(sigma(residuals)) or 1.0
    clipped = np.clip(residuals, -limit, limit)
    energy = float((clipped * clipped).mean())
    if energy <= 0:
        return 0.0
    return float(np.clip((clipped[1:] * clipped[:-1]).mean() / energy, 0.0, 0.9))


def standard_error(residuals: Floats) -> Floats:
    """Standard error of each column's trimmed mean, from its residuals and those of all columns together.

    All columns share most of their noise level, so that a short window of one does not look quiet by luck; a
    column that is wilder than the rest counts as such. Steps that follow each other are not independent.
    """
    pooled = float(sigma(residuals))
    own = sigma(residuals, axis=0)
    mixed = np.sqrt(np.maximum(pooled**2, 0.5 * pooled**2 + 0.5 * own**2))
    rho = autocorrelation(residuals)
    result: Floats = _TRIMMED_LOSS * mixed * np.sqrt((1 + rho) / (1 - rho) / len(residuals))
    return result


def quantile_of(false_alarms: float, tests: int) -> float:
    """Standard errors that an estimate must exceed so that all `tests` together raise `false_alarms` by luck.

    >>> round(quantile_of(1e-5, 1), 2)
    4.26
    """
    return NormalDist().inv_cdf(1 - false_alarms / max(1, tests))


def lower_median(values: Floats) -> float:
    """The lower of the two middle values: that of a sound rank where half of a cohort is slow."""
    return float(np.partition(values, (len(values) - 1) // 2)[(len(values) - 1) // 2])


def onset(series: Floats, height: float) -> int:
    """The index from which a series that is around `height` at its end left the level 0 (cumulative sum)."""
    sums = np.concatenate([[0.0], np.cumsum(series - height / 2)])
    return int(np.argmin(sums[:-1]))
