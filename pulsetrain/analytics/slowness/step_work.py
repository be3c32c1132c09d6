"""How much work a step is, and since when: the tokens and FLOPs of the usual rank. Pure.

A rank that nobody stands beside is compared with its own past, or with other stages. Both mislead where a
step came to be more work: longer sequences cost stages and parts unequally, for each token too.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pulsetrain.analytics.slowness.change_point import rolling_median
from pulsetrain.analytics.slowness.timings import Timings

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]

WIDTH = 10  # steps of a level
CHANGED_RATIO = 0.05  # by which the work of a step must change, at least
SIGMAS = 5.0  # standard errors of the difference of two levels that it must exceed
_MEDIAN_ERROR = 1.25  # standard error of a median over that of the mean, normal distribution


def since_change(timings: Timings, rows: Rows) -> Rows:
    """The newest of `rows` in which a step was as much work as in the last of them.

    All of them where nobody counts tokens or FLOPs.

    >>> from pulsetrain.analytics.slowness.timings import from_matrices
    >>> tokens = np.where(np.arange(60) < 40, 4096.0, 8192.0)[:, None].repeat(2, axis=1)
    >>> job = from_matrices({"compute": tokens, "tokens": tokens})
    >>> len(since_change(job, np.arange(60))) <= 20
    True
    """
    first = max(_last_change(timings.numbers[name][rows]) for name in ("tokens", "flops"))
    return rows[first:]


def is_same_work(timings: Timings, rows: Rows) -> bool:
    """Whether somebody counts tokens or FLOPs, and all of `rows` were as much work as the last of them."""
    counted = any((timings.numbers[name][rows] > 0).any() for name in ("tokens", "flops"))
    return counted and len(since_change(timings, rows)) == len(rows)


def _last_change(counts: Floats) -> int:
    """The first row that is as much work as the last ones. `counts` is [step, rank], and 0 is not counted."""
    logs = _usual(counts)
    known = np.flatnonzero(np.isfinite(logs))
    if len(known) < 2 * WIDTH:
        return 0
    levels = rolling_median(logs[known], WIDTH)
    middle = logs[known][WIDTH // 2 :][: len(levels)]
    noise = float(np.std(middle - levels[: len(middle)]))  # short and long batches may take turns
    error = _MEDIAN_ERROR * noise * np.sqrt(2 / WIDTH)
    limit = max(float(np.log1p(CHANGED_RATIO)), SIGMAS * error)
    different = np.flatnonzero(np.abs(levels - levels[-1]) > limit)
    return int(known[different[-1] + WIDTH // 2]) + 1 if different.size else 0


def _usual(counts: Floats) -> Floats:
    """Log of the count of the usual rank in each step. NaN where nobody counted."""
    counted = np.where(counts > 0, counts, np.nan)
    usual = np.full(len(counts), np.nan)
    some = np.isfinite(counted).any(axis=1)
    if some.any():
        usual[some] = np.log(np.nanmedian(counted[some], axis=1))
    return usual
