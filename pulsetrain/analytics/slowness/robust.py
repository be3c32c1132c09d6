"""Statistics that a few wild values do not move, over the rows (steps) of a steps x ranks matrix."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

TRIM = 0.15  # share of the steps cut off at each end of a trimmed mean
LOW_QUANTILE = 0.25
LARGE_COHORT = 9  # columns from which one more or less hardly moves their median
_MAD_TO_SIGMA = 1.4826  # of a normal distribution
_TRIMMED_LOSS = 1.03  # standard error of that trimmed mean over that of the mean, normal distribution


def trimmed_mean(values: Floats) -> Floats:
    """Mean of each column without its `TRIM` lowest and highest values. No NaN, at least one row.

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
    """Correlation of a step's residual with that of the next step, over all columns, from 0 to 0.9."""
    if len(residuals) < 3:
        return 0.0
    limit = 3 * float(sigma(residuals)) or 1.0
    clipped = np.clip(residuals, -limit, limit)
    energy = float((clipped * clipped).mean())
    if energy <= 0:
        return 0.0
    return float(np.clip((clipped[1:] * clipped[:-1]).mean() / energy, 0.0, 0.9))


def standard_error(residuals: Floats) -> Floats:
    """Standard error of each column's trimmed mean, from its own residuals and those of all columns.

    All columns share most of their noise level, so a short window of one column does not look quiet by luck.
    A column that is wilder than the rest counts as such. Successive steps are not independent, which widens
    the error.
    """
    pooled = float(sigma(residuals))
    own = sigma(residuals, axis=0)
    mixed = np.sqrt(np.maximum(pooled**2, 0.5 * pooled**2 + 0.5 * own**2))
    rho = autocorrelation(residuals)
    result: Floats = _TRIMMED_LOSS * mixed * np.sqrt((1 + rho) / (1 - rho) / len(residuals))
    return result


def low_level(pieces: Floats) -> Floats:
    """Log of the time that each rank needs when nothing gets in its way.

    `pieces` is [piece, step, rank], all above 0. The level is the sum over pieces of a low quantile over
    steps. The pieces are taken one by one, because a disturbance of a step seldom hits all of them.
    """
    level: Floats = np.log(np.quantile(pieces, LOW_QUANTILE, axis=1).sum(axis=0))
    return level


def quartile_gap(times: Floats) -> Floats:
    """How far (log) each column's lower quartile lies above the upper quartile of the usual other column.

    Above 0 only where a column's best times are worse than the others' bad times, however much all scatter.

    >>> quartile_gap(np.log(np.array([[2.0, 1.0, 1.0], [2.2, 1.0, 1.1], [2.1, 1.1, 1.0]]))).round(2).tolist()
    [0.67, -0.41, -0.41]
    """
    quick, slow = np.quantile(times, (LOW_QUANTILE, 1 - LOW_QUANTILE), axis=0)
    if len(slow) >= LARGE_COHORT:
        return np.asarray(quick - np.median(slow))
    return np.array([quick[i] - np.median(np.delete(slow, i)) for i in range(len(quick))])


def low_noise(pieces: Floats, chunk: int = 20, draws: int = 200) -> float:
    """Noise of one step in `low_level`: over the root of the window's length, the level's standard error.

    Measured in two ways, of which the larger counts. First by bootstrap over the steps of all ranks, each
    relative to its rank's own level in its chunk of steps. Second by how much the ranks' levels scatter from
    chunk to chunk, which includes the effect of steps that are not independent. Lasting differences between
    ranks do not count.
    """
    count, steps, ranks = pieces.shape
    size = min(chunk, steps)
    chunks = pieces[:, steps % size :].reshape(count, -1, size, ranks)
    usual = np.quantile(chunks, LOW_QUANTILE, axis=2, keepdims=True)
    pool = (chunks / usual).reshape(count, -1)
    weights = np.median(usual.reshape(count, -1), axis=1)
    picks = np.random.default_rng(0).integers(pool.shape[1], size=(draws, size))
    drawn = np.quantile(pool[:, picks], LOW_QUANTILE, axis=2)
    near = float(np.log((drawn * weights[:, None]).sum(axis=0)).std())
    levels = np.log(usual[:, :, 0].sum(axis=0))
    scatter = 0.0
    if len(levels) >= 3:
        common = levels - levels.mean(axis=1, keepdims=True)
        scatter = float(sigma(common - np.median(common, axis=0))) * (len(levels) / (len(levels) - 1)) ** 0.5
    return max(near, scatter) * float(np.sqrt(size))


def sigmas_needed(false_alarms: float, tests: int) -> float:
    """Standard errors that an estimate must exceed so that all `tests` together raise `false_alarms` by luck.

    >>> round(sigmas_needed(1e-5, 1), 2)
    4.26
    """
    return NormalDist().inv_cdf(1 - false_alarms / max(1, tests))


def lower_median(values: Floats) -> float:
    """The lower of the two middle values: that of a sound rank even where half of a cohort is slow.

    >>> lower_median(np.array([1.0, 1.0, 9.0, 9.0]))
    1.0
    """
    return float(np.partition(values, (len(values) - 1) // 2)[(len(values) - 1) // 2])


def medians_of_others(values: Floats) -> Floats:
    """For each value the median of its row without it. At least two columns.

    >>> medians_of_others(np.array([[1.0, 2.0, 3.0, 9.0]])).tolist()
    [[3.0, 3.0, 2.0, 2.0]]
    """
    others = values.shape[1] - 1
    low, high = _nth_of_others(values, (others - 1) // 2), _nth_of_others(values, others // 2)
    return np.asarray((low + high) / 2)


def highest_of_others(values: Floats) -> Floats:
    """For each value the highest of its row without it. At least two columns.

    >>> highest_of_others(np.array([[1.0, 2.0, 9.0]])).tolist()
    [[9.0, 9.0, 2.0]]
    """
    return _nth_of_others(values, values.shape[1] - 2)


def _nth_of_others(values: Floats, n: int) -> Floats:
    """For each value the one at place `n` (0 is the lowest) of its row without it."""
    ordered = np.partition(values, (n, n + 1), axis=1)
    return np.where(values > ordered[:, n, None], ordered[:, n, None], ordered[:, n + 1, None])


def onset(series: Floats, height: float) -> int:
    """The index at which a series that ends around `height` left the level 0 (by its cumulative sum).

    >>> onset(np.array([0.0, 0.1, -0.1, 1.0, 0.9, 1.1]), 1.0)
    3
    """
    sums = np.concatenate([[0.0], np.cumsum(series - height / 2)])
    return int(np.argmin(sums[:-1]))
