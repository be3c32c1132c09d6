"""Ranks and nodes whose compute exceeds that of their cohort by more than noise explains, in one window."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pulsetrain.analytics.slowness.cohort import Columns, Excess, Floats, Rows
from pulsetrain.analytics.slowness.straggler_config import StragglerConfig
from pulsetrain.analytics.slowness.timings import Timings
from pulsetrain.records.findings import SubjectType

Flags = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """A rank or node that is slow in one window of steps."""

    subject_type: SubjectType
    subject: str
    columns: Columns  # of its ranks
    rows: Rows  # of the window's steps
    excess: float  # log of its compute time over the reference
    error: float  # standard error of the excess
    noise: float  # of one step
    by_history: bool = False  # compared with its own past, not with its cohort
    lasting: bool = False  # and it was slower for so long that no passing work on the host explains it
    cause: str = ""  # the part of a step in which something from outside holds it up, if that is how it shows

    @property
    def ratio(self) -> float:
        """By how much slower it is: 0.2 is 20 %."""
        return float(np.expm1(self.excess))

    @property
    def margin(self) -> float:
        """The excess in standard errors."""
        return self.excess / max(self.error, 1e-12)


@dataclass(frozen=True, kw_only=True)
class RankTable:
    """The ranks that one window can compare. Every array has one entry for each rank."""

    columns: Columns
    ranks: NDArray[np.int64]
    nodes: NDArray[np.str_]
    excess: Floats
    error: Floats
    elevated: Flags  # above its floor, still slow lately, and slow even in its quick steps
    margin_factor: Floats  # how many times the usual margin one rank alone needs
    hidden: Flags  # plainly above the others, and on a noisy host no proof
    floor: Floats  # excess (log) below which nothing is reported
    rows: Rows
    noise: float
    noisy: bool


def table_of(timings: Timings, cohorts: Sequence[Excess], config: StragglerConfig) -> RankTable:
    """The cohorts of one window, at least one, as one table."""
    columns = np.concatenate([c.columns for c in cohorts])
    return RankTable(
        columns=columns,
        ranks=timings.ranks[columns],
        nodes=timings.nodes[columns],
        excess=np.concatenate([c.excess for c in cohorts]),
        error=np.concatenate([c.error for c in cohorts]),
        elevated=np.concatenate([_elevated(c, config) for c in cohorts]),
        margin_factor=np.concatenate([np.full(len(c.columns), _margin_factor(c, config)) for c in cohorts]),
        hidden=np.concatenate([_hidden(c, config) for c in cohorts]),
        floor=np.concatenate([np.full(len(c.columns), _floor(c, config)) for c in cohorts]),
        rows=cohorts[0].rows,
        noise=float(np.median([c.noise for c in cohorts])),
        noisy=any(c.noisy for c in cohorts),
    )


def find_suspects(table: RankTable, sigmas: float, config: StragglerConfig) -> list[Suspect]:
    """Slow nodes, then slow ranks that no slow node explains.

    `sigmas` is the margin that one of all tests must exceed, in standard errors.
    """
    nodes = list(_slow_nodes(table, sigmas, config))
    explained = np.isin(table.nodes, np.array([node.subject for node in nodes], np.str_))
    needed = table.margin_factor * sigmas * table.error
    slow = table.elevated & (table.excess > needed) & ~explained
    return nodes + [_slow_rank(table, i) for i in np.flatnonzero(slow).tolist()]


def hidden_by_noise(tables: Iterable[RankTable], sigmas: float) -> str:
    """Which rank takes longer by more than noise explains, and by less than is named where steps scatter.

    "" for none. `sigmas` is the margin that one of all tests must exceed, in standard errors.
    """
    worst, answer = 0.0, ""
    for table in tables:
        beyond = np.where(table.hidden & (table.excess > sigmas * table.error), table.excess, -np.inf)
        i = int(np.argmax(beyond))
        if beyond[i] <= worst:
            continue
        worst, floor = float(beyond[i]), float(table.floor[i])
        proof = (
            f"only {np.expm1(floor):.0%} or more would be sure"
            if worst <= floor
            else "it may be chance: longer windows, or quick steps that are slower too, would be sure"
        )
        answer = (
            f"rank {table.ranks[i]} computes {np.expm1(worst):.0%} longer than its cohort, and steps "
            f"scatter so much that {proof}"
        )
    return answer


def strongest(suspects: Iterable[Suspect]) -> list[Suspect]:
    """The surest suspect for each subject. A rank is not named twice, by itself and in its node."""
    best: dict[tuple[str, str], Suspect] = {}
    for suspect in suspects:
        key = (suspect.subject_type, suspect.subject)
        other = best.get(key)
        if other is None:
            best[key] = suspect
        else:
            best[key] = _merged(other, suspect)
    kept: list[Suspect] = []
    taken: set[int] = set()
    for suspect in sorted(best.values(), key=lambda s: (-s.margin, s.subject_type, s.subject)):
        if not taken & set(suspect.columns.tolist()):
            kept.append(suspect)
            taken |= set(suspect.columns.tolist())
    return sorted(kept, key=lambda s: (-s.excess, s.subject))


def _merged(one: Suspect, other: Suspect) -> Suspect:
    """The surer of two suspects for one subject. What the kernel counted tells best how much it costs."""
    stronger = max(one, other, key=lambda s: s.margin)
    counted = next((s for s in (stronger, one, other) if s.cause), None)
    if counted is None or counted is stronger:
        return stronger
    error = counted.excess / max(stronger.margin, 1e-12)
    return replace(stronger, cause=counted.cause, excess=counted.excess, error=error)


def quiet_floor(noise: float, steps: int, config: StragglerConfig) -> float:
    """The excess (log) below which nothing is reported on a host with enough processors."""
    return max(_least(steps, config), config.noise_share * noise * max(1.0, config.short / steps))


def _slow_nodes(table: RankTable, sigmas: float, config: StragglerConfig) -> Iterator[Suspect]:
    """Nodes of two ranks and more that are all likely slow, by about the same."""
    likely = table.elevated & (table.excess > sigmas / 2 * table.error)
    for node in np.unique(table.nodes[likely]).tolist():
        mates = table.nodes == node
        count, excess = int(mates.sum()), table.excess[mates]
        if not node or count < 2 or not likely[mates].all():
            continue
        if excess.min() < config.alike * excess.max():
            continue
        independent = count**0.5 if table.noisy else count  # on a busy host the node's ranks share their luck
        suspect = Suspect(
            subject_type="node",
            subject=node,
            columns=table.columns[mates],
            rows=table.rows,
            excess=float(excess.mean()),
            error=float(np.sqrt((table.error[mates] ** 2).mean() / independent) * 1.2),
            noise=table.noise,
        )
        if suspect.margin > sigmas:
            yield suspect


def _slow_rank(table: RankTable, index: int) -> Suspect:
    return Suspect(
        subject_type="rank",
        subject=str(table.ranks[index]),
        columns=table.columns[index : index + 1],
        rows=table.rows,
        excess=float(table.excess[index]),
        error=float(table.error[index]),
        noise=table.noise,
    )


def _elevated(cohort: Excess, config: StragglerConfig) -> Flags:
    floor = _floor(cohort, config)
    slow_when_quick = True if cohort.quartile_gap is None else cohort.quartile_gap > 0
    still = cohort.recent > np.maximum(floor / 2, config.still_share * cohort.excess)
    return np.asarray((cohort.excess > floor) & still & slow_when_quick, np.bool_)


def _hidden(cohort: Excess, config: StragglerConfig) -> Flags:
    least = float(np.log1p(config.warning_ratio))
    still = cohort.recent > np.maximum(least / 2, config.still_share * cohort.excess)
    return np.asarray((cohort.excess > least) & still & cohort.noisy, np.bool_)


def _margin_factor(cohort: Excess, config: StragglerConfig) -> float:
    """How many times the margin of a node one rank needs. A short window of a busy host never suffices."""
    if not cohort.noisy:
        return 1.0
    return config.noisy_alone if len(cohort.rows) >= config.short else np.inf


def _floor(cohort: Excess, config: StragglerConfig) -> float:
    """The excess (log) below which nothing is reported in this window. Short windows hold more chance."""
    steps = len(cohort.rows)
    if not cohort.noisy:
        return quiet_floor(cohort.noise, steps, config)
    chance = config.noisy_share * cohort.noise * float(np.sqrt(config.short / steps))
    return max(_least(steps, config), min(chance, float(np.log1p(config.noisy_floor))))


def _least(steps: int, config: StragglerConfig) -> float:
    return float(np.log1p(config.short_floor if steps < config.short else config.floor_ratio))
