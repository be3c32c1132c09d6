"""Where a series changes its level: Bayesian online change-point detection, with nothing but numpy.

Method: Adams and MacKay, arXiv 0710.3742. It keeps a posterior over the length of the current run, for
Gaussian data with a normal-inverse-gamma prior. GREYHOUND (arXiv 2410.12588) verifies such changes to make
the method usable for iteration times. That part is in `stretch_check`.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

HAZARD = 1 / 250  # arXiv 2410.12588
LONGEST_RUN = 400


def run_lengths(values: Floats, *, hazard: float = HAZARD) -> NDArray[np.int64]:
    """The likeliest length of the current run after each value (1: the value began a new run).

    `values` are standardised by their median and the spread of their differences. NaN leaves the run as it
    is. Runs longer than 400 are cut to 400, which only makes them forget.
    """
    z = _standardised(values)
    limit = min(LONGEST_RUN, z.size)
    counts = np.arange(limit + 1)
    alpha = 1.0 + counts / 2
    gamma = np.array([math.lgamma(a + 0.5) - math.lgamma(a) for a in alpha])
    log_run = np.array([0.0])
    mean, beta = np.zeros(1), np.ones(1)
    best = np.zeros(z.size, np.int64)
    for t, x in enumerate(z):
        if math.isnan(x):
            best[t] = best[t - 1] + 1 if t else 1
            continue
        n = log_run.size
        kappa = 1.0 + counts[:n]
        scale = beta * (kappa + 1) / (alpha[:n] * kappa)
        predictive = (
            gamma[:n]
            - 0.5 * np.log(2 * np.pi * alpha[:n] * scale)
            - (alpha[:n] + 0.5) * np.log1p((x - mean) ** 2 / (2 * alpha[:n] * scale))
        )
        joint = log_run + predictive
        grown, begun = joint + math.log1p(-hazard), _log_sum(joint) + math.log(hazard)
        log_run = np.concatenate(([begun], grown))
        updated = beta + kappa * (x - mean) ** 2 / (2 * (kappa + 1))
        mean = np.concatenate(([0.0], (kappa * mean + x) / (kappa + 1)))
        beta = np.concatenate(([1.0], updated))
        log_run, mean, beta = log_run[:limit], mean[:limit], beta[:limit]
        log_run = log_run - _log_sum(log_run)
        best[t] = max(int(log_run.argmax()), 1)
    return best


def changes(values: Floats, *, settled: int = 5) -> list[int]:
    """Indices at which a new run began that was still the likeliest explanation `settled` values later.

    >>> changes(np.concatenate([np.tile([1.0, 1.1], 30), np.tile([2.0, 2.1], 30)]))
    [60]
    """
    best = run_lengths(np.asarray(values, float))
    begins = np.arange(best.size) - best + 1
    indices: list[int] = []
    for t in range(settled - 1, best.size):
        begin = int(begins[t])
        steady = bool(np.all(np.abs(begins[t - settled + 1 : t + 1] - begin) <= 1))
        if begin > 0 and steady and best[t] >= settled and all(abs(begin - i) > settled for i in indices):
            indices.append(begin)
    return sorted(indices)


def _standardised(values: Floats) -> Floats:
    finite = values[np.isfinite(values)]
    if finite.size == 0:
        return np.full(values.size, np.nan)
    steps = np.abs(np.diff(finite)) if finite.size > 1 else np.zeros(1)
    noise = 1.4826 * float(np.median(steps)) / math.sqrt(2)
    spread = max(noise, 0.05 * float(np.std(finite)), 1e-9)
    return np.asarray(np.clip((values - np.median(finite)) / spread, -25, 25))


def _log_sum(values: Floats) -> float:
    top = float(values.max())
    return top + math.log(float(np.exp(values - top).sum()))


def rolling_median(values: Floats, width: int, stride: int = 1) -> Floats:
    """Medians of [..., t : t + width] at t = 0, stride and so on. NaN where half of the window is NaN."""
    windows = np.lib.stride_tricks.sliding_window_view(values, width, axis=-1)[..., ::stride, :]
    if not np.isnan(values).any():
        return np.asarray(np.median(windows, axis=-1))
    ordered = np.sort(windows, axis=-1)  # NaN last
    valid = np.isfinite(windows).sum(axis=-1)
    low = np.take_along_axis(ordered, (np.maximum(valid - 1, 0) // 2)[..., None], -1)[..., 0]
    high = np.take_along_axis(ordered, (np.minimum(valid // 2, width - 1))[..., None], -1)[..., 0]
    return np.where(valid * 2 >= width, (low + high) / 2, np.nan)
