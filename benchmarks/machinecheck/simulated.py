"""Group tests on simulated nodes, beside DLRover's two-round scheme on the same seeds."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median

import numpy as np

from pulsetrain.diagnostics.faulty_nodes import information_bound_tests, judge, next_round, rounds_bound
from pulsetrain.diagnostics.rounds import Group, GroupResult, pairs_of
from pulsetrain.diagnostics.slow_nodes import SlowSearch

NOISE = 0.05
"""Standard deviation of the logarithm of a time, from round to round."""
TIMEOUT_S = 3600.0
"""What DLRover notes for a group that failed (dlrover.master.elastic_training.rdzv_manager)."""
STRAGGLER_RATIO = 2.0
"""DLRover calls a node a straggler above so many times the median."""

Answer = dict[str, object]


def names(count: int) -> list[str]:
    return [f"n{i:02d}" for i in range(count)]


# -- faulty nodes -----------------------------------------------------------------------------------------


Round = Callable[[Sequence[Group], int], list[GroupResult]]
"""Runs the groups of one round, which has a number."""


def ours(nodes: Sequence[str], run_round: Round) -> tuple[set[str], int]:
    """Who is named, and after how many rounds."""
    results: list[GroupResult] = []
    rounds = 0
    while groups := next_round(nodes, results):
        results += run_round(groups, rounds)
        rounds += 1
    return set(judge(nodes, results).faulty), rounds


def simulated(faulty: set[str]) -> Round:
    """A round in which a group with a faulty node fails."""
    return lambda groups, number: [
        GroupResult(members=g, ok=not faulty & set(g), seconds=1.0, round=number) for g in groups
    ]


def dlrover(
    nodes: Sequence[str], time_of: Callable[[Group, int], float]
) -> tuple[set[str], dict[str, float]]:
    """Nodes that failed in both rounds of DLRover's check, and each node's shorter time.

    Round 1 pairs neighbours. Round 2 pairs the slowest with the fastest, where a failure is the slowest.
    `time_of` a group and a round is `TIMEOUT_S` where it fails.
    """
    first = {n: time_of(g, 0) for g in pairs_of(nodes) for n in g}
    ranked = sorted(nodes, key=lambda n: (first[n], nodes.index(n)))
    half = len(ranked) // 2
    pairs = [(ranked[i], ranked[-1 - i]) for i in range(half)]
    if len(ranked) % 2:
        pairs[-1] += (ranked[half],)  # type: ignore[assignment]  # an odd one joins the last pair
    second = {n: time_of(g, 1) for g in pairs for n in g}
    both = {n for n in nodes if first[n] == second[n] == TIMEOUT_S}
    return both, {n: min(first[n], second[n]) for n in nodes}


def failing(faulty: set[str]) -> Callable[[Group, int], float]:
    """A group with a faulty node fails."""
    return lambda group, _: TIMEOUT_S if faulty & set(group) else 1.0


def faults(count: int, faulty: int, seeds: int) -> Answer:
    """How often exactly the faulty nodes are named, and nobody else, by both schemes on the same seeds."""
    nodes = names(count)
    exact = wrong = most = theirs_exact = theirs_wrong = 0
    for seed in range(seeds):
        broken = set(random.Random(seed).sample(nodes, faulty))
        found, rounds = ours(nodes, simulated(broken))
        exact, wrong, most = exact + (found == broken), wrong + bool(found - broken), max(most, rounds)
        both, _ = dlrover(nodes, failing(broken))
        theirs_exact, theirs_wrong = theirs_exact + (both == broken), theirs_wrong + bool(both - broken)
    return {
        "nodes": count,
        "faulty": faulty,
        "seeds": seeds,
        "exact": exact,
        "healthy_named": wrong,
        "most_rounds": most,
        "rounds_bound": rounds_bound(count, faulty),
        "information_bound_tests": information_bound_tests(count, faulty),
        "dlrover": {"exact": theirs_exact, "healthy_named": theirs_wrong, "rounds": 2},
    }


# -- slow nodes -------------------------------------------------------------------------------------------


class Fleet:
    """Nodes whose times vary from round to round. `slow` maps nodes to how many times as slow they are."""

    def __init__(self, nodes: Sequence[str], slow: Mapping[str, float], seed: int) -> None:
        self._slow = np.array([slow.get(n, 1.0) for n in nodes])
        self._index = {n: i for i, n in enumerate(nodes)}
        self._seed = seed

    def times(self, number: int, measure: int) -> np.ndarray:
        """Each node's time in one round."""
        draw = np.random.default_rng([self._seed, number, measure])
        return self._slow * np.exp(NOISE * draw.standard_normal(self._slow.size))

    def group_s(self, group: Group, number: int) -> float:
        """An all-gather takes as long as its slowest member."""
        return float(self.times(number, 2)[[self._index[n] for n in group]].max())

    def results(self, groups: Sequence[Group], number: int) -> list[GroupResult]:
        """What a round measured."""
        times = {name: self.times(number, i) for i, name in enumerate(("compute", "compute_mean", "gather"))}
        return [
            GroupResult(
                members=g,
                ok=True,
                seconds=float(times["gather"][[self._index[n] for n in g]].max()),
                own_times_s={
                    n: {m: float(times[m][self._index[n]]) for m in ("compute", "compute_mean")} for n in g
                },
            )
            for g in groups
        ]


def search(nodes: Sequence[str], fleet: Fleet, seed: int) -> tuple[set[str], int]:
    """Who is named slow, and after how many rounds."""
    found, number = SlowSearch(dict.fromkeys(nodes, ""), seed=seed), 0
    while groups := found.next_round():
        found.take(fleet.results(groups, number))
        number += 1
    return set(found.verdict().slow), number


def slow(count: int, factor: float, trials: int) -> Answer:
    """How often the one slow node is named, and how often a healthy one. `factor` 1: all are healthy."""
    nodes = names(count)
    named = wrong = theirs_named = theirs_wrong = 0
    rounds: list[int] = []
    for seed in range(trials):
        broken = {random.Random(seed).choice(nodes)} if factor > 1 else set[str]()
        fleet = Fleet(nodes, dict.fromkeys(broken, factor), seed)
        found, number = search(nodes, fleet, seed)
        rounds.append(number)
        named, wrong = named + (found >= broken and bool(broken)), wrong + bool(found - broken)
        _, times = dlrover(nodes, fleet.group_s)
        theirs = {n for n, t in times.items() if t > STRAGGLER_RATIO * median(times.values())}
        theirs_named += theirs >= broken and bool(broken)
        theirs_wrong += bool(theirs - broken)
    return {
        "nodes": count,
        "factor": factor,
        "trials": trials,
        "named": named,
        "trials_with_a_healthy_node_named": wrong,
        "median_rounds": median(rounds),
        "most_rounds": max(rounds),
        "dlrover": {"named": theirs_named, "trials_with_a_healthy_node_named": theirs_wrong},
    }


def run(seeds: int, trials: int) -> Answer:
    """Every figure."""
    began = time.perf_counter()
    return {
        "faulty": [faults(64, k, seeds) for k in range(5)] + [faults(8, 4, seeds)],
        "slow": [slow(64, factor, trials) for factor in (1.0, 1.2, 1.5, 1.9)],
        "noise": NOISE,
        "seconds": round(time.perf_counter() - began, 1),
    }
