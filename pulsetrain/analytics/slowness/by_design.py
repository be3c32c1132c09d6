"""Slowness by own time that the job's own design may explain. Pure.

Ranks that hold the same part of a long sequence do more work than those that hold another part, where
attention is causal. A rank with more micro-batches computes in more pieces. One whose FLOPs are counted may
have more of them. A rank with fewer tokens pays the fixed costs of a step for fewer of them. Where half of
the ranks or more always took longer, they may have other work, or be slow. So may ranks that communicate only
among themselves, as critics do beside actors.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pulsetrain.analytics.selection import ranges
from pulsetrain.analytics.slowness import robust
from pulsetrain.analytics.slowness.step_work import since_change
from pulsetrain.analytics.slowness.suspects import Suspect
from pulsetrain.analytics.slowness.timings import Timings
from pulsetrain.analytics.slowness.work_groups import ALONE, APART

PARTS = 3  # of the steps, in each of which a difference must show
ERRORS = 4  # standard errors of a difference that is no chance
MEDIAN_ERROR = 1.25  # standard error of a median over that of the mean, normal distribution
LOOKED_STEPS = 48  # about so many of the steps, evenly spaced, so that a large job costs little
SHARE = 0.5  # of a suspect's excess, from which a peer counts as equally slow, and whole time as longer


def doubt(timings: Timings, suspect: Suspect, inferred: Callable[[], bool] = lambda: False) -> str:
    """Why a suspect of own time may do other work than its cohort. "" where nothing says so.

    FLOPs that are `inferred` are those of one early step, which may have had more work on one rank.
    """
    if suspect.cause:
        return ""
    who = f"{suspect.subject_type} {suspect.subject}"
    routing = _unseen_routing(timings, suspect.columns, suspect.rows)
    unseen = f"{who} computes {suspect.ratio:.0%} longer, and {routing}" if routing else ""
    if suspect.by_history:
        return unseen
    return (
        _more_pieces(timings, suspect)
        or _more_flops(timings, suspect, inferred)
        or _part_of_sequence(timings, suspect)
        or _few_tokens(timings, suspect)
        or _own_circle(timings, suspect)
        or unseen
    )


def change_doubt(
    timings: Timings, column: int, rows: NDArray[np.int64], before: NDArray[np.int64], ratio: float
) -> str:
    """Why a rank that came to take `ratio` times as long, in `rows`, may do other work since. "" for none.

    `before` are the rows before these. What counts is by how much ranks changed, not how unequal they were.
    """
    excess, who = float(np.log(ratio)), f"rank {timings.ranks[column]}"
    cohort = np.flatnonzero(timings.classes == timings.classes[column])
    mates = cohort[cohort != column]
    others = np.delete(np.arange(len(timings.ranks)), column)
    varying = not isinstance(timings.varying_tokens(), float)
    rise = _rise(timings.parts["compute"], rows, before)
    longer = f"{who} became {ratio:.2f}x slower"
    if timings.pieces is not None and not varying:
        pieces = _rise(timings.pieces, rows, before)
        if pieces[column] - _usual(pieces[mates if len(mates) else others]) >= SHARE * excess:
            return f"{longer}, in more pieces a step than before: it seems that it has more micro-batches"
    flops = _rise(_flops(timings), rows, before)
    if flops[column] - _usual(flops[mates if len(mates) else others]) >= SHARE * excess:
        return f"{longer}, and has more FLOPs to do than before"
    if varying and rise[column] - _usual(rise[mates]) < SHARE * excess:
        return f"{longer} for each token, and not in all: it has fewer tokens"
    changed = len(since_change(timings, np.concatenate([before, rows]))) < len(before) + len(rows)
    contexts = timings.contexts
    if len(contexts) and len(np.unique(contexts[contexts >= 0])) > 1:
        same = mates[contexts[mates] == contexts[column]]
        if len(same) and _usual(rise[same]) - _usual(rise[cohort]) >= SHARE * excess:
            return f"{longer}, and so did the ranks with the same part of the sequence"
        if not len(same) and changed:
            return (
                f"{longer} when steps came to be other work, and nobody else holds its part of the sequence"
            )
    routing = _unseen_routing(timings, np.array([column]), rows)
    if routing:
        return f"{longer}, and {routing}"
    if len(mates):
        return ""
    if changed:
        return f"{longer} when steps came to be other work, and nobody else computes its stage"
    if len(others) > 1 and np.nanmin(rise[others]) >= SHARE * rise[column]:
        return f"{longer}, all others take longer too, and nobody else computes its stage"
    return ""


def unequal_halves(timings: Timings, work: NDArray[np.float64], least: float) -> str:
    """Half or more of a cohort that always took longer than the rest, by more than noise and a ratio `least`.

    Then nobody can tell which is usual. "" for none. `work` is the log of compute time [step, rank] in the
    steps that are compared. Of many steps some are looked at.
    """
    return next((half.reason for half in _halves(timings, work, least)), "")


def slower_halves(timings: Timings, work: NDArray[np.float64], least: float) -> dict[int, str]:
    """For each column of the slower half of `unequal_halves`, the reason not to name it.

    A half that is one whole node is not among them. Then the quicker node is taken for usual.
    """
    return {
        column: half.reason
        for half in _halves(timings, work, least)
        if not _is_node(timings, half)
        for column in half.slow.tolist()
    }


class _Halves(NamedTuple):
    """The columns of a cohort that always took longer, the others, and that in words."""

    slow: NDArray[np.int64]
    quick: NDArray[np.int64]
    reason: str


def _is_node(timings: Timings, half: _Halves) -> bool:
    """Whether the slower ranks are all on one node, and no quicker one is there."""
    nodes = set(timings.nodes[half.slow].tolist())
    return len(nodes) == 1 and nodes != {""} and not nodes & set(timings.nodes[half.quick].tolist())


def _halves(timings: Timings, work: NDArray[np.float64], least: float) -> Iterator[_Halves]:
    """Cohorts of which half or more always took longer."""
    work = work[:: max(1, len(work) // LOOKED_STEPS)]
    for cohort in timings.cohorts:
        columns = cohort[np.isfinite(work[:, cohort]).any(axis=0)]
        thirds = np.array_split(work[:, columns], PARTS) if len(columns) > 1 and len(work) >= PARTS else []
        levels = np.array(
            [np.nanmedian(third, axis=0) for third in thirds if np.isfinite(third).any(axis=0).all()]
        )
        if len(levels) < PARTS:
            continue
        order = np.argsort(levels.mean(axis=0), kind="stable")
        gaps = np.diff(levels.mean(axis=0)[order])
        split = int(np.argmax(gaps)) + 1
        quick, slow = order[:split], order[split:]
        apart = levels[:, slow].min(axis=1) - levels[:, quick].max(axis=1)
        if 2 * len(slow) < len(columns) or apart.min() <= max(np.log1p(least), _chance(thirds, levels)):
            continue
        ratio = float(np.exp(levels[:, slow].mean() - levels[:, quick].mean()))
        who, others = (listed(timings.ranks[columns[part]].tolist()) for part in (slow, quick))
        verb = "computes" if len(slow) == 1 else "compute"
        reason = f"{who} {verb} {ratio:.2f}x as long as {others} all along: nobody can tell which is usual"
        yield _Halves(columns[slow], columns[quick], reason)


def _chance(thirds: list[NDArray[np.float64]], levels: NDArray[np.float64]) -> float:
    """How far (log) two ranks' levels in a third of the steps lie apart by noise at most."""
    residuals = np.concatenate([third - level for third, level in zip(thirds, levels, strict=True)])
    noise = float(robust.sigma(residuals[np.isfinite(residuals)]))
    return ERRORS * MEDIAN_ERROR * noise * float(np.sqrt(2 / min(len(third) for third in thirds)))


def listed(numbers: list[int]) -> str:
    """Ranks in words.

    >>> listed([3]), listed([6, 5, 7])
    ('rank 3', 'ranks 5-7')
    """
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {ranges(sorted(numbers))}"


def _more_pieces(timings: Timings, suspect: Suspect) -> str:
    """It computes in more spans than the others, as where it accumulates gradients for longer."""
    if timings.pieces is None or not isinstance(timings.varying_tokens(), float):
        return ""
    cohort = np.flatnonzero(np.isin(timings.classes, timings.classes[suspect.columns]))
    counts = np.nan_to_num(timings.pieces[suspect.rows]).mean(axis=0)
    others = counts[np.setdiff1d(cohort, suspect.columns)]
    usual = float(np.median(others)) if len(others) else 0.0
    own = float(counts[suspect.columns].mean())
    if not usual or own / usual - 1 < SHARE * suspect.ratio:
        return ""
    who = f"{suspect.subject_type} {suspect.subject}"
    return (
        f"{who} computes {suspect.ratio:.0%} longer, in {own:.1f} pieces a step where others have "
        f"{usual:.1f}: it seems that it has more micro-batches"
    )


def _more_flops(timings: Timings, suspect: Suspect, inferred: Callable[[], bool]) -> str:
    """It has more FLOPs to do than the others, per token where tokens differ. "" where nobody counts them."""
    flops = _flops(timings)[suspect.rows]
    known = np.asarray(np.isfinite(flops).any(axis=0), np.bool_)
    cohort = np.flatnonzero(np.isin(timings.classes, timings.classes[suspect.columns]) & known)
    others = np.setdiff1d(cohort, suspect.columns)
    if not len(others) or not known[suspect.columns].all():
        return ""
    levels = np.nanmedian(flops[:, cohort], axis=0)
    usual = float(np.median(levels[np.isin(cohort, others)]))
    more = float(levels[np.isin(cohort, suspect.columns)].mean()) / usual - 1
    if more < SHARE * suspect.ratio or inferred():
        return ""
    who = f"{suspect.subject_type} {suspect.subject}"
    return f"{who} computes {suspect.ratio:.0%} longer, and has {more:.0%} more FLOPs to do"


def _flops(timings: Timings) -> NDArray[np.float64]:
    """FLOPs [step, rank], per token where tokens differ. NaN where nobody counted."""
    counted = timings.numbers["flops"]
    return np.asarray(np.where(counted > 0, counted, np.nan) / timings.varying_tokens())


def _unseen_routing(timings: Timings, columns: NDArray[np.int64], rows: NDArray[np.int64]) -> str:
    """Why nobody knows how many tokens these ranks' experts get. "" where it is known, or there are none."""
    if len(np.unique(timings.experts[timings.experts >= 0])) < 2:
        return ""
    same = np.isin(timings.classes, timings.classes[columns])
    if timings.routed_bytes is not None:
        seen = timings.routed_bytes[rows]
        routes = np.nan_to_num(seen).sum(axis=0) > 0
        if routes[same & np.isfinite(seen).any(axis=0)].all() and routes[columns].all():
            return ""
        if routes.any() and not routes[same].any():  # these hold no experts: other stages do
            return ""
    return "it is not seen how many tokens its experts get: not all of them go through all_to_all"


def _part_of_sequence(timings: Timings, suspect: Suspect) -> str:
    """Ranks with the same part of the sequence are as slow, or nobody else has that part."""
    contexts = timings.contexts
    if not len(contexts) or len(np.unique(contexts[contexts >= 0])) < 2:
        return ""
    same = np.isin(contexts, contexts[suspect.columns])
    cohort = np.isin(timings.classes, timings.classes[suspect.columns])
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


def _own_circle(timings: Timings, suspect: Suspect) -> str:
    """All ranks that share process groups with it are as slow, and share none with the others.

    "" also where circles are whole nodes of one size, as where nodes average among themselves first.
    """
    circles, cohort = timings.circles, np.isin(timings.classes, timings.classes[suspect.columns])
    if len(circles) and (circles[suspect.columns] == APART).any():
        return (
            f"{suspect.subject_type} {suspect.subject} computes {suspect.ratio:.0%} longer, in a world that "
            "is not the job's: who does the same work is not known"
        )
    if not len(circles) or (circles[suspect.columns] == ALONE).any():
        return ""
    inside = np.isin(circles, circles[suspect.columns])
    own, others = np.flatnonzero(inside & cohort), np.flatnonzero(~inside & cohort)
    if len(own) < 2 or not len(others) or _are_nodes(timings, np.concatenate([own, others])):
        return ""
    levels = np.nanmedian(_log_compute(timings, suspect.rows), axis=0)
    usual = robust.lower_median(levels[others][np.isfinite(levels[others])])
    mates = np.setdiff1d(own, suspect.columns)
    if len(mates) and not np.nanmedian(levels[mates]) - usual >= SHARE * suspect.excess:
        return ""
    who = f"{suspect.subject_type} {suspect.subject}"
    circle = listed(timings.ranks[own].tolist())
    return (
        f"{who} computes {suspect.ratio:.0%} longer, as all of {circle} do, which share no process group "
        f"with the others: they may have other work"
    )


def _are_nodes(timings: Timings, columns: NDArray[np.int64]) -> bool:
    """Whether the circles of these ranks are whole nodes, all of one size."""
    circles, circle = np.unique(timings.circles[columns], return_inverse=True)
    nodes, node = np.unique(timings.nodes[columns], return_inverse=True)
    pairs = np.unique(np.stack([circle, node]), axis=1).shape[1]
    alike = len(np.unique(np.bincount(circle))) == 1
    return "" not in nodes.tolist() and len(circles) == len(nodes) == pairs and alike


def own_roles(timings: Timings, work: NDArray[np.float64], alone: NDArray[np.int64], least: float) -> str:
    """Which of the ranks `alone`, compared with no other, take longer than those of other roles. "" for none.

    `work` is as in `unequal_halves`. Their work may be more, or they may be slow.
    """
    if len(np.unique(timings.roles)) < 2:
        return ""
    rest = np.setdiff1d(np.arange(len(timings.ranks)), alone)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # columns without a value
        levels = np.nanmedian(work, axis=0)
    known = levels[rest][np.isfinite(levels[rest])]
    if not len(known):
        return ""
    longer = alone[levels[alone] - robust.lower_median(known) > np.log1p(least)]
    if not len(longer):
        return ""
    ratio = float(np.exp(levels[longer].max() - robust.lower_median(known)))
    who, verb = listed(timings.ranks[longer].tolist()), "computes" if len(longer) == 1 else "compute"
    return (
        f"{who} {verb} up to {ratio:.2f}x as long as the others, in process groups of other use: "
        "nobody else does such work"
    )


def _few_tokens(timings: Timings, suspect: Suspect) -> str:
    """It takes longer for each token only: its whole time is not longer."""
    if isinstance(timings.varying_tokens(), float):
        return ""
    cohort = np.flatnonzero(np.isin(timings.classes, timings.classes[suspect.columns]))
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


def _rise(
    values: NDArray[np.float64], rows: NDArray[np.int64], before: NDArray[np.int64]
) -> NDArray[np.float64]:
    """By how much (log) each column's usual value rose from `before` to `rows`. NaN where not known."""
    with np.errstate(divide="ignore", invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # columns without a value
        logs = np.log(np.where(values > 0, values, np.nan))
        return np.asarray(np.nanmedian(logs[rows], axis=0) - np.nanmedian(logs[before], axis=0))


def _usual(rise: NDArray[np.float64]) -> float:
    """The lower median of what is known. 0 for nothing."""
    known = rise[np.isfinite(rise)]
    return robust.lower_median(known) if len(known) else 0.0


def _log_compute(timings: Timings, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    compute = timings.parts["compute"][rows]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.log(np.where(compute > 0, compute, np.nan)))
