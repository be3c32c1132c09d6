"""Ranks that something outside the job holds up: stopped many times a second, or starved of their processor.

The kernel tells where the time of a rank's main thread goes. While it computes, it neither runs nor could run
only if something stops it. Chance of scheduling never looks so, however busy the host is. So a rank that is
off its processor in many steps, while its peers are in hardly any, is held up.

Time in a run queue is chance on an oversubscribed host. There a rank is starved of its processor only where
even its quick steps queue for longer than the slow steps of the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pulsetrain.analytics.slowness import robust
from pulsetrain.analytics.slowness.straggler_config import StragglerConfig
from pulsetrain.analytics.slowness.suspects import Suspect
from pulsetrain.analytics.slowness.timings import Timings

Floats = NDArray[np.float64]

OFF, STARVED = "off_cpu", "cpu_wait"
USUAL_SHARE = 0.1  # of steps in which a sound rank may stand out, at least

_ELSEWHERE = ("data", "checkpoint", "other")  # where a sound rank waits for a disk or a worker


def find_held_up(timings: Timings, config: StragglerConfig) -> list[Suspect]:
    """Ranks that were held up in the newest steps. The excess is relative to the usual rank's compute.

    A rank in a cohort of fewer than three is compared with all ranks and with its own past. Ranks that miss
    one of the steps are left out.
    """
    rows = np.flatnonzero(timings.usable)
    found: list[Suspect] = []
    for cohort in timings.cohorts:
        found += _off(timings, rows[-config.held_steps :], cohort, config)
        taken = {int(s.columns[0]) for s in found}
        starved = _starved(timings, rows[-config.starved_steps :], cohort, config)
        found += [s for s in starved if int(s.columns[0]) not in taken]
    small = [c for c in timings.cohorts if len(c) < 3]
    if small:
        every, alone = np.arange(len(timings.ranks)), set(np.concatenate(small).tolist())
        now = _off(timings, rows[-config.held_steps :], every, config)
        found += [s for s in now if int(s.columns[0]) in alone and _is_new(timings, s, rows, config)]
    return _by_node(timings, found)


def _is_new(timings: Timings, suspect: Suspect, rows: NDArray[np.int64], config: StragglerConfig) -> bool:
    """Whether there was a stretch before in which the rank was not held up.

    A first stage may always wait for its loader, and no other rank does.
    """
    size, every = config.held_steps, np.arange(len(timings.ranks))
    for end in range(len(rows) - size, size - 1, -size):
        excess, columns = _excess(timings, OFF, rows[end - size : end], every)
        own = excess[:, columns == suspect.columns[0]]
        if own.size and (own > config.held_step).mean() < config.held_share / 3:
            return True
    return False


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


def _off(
    timings: Timings, rows: NDArray[np.int64], cohort: NDArray[np.int64], config: StragglerConfig
) -> Iterator[Suspect]:
    """Ranks that are off their processor in many steps in which the others are not."""
    excess, columns = _excess(timings, OFF, rows, cohort)
    if len(columns) < 3 or len(rows) < config.held_steps:
        return
    share = (excess > config.held_step).mean(axis=0)
    mean = np.clip(excess, 0.0, 1.0).mean(axis=0)
    for i in np.flatnonzero((share >= config.held_share) & (mean >= config.held_ratio)).tolist():
        others = robust.lower_median(np.delete(share, i))
        if share[i] < 3 * others:
            continue
        usual = max(USUAL_SHARE, others)
        margin = (share[i] - usual) / np.sqrt(usual * (1 - usual) / len(rows))
        yield _suspect(timings, int(columns[i]), rows, float(mean[i]), float(margin), OFF)


def _starved(
    timings: Timings, rows: NDArray[np.int64], cohort: NDArray[np.int64], config: StragglerConfig
) -> Iterator[Suspect]:
    """Ranks whose shortest queues are longer than the others' long ones."""
    excess, columns = _excess(timings, STARVED, rows, cohort)
    if len(columns) < 3 or len(rows) < config.starved_steps:
        return
    mean = robust.trimmed_mean(excess)
    gap = robust.quartile_gap(excess)
    for i in np.flatnonzero((gap > config.starved_gap) & (mean >= config.starved_ratio)).tolist():
        margin = mean[i] / max(1e-12, float(robust.standard_error(excess - mean)[i]))
        if margin > config.starved_margin:
            yield _suspect(timings, int(columns[i]), rows, float(mean[i]), margin, STARVED)


def _excess(
    timings: Timings, part: str, rows: NDArray[np.int64], cohort: NDArray[np.int64]
) -> tuple[Floats, NDArray[np.int64]]:
    """What each rank of a cohort lost beyond the median of the others, over the usual compute [step, rank].

    Ranks without a compute time in one of the steps are left out. A part that nobody recorded is 0.
    """
    compute = timings.parts["compute"][np.ix_(rows, cohort)]
    columns = cohort[(compute > 0).all(axis=0)]
    if len(columns) < 3 or not len(rows):
        return np.zeros((len(rows), 0)), columns[:0]
    block = np.ix_(rows, columns)
    lost = np.nan_to_num(timings.parts[part][block])
    if part == OFF:
        elsewhere = sum(np.nan_to_num(timings.parts[name][block]) for name in _ELSEWHERE)
        lost = np.maximum(0.0, lost - elsewhere)
    usual = np.median(timings.parts["compute"][block], axis=0)
    usual = (
        np.full(len(columns), np.median(usual)) if part == STARVED else np.maximum(usual, np.median(usual))
    )
    others = [np.median(np.delete(lost, i, axis=1), axis=1) for i in range(len(columns))]
    return (lost - np.stack(others, axis=1)) / np.maximum(usual, 1.0), columns


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
