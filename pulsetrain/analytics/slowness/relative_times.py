"""Step times relative to a rank's own usual time, and to what the other ranks took in the same step.

All arrays are [rank, step]. Zero, negative and infinite times count as missing (NaN).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

ALIKE = 1.2  # ratio of usual times up to which ranks are compared with each other
LARGE = 5  # ranks from which one more or less hardly moves their median


def over_own_median(values: Floats) -> Floats:
    """Each row over its own median."""
    usable, centre = _centred(values)
    return np.asarray(usable / np.where(np.isnan(centre), 1.0, centre)[:, None])


def over_others(values: Floats) -> Floats:
    """Each value over the median of the other rows in the same step (of all rows, where there are many)."""
    count = values.shape[0]
    if count >= LARGE:
        return values / _median_of_rows(values)[None]
    others = np.stack([_median_of_rows(np.delete(values, row, axis=0)) for row in range(count)])
    return values / others


def over_similar(values: Floats) -> Floats:
    """Each value over the median, in the same step, of rows whose usual time is within a fifth of its own.

    NaN where fewer than three rows are that similar.
    """
    usable, centre = _centred(values)
    order = np.argsort(centre, kind="stable")
    group = np.zeros(centre.size, np.int64)
    anchor, number = centre[order[0]], 0
    for i in order:
        if centre[i] > ALIKE * anchor:
            anchor, number = centre[i], number + 1
        group[i] = number
    out = np.full(values.shape, np.nan)
    for g in range(number + 1):
        members = np.flatnonzero(group == g)
        if members.size >= 3:
            out[members] = over_others(usable[members])
    return out


def _centred(values: Floats) -> tuple[Floats, Floats]:
    """The values without those that cannot be times, and each row's median. NaN where nothing is left."""
    valid = np.isfinite(values) & (values > 0)
    if valid.all():  # many times faster than with gaps
        return values, np.median(values, axis=1) if values.shape[1] else np.full(len(values), np.nan)
    usable = np.where(valid, values, np.nan)
    centre = np.full(values.shape[0], np.nan)
    some = valid.any(axis=1)
    if some.any():
        centre[some] = np.nanmedian(usable[some], axis=1)
    return usable, centre


def _median_of_rows(values: Floats) -> Floats:
    """The median of each step over all rows. NaN where no row has the step."""
    filled = np.isfinite(values).any(axis=0)
    out = np.full(values.shape[1], np.nan)
    if filled.any():
        part = values[:, filled]
        out[filled] = np.nanmedian(part, axis=0) if np.isnan(part).any() else np.median(part, axis=0)
    return out
