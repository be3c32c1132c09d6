"""Find nodes that are slower than the others of their kind, by rounds of all-gathers in pairs. Pure.

In each round the nodes that are still in question, and some that are not, are paired anew by chance. Each
node's matrix products and each pair's all-gather are timed. A node is named slow if two tests agree:

- **Ranks.** A healthy node's rank among its cohort is as likely the first as the last in each round, however
  the times are distributed. So the product over the rounds of ``exp(d * z) / mean(exp(d * z))``, where z is
  the normal score of the rank, rarely becomes large: above ``1 / a`` with a chance of at most a, whenever one
  looks (Ville's inequality). a is `error_rate`, divided by the number of nodes and of measures. Three values
  of d are averaged, for small and for large shifts. Before a node is ranked, its time is divided by
  `tolerance_ratio`, because healthy nodes are not equal.
- **Spread.** Ranks of successive rounds are not independent where a machine is slow for some seconds. So the
  median over the rounds must also lie far outside the spread of the cohort's medians, which is the larger the
  longer such states last. The limit is in robust standard deviations (median absolute deviation).

The first test holds for independent times of any distribution, the second for dependent times whose medians
are about normal. A healthy node is named only where both fail. Besides, the median must be `least_ratio`
times the cohort's. A node whose ranks speak against slowness is cleared, and is only a partner from then on.
So only suspects cost further rounds.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from pulsetrain.core.errors import UsageError
from pulsetrain.diagnostics.rounds import Group, GroupResult, pairs_of

Floats = NDArray[np.float64]

GATHER = "gather"
MEASURES = ("compute", "compute_mean", GATHER)
"""the products of the fastest repetition, of all repetitions, and the pair's all-gathers"""
SHIFTS = (1.0, 2.0, 4.0)
"""d: by how many standard deviations a slow node is assumed to be slower"""
LEAST_COHORT = 3
CONTROLS = 64
"""cleared nodes that go on as partners at most. More would not make a rank much finer"""
NORMAL_CONSISTENT = 1.4826  # standard deviation of a normal distribution over its median absolute deviation


@dataclass(frozen=True, kw_only=True)
class SlowTest:
    """How sure a verdict must be. Raises `UsageError` for an `error_rate` outside 0 to 1."""

    error_rate: float = 0.001
    """Chance that any healthy node of a check is named, by the test of ranks alone."""
    least_ratio: float = 1.1
    """A node that is slower by less than this is not worth a name (GREYHOUND profiles groups above 1.1)."""
    tolerance_ratio: float = 1.02
    """By how much healthy nodes may differ all the time."""
    cleared_at: float = 0.02
    """Chance of clearing a slow node, about."""
    least_rounds: int = 8
    most_rounds: int = 80

    def __post_init__(self) -> None:
        if not 0 < self.error_rate < 1:
            raise UsageError(f"error_rate = {self.error_rate}: allowed above 0, below 1")


@dataclass(frozen=True, kw_only=True)
class SlowNode:
    """`ratio` is the median over `rounds` rounds of the node's time, as a multiple of its cohort's."""

    ratio: float
    measure: str
    rounds: int


@dataclass(frozen=True, kw_only=True)
class SlowVerdict:
    """Who is slow. `undecided` maps nodes that are neither named nor cleared to their ratio so far.

    `not_compared` maps nodes to the reason. `rounds` is how many were run.
    """

    slow: Mapping[str, SlowNode] = field(default_factory=dict)
    undecided: Mapping[str, float] = field(default_factory=dict)
    not_compared: Mapping[str, str] = field(default_factory=dict)
    rounds: int = 0

    @property
    def reason(self) -> str:
        """Why something is not known, "" where all is."""
        told = [f"{self.rounds} rounds do not tell whether {', '.join(self.undecided)} are slow"]
        lacking = sorted(set(self.not_compared.values()))
        return "; ".join([*(told if self.undecided else []), *lacking])


class SlowSearch:
    """Plans rounds and judges what they measured. `kinds` maps every node, in order, to what kind it is.

    Nodes are compared with those of their kind alone. `seed` decides who is paired with whom. The answers
    depend on the order of the nodes and not on their names.
    """

    def __init__(self, kinds: Mapping[str, str], *, test: SlowTest | None = None, seed: int = 0) -> None:
        self._test, self._random, self._rounds = test or SlowTest(), random.Random(seed), 0
        cohorts: dict[str, list[str]] = {}
        for node, kind in kinds.items():
            cohorts.setdefault(kind, []).append(node)
        self._not_compared = {
            node: f"{len(nodes)} nodes of kind {kind or 'unknown'}: too few to compare"
            for kind, nodes in cohorts.items()
            for node in nodes
            if len(nodes) < LEAST_COHORT
        }
        compared = [nodes for nodes in cohorts.values() if len(nodes) >= LEAST_COHORT]
        names = len(MEASURES) * sum(map(len, compared))
        limit = math.log(max(names, 1) / self._test.error_rate)
        self._cohorts = [_Cohort(nodes, self._test, limit) for nodes in compared]

    def next_round(self) -> list[Group]:
        """Return pairs, drawn by chance, of nodes of one kind each. An odd one joins a pair.

        Empty once every node is named or cleared, or after the last round.
        """
        if self._rounds >= self._test.most_rounds:
            return []
        return [group for cohort in self._cohorts for group in pairs_of(cohort.drawn(self._random))]

    def take(self, results: Sequence[GroupResult]) -> None:
        """Take in the results of a round. What failed was not timed."""
        self._rounds += 1
        for cohort in self._cohorts:
            cohort.take([r for r in results if r.ok and set(r.members) <= cohort.index.keys()])

    def leave_out(self, nodes: Iterable[str]) -> None:
        """Ask these nodes no more: they are faulty, so their times mean nothing."""
        for cohort in self._cohorts:
            cohort.leave_out(nodes)

    def verdict(self) -> SlowVerdict:
        """Return what is known after the rounds so far."""
        return SlowVerdict(
            slow={node: slow for cohort in self._cohorts for node, slow in cohort.slow.items()},
            undecided={node: ratio for cohort in self._cohorts for node, ratio in cohort.undecided()},
            not_compared=self._not_compared,
            rounds=self._rounds,
        )


class _Cohort:
    """Nodes of one kind: what each measured relative to the others, and what follows from that.

    Arrays have one row for each node and one column for each measure. `_logs` has one table of nodes by
    rounds for each measure: the logarithm of the time over the round's median, NaN where there was none.
    """

    def __init__(self, nodes: Sequence[str], test: SlowTest, limit: float) -> None:
        self.index = {node: i for i, node in enumerate(nodes)}
        self.slow: dict[str, SlowNode] = {}
        self._nodes, self._test, self._limit = nodes, test, limit
        self._evidence = np.zeros((len(nodes), len(MEASURES), len(SHIFTS)))
        self._logs: list[list[Floats]] = [[] for _ in MEASURES]
        self._open = np.ones(len(nodes), dtype=bool)
        self._asked = np.ones(len(nodes), dtype=bool)
        self._cleared = np.zeros((len(nodes), len(MEASURES)), dtype=bool)

    def drawn(self, chance: random.Random) -> list[str]:
        """Return who takes part in the next round, in random order: suspects, and some cleared nodes."""
        if not self._open.any():
            return []
        suspects = np.flatnonzero(self._open).tolist()
        cleared = np.flatnonzero(~self._open & self._asked).tolist()
        drawn = suspects + chance.sample(cleared, min(CONTROLS, len(cleared)))
        chance.shuffle(drawn)
        return [self._nodes[i] for i in drawn]

    def leave_out(self, nodes: Iterable[str]) -> None:
        """Ask these nodes no more."""
        for node in nodes:
            if node in self.index:
                self._open[self.index[node]] = self._asked[self.index[node]] = False

    def take(self, results: Sequence[GroupResult]) -> None:
        """Add a round's times to the evidence, then name and clear."""
        for column, measure in enumerate(MEASURES):
            times, cohort = self._times(results, measure)
            self._logs[column].append(_relative(times, cohort))
            self._evidence[:, column] += _rank_evidence(times, cohort, self._test.tolerance_ratio)
        self._decide()

    def _times(self, results: Sequence[GroupResult], measure: str) -> tuple[Floats, Floats]:
        """Return each node's time, NaN where it has none, and all that it is compared with, its own too."""
        times = np.full(len(self._nodes), math.nan)
        for result in results:
            for node in result.members:
                if measure != GATHER:
                    times[self.index[node]] = result.own_times_s.get(node, {}).get(measure, math.nan)
                elif len(result.members) == 2:
                    times[self.index[node]] = result.seconds
        together = np.array([r.seconds for r in results if len(r.members) == 2])
        return times, together if measure == GATHER else times[~np.isnan(times)]

    def _decide(self) -> None:
        """Name who is far out by both tests. Clear whose ranks speak against slowness in every measure."""
        test, over, timed = self._test, np.ones_like(self._open), np.zeros_like(self._open)
        for column, measure in enumerate(MEASURES):
            scores, rounds = self._scores(column)
            evidence = np.logaddexp.reduce(self._evidence[:, column], axis=1) - math.log(len(SHIFTS))
            enough = rounds >= test.least_rounds
            far = scores >= math.log(test.least_ratio)
            named = self._open & enough & far & (evidence >= self._limit) & self._outside(scores, rounds)
            for i in np.flatnonzero(named).tolist():
                ratio, count = float(math.exp(scores[i])), int(rounds[i])
                self.slow[self._nodes[i]] = SlowNode(ratio=ratio, measure=measure, rounds=count)
                self._open[i] = self._asked[i] = False
            self._cleared[:, column] |= ~far & enough & (evidence <= math.log(test.cleared_at))
            never = (rounds == 0) & (len(self._logs[column]) >= test.least_rounds)
            over &= self._cleared[:, column] | never
            timed |= rounds > 0
        self._open &= ~(over & timed)

    def _scores(self, column: int) -> tuple[Floats, Floats]:
        """Return the median of each node's logarithms, 0 without any, and of how many rounds it is."""
        logs = np.array(self._logs[column])
        rounds = (~np.isnan(logs)).sum(axis=0)
        scores = np.zeros(len(self._nodes))
        timed = rounds > 0
        scores[timed] = np.nanmedian(logs[:, timed], axis=0)
        return scores, rounds

    def _outside(self, scores: Floats, rounds: Floats) -> NDArray[np.bool_]:
        """Whether a node lies far outside the spread of those that were measured in half as many rounds."""
        peers = scores[(rounds > 0) & (rounds * 2 >= rounds.max())]
        if len(peers) < LEAST_COHORT:
            return np.zeros_like(self._open)
        middle = np.median(peers)
        spread = NORMAL_CONSISTENT * np.median(abs(peers - middle))
        outside: NDArray[np.bool_] = scores - middle >= deviations_limit(len(peers)) * spread
        return outside

    def undecided(self) -> Iterator[tuple[str, float]]:
        """Return the nodes that are neither named nor cleared, with the largest ratio of any measure."""
        scores = [self._scores(column)[0] for column, logs in enumerate(self._logs) if logs]
        for i in np.flatnonzero(self._open).tolist():
            yield self._nodes[i], math.exp(max((float(score[i]) for score in scores), default=0.0))


def deviations_limit(cohort: int) -> float:
    """Return how many robust deviations from the median of a cohort only a slow node lies.

    The largest of normal values lies beyond it in about one of 1,000 cohorts or fewer (simulated for 4 to 128
    nodes). The spread of few nodes is not well known, so the limit is larger for them.

    >>> round(deviations_limit(64), 1), round(deviations_limit(8), 1)
    (5.5, 14.7)
    """
    return 5.35 + 600 / cohort**2


def _relative(times: Floats, cohort: Floats) -> Floats:
    """Return the logarithms of the times over the median of the cohort, NaN where there is none."""
    if len(cohort) < LEAST_COHORT - 1:
        return np.full_like(times, math.nan)
    relative: Floats = np.log(times / np.median(cohort))
    return relative


def _rank_evidence(times: Floats, cohort: Floats, tolerance_ratio: float) -> Floats:
    """Return what one round adds to the evidence of each node, for each of `SHIFTS`. 0 without a time.

    The cohort holds the node's own time. Its rank is the number of times below its own, tolerance taken off.
    """
    added = np.zeros((len(times), len(SHIFTS)))
    timed = ~np.isnan(times)
    if len(cohort) >= LEAST_COHORT - 1 and timed.any():
        ranks = np.searchsorted(np.sort(cohort), times[timed] / tolerance_ratio)
        added[timed] = _evidence_of_ranks(len(cohort))[np.minimum(ranks, len(cohort) - 1)]
    return added


@lru_cache(maxsize=256)
def _evidence_of_ranks(count: int) -> Floats:
    """Return the logarithm of ``exp(d * z) / mean(exp(d * z))`` for each rank of `count` and each shift d."""
    normal = NormalDist()
    scores = np.array([normal.inv_cdf((rank + 0.5) / count) for rank in range(count)])
    weights = np.exp(np.outer(scores, SHIFTS))
    evidence: Floats = np.log(weights / weights.mean(axis=0))
    return evidence
