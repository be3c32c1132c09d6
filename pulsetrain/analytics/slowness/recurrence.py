"""Where a sequence of operations repeats itself: what stands for the steps of a job that names none. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

NEWEST = 32_768  # operations in which a period is looked for
TIMES = 4  # a period must come at least so often
MISSED = 0.05  # of the operations that may differ from the one a period before: evaluation, a save
SAMPLES = 256  # operations at which most numbers are seen to be no period


def periods(kinds: Ints) -> list[int]:
    """After how many operations the newest ones may repeat themselves, fewest first, [] where they do not.

    Each of these numbers fits better than all smaller ones.

    >>> periods(np.array([1, 1, 2] * 9)), periods(np.arange(40)), periods(np.array(([1, 2] * 30 + [3]) * 9))
    ([3], [], [2, 61])
    """
    newest = kinds[-NEWEST:]
    lags = np.arange(1, len(newest) // TIMES + 1)
    if not len(lags):
        return []
    sampled = np.unique(np.linspace(lags[-1], len(newest) - 1, SAMPLES).astype(np.int64))
    seen = np.concatenate(
        [
            (newest[sampled] != newest[sampled - part[:, None]]).mean(axis=1)
            for part in np.array_split(lags, -(-len(lags) // 1024))
        ]
    )
    lags = lags[seen <= 2 * MISSED]
    missed = np.array([(newest[lag:] != newest[:-lag]).mean() for lag in lags.tolist()])
    best = np.append(np.inf, np.minimum.accumulate(missed))[:-1]
    return [int(lag) for lag in lags[(missed <= MISSED) & (missed < best)]]


def newest_whole(kinds: Ints, length: int) -> int:
    """Where the newest period of `length` operations ends that is like the one before. -1: nowhere.

    >>> newest_whole(np.array([1, 2, 1, 2, 1, 2, 9]), 2)
    5
    """
    same = np.append(0, np.cumsum(kinds[length:] == kinds[:-length]))
    whole = np.flatnonzero(same[length:] - same[:-length] == length)
    return int(whole[-1]) + 2 * length - 1 if len(whole) else -1


def endings(kinds: Ints, pattern: Ints) -> Ints:
    """Where the pattern ends each time that it comes, none of which overlap.

    >>> endings(np.array([1, 2, 1, 2, 7, 1, 2]), np.array([1, 2]))
    array([1, 3, 6])
    """
    at = np.flatnonzero(kinds == pattern[-1])
    at = at[at >= len(pattern) - 1]
    for back in range(1, len(pattern)):
        at = at[kinds[at - back] == pattern[-1 - back]]
    if (np.diff(at) >= len(pattern)).all():
        return at
    kept: list[int] = []
    for end in at.tolist():
        if not kept or end - kept[-1] >= len(pattern):
            kept.append(end)
    return np.array(kept, np.int64)
