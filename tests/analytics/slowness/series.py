"""Series of step times [rank, step], clean or wandering."""

from __future__ import annotations

import numpy as np


def calm(ranks=8, steps=300, noise=0.02, seed=0):
    return 1 + noise * np.random.default_rng(seed).standard_normal((ranks, steps))


def wandering(ranks, steps, noise, seed, rho=0.8):
    """Times that stray and come back, as shared machines' do."""
    rng = np.random.default_rng(seed)
    fresh = rng.standard_normal((ranks, steps))
    level = fresh.copy()
    for t in range(1, steps):
        level[:, t] = rho * level[:, t - 1] + np.sqrt(1 - rho**2) * fresh[:, t]
    return np.exp(noise * level)
