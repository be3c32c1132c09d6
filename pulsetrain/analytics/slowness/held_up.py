"""Ranks that something outside the job holds up: stopped many times a second, or starved of their processor.

The kernel tells where the time of a rank's main thread goes. While it computes, it neither runs nor could run
only if something stops it. Chance of scheduling never looks so, however busy the host is. So a rank that is
off its processor in many steps, while its peers are in hardly any, is held up. A few steps suffice.

Where devices compute, the thread that feeds them sleeps without costing anything. There time off the
processor names nobody. What makes a device wait shows in the phases that it times.

Time in a run queue may be chance. A rank is starved of its processor where even its quick steps came to queue
for longer than before, and longer than the usual steps of the others. Where all queue for most of their time,
its quick steps must queue for longer than the slow steps of the others.

In a cohort of fewer than three there is no majority. There a rank is compared with all ranks, must have been
free of it before, and its phases must take longer than they did then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from pulsetrain.analytics.slowness import robust
from pulsetrain.analytics.slowness.straggler_config import StragglerConfig
from pulsetrain.analytics.slowness.suspects import Suspect
from pulsetrain.analytics.slowness.timings import LEAST_RATIO, Timings

Floats = NDArray[np.float64]

OFF, STARVED = "off_cpu", "cpu_wait"
USUAL_SHARE = 0.1  # of steps in which a sound rank may stand out, at least
SHOWN_SHARE = 1 / 3  # of what a rank was off, by which its phases must take longer: who logs sleeps too
BUSY_RATIO = 0.6  # of its own work that the usual rank queued before, from which queueing is chance
QUIET_RATIO = 0.2  # up to which a short window suffices
QUEUE_ERROR = 0.04  # least standard error of the lower quartile of queueing, over the usual compute

_ELSEWHERE = ("data", "checkpoint", "other")  # where a sound rank waits for a disk or a worker


def find_held_up(timings: Timings, config: StragglerConfig) -> list[Suspect]:
    """Ranks that were held up in the newest steps. The excess is relative to the usual rank's compute.

    Ranks that miss one of the steps are left out.
    """
    rows, every = timings.compared, np.arange(len(timings.ranks))
    found: list[Suspect] = []
    beside_all = cache(lambda: _beside_all(timings, rows, every, config))  # once for all small cohorts
    for cohort in timings.cohorts:
        if len(cohort) < 3:
            off, queueing = ([s for s in held if s.columns[0] in cohort] for held in beside_all())
            held = [s for s in off if _came_up(timings, s, rows, config)] + queueing
        else:
            held = _off(timings, rows, cohort, config, shown=True)
            held += _queueing(timings, rows, cohort, config)
            held += _starved(timings, rows[-config.starved_steps :], cohort, config)
        taken: set[int] = set()
        for suspect in held:
            column = int(suspect.columns[0])
            if column not in taken:
                found.append(suspect)
                taken.add(column)
    return _by_node(timings, found)


def _beside_all(
    timings: Timings, rows: NDArray[np.int64], every: NDArray[np.int64], config: StragglerConfig
) -> tuple[list[Suspect], list[Suspect]]:
    """Ranks that are off their processor, and ranks that queue, beside all ranks of the job."""
    return _off(timings, rows, every, config, shown=False), _queueing(timings, rows, every, config)


def _off(
    timings: Timings,
    rows: NDArray[np.int64],
    pool: NDArray[np.int64],
    config: StragglerConfig,
    *,
    shown: bool,
) -> list[Suspect]:
    """Ranks that are off their processor in many of the newest steps, the surest window for each.

    `shown`: their phases must take longer for it. Nobody where devices compute.
    """
    best: dict[int, Suspect] = {}
    if timings.on_device:
        return []
    for size, needed in _held_windows(timings, rows, config):
        if len(rows) < size:
            continue
        excess, columns = _excess(timings, OFF, rows[-size:], pool)
        longer = _longer(timings, rows[-size:], columns) if shown and len(columns) > 1 else np.zeros(0)
        share = (excess > config.held_step).mean(axis=0)
        mean = np.clip(excess, 0.0, 1.0).mean(axis=0)
        for i in np.flatnonzero((share >= needed) & (mean >= config.held_ratio)).tolist():
            others = robust.lower_median(np.delete(share, i))
            usual = max(USUAL_SHARE, others)
            margin = float((share[i] - usual) / np.sqrt(usual * (1 - usual) / size))
            column, ratio = int(columns[i]), float(np.maximum(excess[:, i], 0.0).mean())
            computes = not longer.size or float(longer[i]) >= SHOWN_SHARE * ratio
            best_yet = column not in best or margin > best[column].margin
            if share[i] >= 3 * others and computes and best_yet:
                best[column] = _suspect(timings, column, rows[-size:], ratio, margin, OFF)
    return list(best.values())


def _held_windows(
    timings: Timings, rows: NDArray[np.int64], config: StragglerConfig
) -> list[tuple[int, float]]:
    """How many of the newest steps are looked at, and in which share of them a rank must stand out.

    What was lost in rounds is told in pieces of time, of which one may reach over several rounds. So rounds
    must last for longer.
    """
    if not timings.rounds:
        return list(config.held_windows)
    lasted_s = (timings.round_ends_ns[rows[-1:]] - timings.round_ends_ns[rows]) / 1e9
    least = int((lasted_s < config.held_rounds_s).sum())
    return sorted({(max(size, least), max(share, config.held_rounds)) for size, share in config.held_windows})


def _longer(timings: Timings, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> Floats:
    """By how much each rank's phases took longer than the others', over the usual compute, at most.

    That is four standard errors above the mean. At least two columns.
    """
    compute = timings.measured("compute")[np.ix_(rows, columns)]
    longer = compute - robust.medians_of_others(compute)
    most = longer.mean(axis=0) + 4 * longer.std(axis=0) / np.sqrt(len(longer))
    return np.asarray(most / max(1.0, float(np.median(compute))))


def _came_up(timings: Timings, suspect: Suspect, rows: NDArray[np.int64], config: StragglerConfig) -> bool:
    """Whether there was a stretch before in which the rank was not held up, and its phases took less time.

    A first stage may always wait for its loader, and no other rank does. Who came to write a log between its
    phases sleeps too, and computes for as long as before.
    """
    free = _free_before(timings, suspect, rows, config)
    if not len(free):
        return False
    compute = timings.measured("compute")
    column = suspect.columns[0]
    now, then = compute[suspect.rows, column], compute[free, column]
    error = float(np.hypot(now.std() / np.sqrt(len(now)), then.std() / np.sqrt(len(then))))
    usual = max(float(np.median(then)), float(np.nanmedian(compute[free])))
    return float(now.mean() - then.mean()) + 4 * error >= SHOWN_SHARE * suspect.ratio * usual


def _free_before(
    timings: Timings, suspect: Suspect, rows: NDArray[np.int64], config: StragglerConfig
) -> NDArray[np.int64]:
    """The newest stretch before, in which the rank was not held up. Empty for none."""
    size, needed = config.held_windows[-1]
    every, before = np.arange(len(timings.ranks)), rows[: len(rows) - len(suspect.rows)]
    for end in range(len(before), size - 1, -size):
        excess, columns = _excess(timings, OFF, before[end - size : end], every)
        own = excess[:, columns == suspect.columns[0]]
        if own.size and (own > config.held_step).mean() < needed / 2:
            return before[end - size : end]
    return before[:0]


def _queueing(
    timings: Timings, rows: NDArray[np.int64], pool: NDArray[np.int64], config: StragglerConfig
) -> list[Suspect]:
    """Ranks that came to queue for a processor even in their quick steps, when the others did not."""
    found: dict[int, Suspect] = {}
    for size, needed in config.queue_windows:
        now, past = rows[-size:], rows[-size - config.queue_past : -size]
        columns = _computing(timings, np.concatenate([past, now]), pool)
        if len(past) < 2 * size or len(columns) < 2:
            continue
        before = _queue_share(timings, past, past, columns)
        busy = robust.lower_median(before.mean(axis=0))
        if busy > (QUIET_RATIO if size < config.short else BUSY_RATIO):
            continue
        usual = _usual_queue(before, size)
        share = _queue_share(timings, now, past, columns)
        quick, middle = np.quantile(share, (0.25, 0.5), axis=0)
        wait = np.nan_to_num(timings.parts["wait"][np.ix_(now, columns)]).mean(axis=0)
        for i in np.flatnonzero(quick - usual >= needed).tolist():
            rose, others = quick - usual, np.delete(np.arange(len(columns)), i)
            apart = quick[i] - np.median(middle[others]) >= needed / 2
            alone = rose[i] >= 2 * np.median(rose[others])
            column = int(columns[i])
            if apart and alone and wait[i] <= np.median(wait[others]) and column not in found:
                margin = float(rose[i]) / QUEUE_ERROR
                found[column] = _suspect(timings, column, now, float(rose[i]), margin, STARVED)
    return list(found.values())


def _usual_queue(share: Floats, size: int) -> Floats:
    """How long quick steps queued: the lower quartile over blocks of those of their steps."""
    blocks = [share[end - size : end] for end in range(len(share), size - 1, -size)]
    quick = np.stack([np.quantile(block, 0.25, axis=0) for block in blocks])
    return np.asarray(np.quantile(quick, 0.25, axis=0, method="higher"))


def _queue_share(
    timings: Timings, rows: NDArray[np.int64], past: NDArray[np.int64], columns: NDArray[np.int64]
) -> Floats:
    """Time in a run queue over what the rank computed in a usual step of the past [step, rank]."""
    before = np.ix_(past, columns)
    own = timings.measured("compute")[before] - np.nan_to_num(timings.parts[STARVED][before])
    usual = np.maximum(np.median(own, axis=0), 1.0)
    return np.nan_to_num(timings.parts[STARVED][np.ix_(rows, columns)]) / usual


def _computing(timings: Timings, rows: NDArray[np.int64], pool: NDArray[np.int64]) -> NDArray[np.int64]:
    """The columns that have a compute time in every step."""
    return pool[(timings.measured("compute")[np.ix_(rows, pool)] > 0).all(axis=0)]


def _by_node(timings: Timings, found: list[Suspect]) -> list[Suspect]:
    """One suspect for a node of two ranks and more that are all held up in the same way."""
    kept = list(found)
    for node in sorted({timings.node_of(int(s.columns[0])) for s in found} - {""}):
        mates = np.flatnonzero(timings.nodes == node)
        for cause in (OFF, STARVED):
            held = [s for s in found if s.cause == cause and int(s.columns[0]) in mates]
            if len(held) < 2 or len(held) < len(mates):
                continue
            weakest = min(held, key=lambda s: s.margin)
            excess = float(np.mean([s.excess for s in held]))
            together = replace(
                weakest,
                subject_type="node",
                subject=node,
                columns=mates,
                excess=excess,
                error=excess / max(weakest.margin, 1e-12),
            )
            kept = [s for s in kept if all(s is not h for h in held)] + [together]
    return kept


def _starved(
    timings: Timings, rows: NDArray[np.int64], cohort: NDArray[np.int64], config: StragglerConfig
) -> Iterator[Suspect]:
    """Ranks whose shortest queues are longer than the others' long ones."""
    for column, mean, margin in _queue_longer(timings, rows, cohort, config):
        if mean >= config.starved_ratio:
            yield _suspect(timings, column, rows, mean, margin, STARVED)


def may_be_starved(timings: Timings, config: StragglerConfig) -> str:
    """Which rank queues for longer than the others at all times, and too little to be named. "" for none.

    What it loses may slow the job. It may have queued so from its first step, so its past tells nothing.
    """
    rows = timings.compared[-config.starved_steps :]
    longer = [found for cohort in timings.cohorts for found in _queue_longer(timings, rows, cohort, config)]
    column, share, _ = max(longer, key=lambda found: found[1], default=(0, 0.0, 0.0))
    if share < config.starved_doubt:
        return ""
    rank = timings.ranks[column]
    return f"rank {rank} always queues for its processor, for {share:.0%} of its compute longer than others"


def _queue_longer(
    timings: Timings, rows: NDArray[np.int64], cohort: NDArray[np.int64], config: StragglerConfig
) -> Iterator[tuple[int, float, float]]:
    """Who queues in its quick steps for longer than the others in slow ones.

    The column, the share of compute that it queues longer, and that in standard errors.
    """
    if len(cohort) < 3 or len(rows) < config.starved_steps:
        return
    excess, columns = _excess(timings, STARVED, rows, cohort)
    if len(columns) < 3:
        return
    mean = robust.trimmed_mean(excess)
    gap = robust.quartile_gap(excess)
    for i in np.flatnonzero(gap > config.starved_gap).tolist():
        margin = mean[i] / max(1e-12, float(robust.standard_error(excess - mean)[i]))
        if margin > config.starved_margin:
            yield int(columns[i]), float(mean[i]), float(margin)


def _excess(
    timings: Timings, part: str, rows: NDArray[np.int64], pool: NDArray[np.int64]
) -> tuple[Floats, NDArray[np.int64]]:
    """What each rank of a pool lost beyond the median of the others, over the usual compute [step, rank].

    Ranks without a compute time in one of the steps are left out. A part that nobody recorded is 0. Without
    two ranks there is nothing to compare.
    """
    columns = _computing(timings, rows, pool)
    if len(columns) < 2 or not len(rows):
        return np.zeros((len(rows), 0)), columns[:0]
    block = np.ix_(rows, columns)
    lost = np.nan_to_num(timings.parts[part][block])
    if part == OFF:
        elsewhere = sum(np.nan_to_num(timings.parts[name][block]) for name in _ELSEWHERE)
        lost = np.maximum(0.0, lost - elsewhere)
    compute = timings.measured("compute")[block]
    more = lost - robust.medians_of_others(lost)
    taken = (
        np.maximum(more, 0.0) if part == OFF else lost
    )  # all may sleep in a phase, as in a parallel region
    own = np.median(np.maximum(compute - taken, LEAST_RATIO * compute), axis=0)
    usual = np.maximum(own, np.median(own))
    return more / np.maximum(usual, 1.0), columns


def _suspect(
    timings: Timings, column: int, rows: NDArray[np.int64], ratio: float, margin: float, cause: str
) -> Suspect:
    excess = float(np.log1p(ratio))
    return Suspect(
        subject_type="rank",
        subject=str(timings.ranks[column]),
        columns=np.array([column]),
        rows=rows,
        excess=excess,
        error=excess / max(margin, 1e-12),
        noise=0.0,
        cause=cause,
    )
