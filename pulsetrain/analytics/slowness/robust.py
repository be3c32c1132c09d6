"""Statistics that a few wild values do not move, over the rows (steps) of a steps x ranks matrix."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

TRIM = 0.15  # share of the steps cut off at each end of a trimmed mean
LOW = 0.25
MANY = 9  # columns from which one more or less hardly moves their median
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


def low_level(pieces: Floats) -> Floats:
    """log of the sum over pieces of a low quantile (`LOW`) over steps; pieces x steps x ranks, above 0.

    What each rank needs for its pieces of work when nothing gets in its way; the pieces one by one, because
    what gets in the way of a step seldom does so in all of them.
    """
    level: Floats = np.log(np.quantile(pieces, LOW, axis=1).sum(axis=0))
    return level


def apart(times: Floats) -> Floats:
    """How far (log) the quick quarter of each column's times lies beyond the slow quarter of the usual other
    column: above 0 only where its best are worse than the others' bad ones, however much all of them scatter.

    >>> apart(np.log(np.array([[2.0, 1.0, 1.0], [2.2, 1.0, 1.1], [2.1, 1.1, 1.0]]))).round(2).tolist()
    [0.67, -0.41, -0.41]
    """
    quick, slow = np.quantile(times, (LOW, 1 - LOW), axis=0)
    if len(slow) >= MANY:
        return np.asarray(quick - np.median(slow))
    return np.array([quick[i] - np.median(np.delete(slow, i)) for i in range(len(quick))])


def low_noise(pieces: Floats, chunk: int = 20, draws: int = 200) -> float:
    """Noise of one step in `low_level`, whose standard error is this over the root of the window's length.

    Measured twice and the larger taken: by bootstrap over all ranks' steps, each against its rank's own
    level in its chunk of steps, and by how much the ranks' levels scatter from chunk to chunk, which also
    holds what comes of steps that are not independent. Lasting differences between ranks do not count.
    """
    count, steps, ranks = pieces.shape
    size = min(chunk, steps)
    chunks = pieces[:, steps % size :].reshape(count, -1, size, ranks)
    usual = np.quantile(chunks, LOW, axis=2, keepdims=True)
    pool = (chunks / usual).reshape(count, -1)
    weights = np.median(usual.reshape(count, -1), axis=1)
    picks = np.random.default_rng(0).integers(pool.shape[1], size=(draws, size))
    drawn = np.quantile(pool[:, picks], LOW, axis=2)
    near = float(np.log((drawn * weights[:, None]).sum(axis=0)).std())
    levels = np.log(usual[:, :, 0].sum(axis=0))
    scatter = 0.0
    if len(levels) >= 3:
        common = levels - levels.mean(axis=1, keepdims=True)
        scatter = float(sigma(common - np.median(common, axis=0))) * (len(levels) / (len(levels) - 1)) ** 0.5
    return max(near, scatter) * float(np.sqrt(size))


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
