"""Slowness by own time that the job's own design may explain. Pure.

Ranks that hold the same part of a long sequence do more work than those that hold another part, where
attention is causal. A rank with more micro-batches computes in more pieces. A rank with fewer tokens pays
the fixed costs of a step for fewer of them. Two ranks that always differed may have different work, or one of
them is slow.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pulsetrain.analytics.slowness import robust
from pulsetrain.analytics.slowness.suspects import Suspect
from pulsetrain.analytics.slowness.timings import Timings

SHARE = 0.5  # of a suspect's excess, from which a peer counts as equally slow, and whole time as longer


def doubt(timings: Timings, suspect: Suspect) -> str:
    """Why a suspect of own time may do other work than its cohort. "" where nothing says so."""
    if suspect.cause or suspect.by_history:
        return ""
    return (
        _more_pieces(timings, suspect) or _part_of_sequence(timings, suspect) or _few_tokens(timings, suspect)
    )


def unequal_pair(timings: Timings, work: NDArray[np.float64], least: float) -> str:
    """Two ranks of a cohort that differed by more than `least`, a ratio, all along. "" for none.

    `work` is the log of compute time [step, rank] in the steps that are compared.
    """
    for pair in (c for c in timings.cohorts if len(c) == 2):
        whole = work[:, pair]
        whole = whole[np.isfinite(whole).all(axis=1)]
        if len(whole) < 2:
            continue
        apart = whole[:, 0] - whole[:, 1]
        parts = [float(np.median(part)) for part in np.array_split(apart, 3) if len(part)]
        if min(parts) > np.log1p(least) or max(parts) < -np.log1p(least):
            slow, quick = pair if apart.mean() > 0 else pair[::-1]
            ratio = np.exp(abs(float(np.median(apart))))
            return (
                f"rank {timings.ranks[slow]} computes {ratio:.2f}x as long as rank {timings.ranks[quick]} "
                "since the first step, and no third rank does the same work"
            )
    return ""


def _more_pieces(timings: Timings, suspect: Suspect) -> str:
    """It computes in more spans than the others, as where it accumulates gradients for longer."""
    if timings.pieces is None or not isinstance(timings.varying_tokens(), float):
        return ""
    cohort = np.flatnonzero(np.isin(timings.stages, timings.stages[suspect.columns]))
    counts = np.nan_to_num(timings.pieces[suspect.rows]).mean(axis=0)
    others = counts[np.setdiff1d(cohort, suspect.columns)]
    usual = float(np.median(others)) if len(others) else 0.0
    own = float(counts[suspect.columns].mean())
    if not usual or own / usual - 1 < SHARE * suspect.ratio:
        return ""
    who = f"{suspect.subject_type} {suspect.subject}"
    return (
        f"{who} computes {suspect.ratio:.0%} longer, in {own:.1f} pieces a step where others have "
        f"{usual:.1f}: it has more micro-batches"
    )


def _part_of_sequence(timings: Timings, suspect: Suspect) -> str:
    """Ranks with the same part of the sequence are as slow, or nobody else has that part."""
    contexts = timings.contexts
    if not len(contexts) or len(np.unique(contexts[contexts >= 0])) < 2:
        return ""
    same = np.isin(contexts, contexts[suspect.columns])
    cohort = np.isin(timings.stages, timings.stages[suspect.columns])
    peers = np.setdiff1d(np.flatnonzero(same & cohort), suspect.columns)
    who = f"{suspect.subject_type} {suspect.subject}"
    if not len(peers):
        return f"{who} computes {suspect.ratio:.0%} longer, and nobody else holds its part of the sequence"
    levels = np.nanmedian(_log_compute(timings, suspect.rows)[:, np.flatnonzero(cohort)], axis=0)
    of_peers = np.nanmedian(_log_compute(timings, suspect.rows)[:, peers], axis=0)
    if float(np.nanmedian(of_peers)) - robust.lower_median(levels) < SHARE * suspect.excess:
        return ""
    return (
        f"{who} computes {suspect.ratio:.0%} longer, and so do the ranks with the same part of the sequence"
    )


def _few_tokens(timings: Timings, suspect: Suspect) -> str:
    """It takes longer for each token only: its whole time is not longer."""
    if isinstance(timings.varying_tokens(), float):
        return ""
    cohort = np.flatnonzero(np.isin(timings.stages, timings.stages[suspect.columns]))
    levels = np.nanmedian(_log_compute(timings, suspect.rows), axis=0)
    others = np.setdiff1d(cohort, suspect.columns)
    others = others[np.isfinite(levels[others])]
    if not len(others):
        return ""
    longer = float(np.nanmean(levels[suspect.columns])) - robust.lower_median(levels[others])
    if longer >= SHARE * suspect.excess:
        return ""
    who = f"{suspect.subject_type} {suspect.subject}"
    return f"{who} computes {suspect.ratio:.0%} longer for each token, and not in all: it has fewer tokens"


def _log_compute(timings: Timings, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    compute = timings.parts["compute"][rows]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.log(np.where(compute > 0, compute, np.nan)))
