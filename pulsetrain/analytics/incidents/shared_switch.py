"""Whether nodes that were hit alike share a switch, and more of them than chance would put there. Pure.

The law: if what hit the nodes had nothing to do with switches, the hit nodes of a job would be a random
choice of its nodes. Then the number of them under one switch has a hypergeometric distribution, and over
several jobs the sum of one for each. A switch is suspected if two things hold. The chance that any switch has
that many is at most `ALPHA` (the sum over switches bounds it). And nearly all hit nodes are under it. Which
job was hit says nothing: a job that fails by itself takes all its nodes with it, wherever they are.

So one node never suspects a switch. Nor does a job whose nodes are all under one switch, because there each
fault looks like one of the switch. What else the nodes of a switch have in common, as a stage of the pipeline
or the power of a rack, cannot be told from it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ALPHA = 0.05
"""The chance with which nodes that were hit for another reason suspect a switch."""
LEAST = 2
"""nodes under a switch that must be hit"""
MOST_ELSEWHERE = 0.2
"""of the nodes that were hit: the other switches must be well, and one node may fail by itself meanwhile"""


@dataclass(frozen=True, kw_only=True)
class JobNodes:
    """The nodes of one job that could have been hit, with their switches, and those that were."""

    switch_of: Mapping[str, str]
    hit: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class SharedSwitch:
    """A suspected switch. `hit` are nodes under it by job, `under` counts all of these jobs under it.

    `elsewhere` counts hit nodes under other switches, of which these jobs have `others`. `chance` is the
    bound that must not exceed `ALPHA`.
    """

    switch: str
    hit: Mapping[str, tuple[str, ...]]
    under: int
    elsewhere: int
    others: int
    chance: float

    @property
    def count(self) -> int:
        """How many nodes under the switch were hit."""
        return sum(map(len, self.hit.values()))


def find(jobs: Mapping[str, JobNodes]) -> SharedSwitch | None:
    """Return the switch that the hit nodes of these jobs share. None where chance may have put them there.

    Nodes without a known switch are left out.

    >>> switch_of = {f"n{i}": f"s{i // 8}" for i in range(64)}
    >>> found = find({"j": JobNodes(switch_of=switch_of, hit=frozenset({"n24", "n27", "n30"}))})
    >>> found.switch, found.count, found.under, round(found.chance, 3)
    ('s3', 3, 8, 0.011)
    >>> find({"j": JobNodes(switch_of=switch_of, hit=frozenset({"n24", "n33", "n60"}))}) is None
    True
    """
    strata = {name: known for name, job in jobs.items() if (known := _known(job)).hit}
    by_switch = Counter(job.switch_of[node] for job in strata.values() for node in job.hit)
    if not by_switch:
        return None
    switch, count = max(by_switch.items(), key=lambda item: (item[1], item[0]))
    elsewhere = by_switch.total() - count
    if count < LEAST or elsewhere > MOST_ELSEWHERE * by_switch.total():
        return None
    chance = chance_of_any([_sizes(job) for job in strata.values()], count)
    if chance > ALPHA:
        return None
    switches = {of for job in strata.values() for of in job.switch_of.values()}
    return SharedSwitch(
        switch=switch,
        hit={name: under for name, job in strata.items() if (under := _under(job, switch))},
        under=sum(of == switch for job in strata.values() for of in job.switch_of.values()),
        elsewhere=elsewhere,
        others=len(switches) - 1,
        chance=chance,
    )


def _known(job: JobNodes) -> JobNodes:
    """The job without nodes of which no switch is known."""
    switch_of = {node: switch for node, switch in job.switch_of.items() if switch}
    return JobNodes(switch_of=switch_of, hit=job.hit & switch_of.keys())


def _under(job: JobNodes, switch: str) -> tuple[str, ...]:
    return tuple(sorted(node for node in job.hit if job.switch_of[node] == switch))


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Of one job: its nodes under each switch, and how many of all its nodes were hit."""

    under: Mapping[str, int]
    hit: int


def _sizes(job: JobNodes) -> Sizes:
    return Sizes(under=Counter(job.switch_of.values()), hit=len(job.hit))


def chance_of_any(jobs: Sequence[Sizes], count: int) -> float:
    """Bound the chance that any switch has `count` or more of the hit nodes, if they are a random choice.

    >>> round(chance_of_any([Sizes(under={"s0": 4, "s1": 4}, hit=4)], 4), 6)  # 2 of the 70 choices
    0.028571
    """
    switches = sorted({switch for job in jobs for switch in job.under})
    alike = Counter(tuple(job.under.get(switch, 0) for job in jobs) for switch in switches)
    return min(1.0, sum(times * _tail(jobs, under, count) for under, times in alike.items()))


def _tail(jobs: Sequence[Sizes], under: Sequence[int], count: int) -> float:
    """The chance that a switch with so many nodes of each job has `count` or more of the hit nodes."""
    if sum(min(job.hit, size) for job, size in zip(jobs, under, strict=True)) < count:
        return 0.0
    total = [1.0]
    for job, size in zip(jobs, under, strict=True):
        one = _hypergeometric(sum(job.under.values()), size, job.hit)
        total = _sum_of(total, one)
    return sum(total[count:])


def _hypergeometric(nodes: int, under: int, hit: int) -> list[float]:
    """The chances that 0, 1, 2 ... of `hit` nodes, drawn of `nodes`, are among the `under` ones."""
    all_ways = _log_comb(nodes, hit)
    return [
        math.exp(_log_comb(under, k) + _log_comb(nodes - under, hit - k) - all_ways)
        if hit - k <= nodes - under
        else 0.0
        for k in range(min(under, hit) + 1)
    ]


def _log_comb(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def _sum_of(first: Sequence[float], second: Sequence[float]) -> list[float]:
    """The distribution of the sum of two independent numbers."""
    total = [0.0] * (len(first) + len(second) - 1)
    for i, a in enumerate(first):
        if a:
            for k, b in enumerate(second):
                total[i + k] += a * b
    return total
