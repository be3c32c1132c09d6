"""Seeded points: which move, at which stage of it, and what is killed there. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

Item = TypeVar("Item")

WITHOUT_IMAGES = ("preempt", "migrate")
KINDS = ("preempt", "migrate", "image", "preempt", "migrate")
"""In turn. One in five dumps the processes of a job of one node with CRIU."""
NO_RANKS = ("stopped", "checking", "starting", "restoring")
"""Stages at which no rank runs."""
STAGES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "preempt": (
            *("asked", "saving", "holding", "standing", "stopping", "stopped"),
            *("checking", "starting", "launched", "first_step"),
        ),
        "migrate": (
            *("asked", "saving", "holding", "standing", "stopping"),
            *("checking", "starting", "launched", "first_step"),
        ),
        "image": (
            *("asked", "holding", "dumping", "stopping", "stopped"),
            *("checking", "restoring", "first_step"),
        ),
    }
)
NODES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"preempt": ("a", "b"), "migrate": ("a", "b", "z"), "image": ("a",)}
)
"""Of each kind. Two run ranks, but for images. A job is moved off the second one to the third."""
LONGEST_S: Mapping[str, float] = MappingProxyType({"saving": 2.5, "dumping": 1.5, "restoring": 1.0})
"""How long a stage takes about, where it takes longer than `SHORT_S`."""
SHORT_S = 0.2


@dataclass(frozen=True, kw_only=True)
class Point:
    """`victim` is killed `after_s` into `stage`. With 0 the hub stands still there until that is done.

    `node` is the agent that is killed, and `rank` the rank. `back_s` later the supervisor starts the killed
    hub or agent anew. Where `other`, another node comes in place of the agent.
    """

    number: int
    kind: str
    stage: str
    victim: str
    node: str
    rank: int
    after_s: float
    back_s: float
    other: bool


def draw(seed: int, count: int, *, images: bool = True) -> list[Point]:
    """The first `count` points of a seed. Stages and victims of each kind come in turn, shuffled."""
    rng, kinds = random.Random(seed), KINDS if images else WITHOUT_IMAGES
    stages: dict[str, list[str]] = {kind: [] for kind in kinds}
    victims: dict[str, list[str]] = {kind: [] for kind in kinds}
    return [
        _point(rng, number, kind, _next(rng, stages[kind], STAGES[kind]), victims[kind])
        for number, kind in ((n, kinds[n % len(kinds)]) for n in range(count))
    ]


def _next(rng: random.Random, left: list[Item], of: Sequence[Item]) -> Item:
    if not left:
        left += rng.sample(of, len(of))
    return left.pop()


def _point(rng: random.Random, number: int, kind: str, stage: str, victims: list[str]) -> Point:
    victim = _next(rng, victims, ("hub", "agent", "rank"))
    if victim == "rank" and stage in NO_RANKS:
        victim = rng.choice(("hub", "agent"))
    node, rank = rng.choice(NODES[kind]), rng.randrange(2)
    after_s = rng.choice((0.0, round(rng.uniform(0.0, LONGEST_S.get(stage, SHORT_S)), 3)))
    ends = victim == "rank" and stage == "stopping"  # it would have ended by itself
    return Point(
        number=number,
        kind=kind,
        stage=stage,
        victim=victim,
        node=node,
        rank=rank,
        after_s=0.0 if ends else after_s,
        back_s=round(rng.uniform(0.0, 2.0), 3),
        other=victim == "agent" and kind != "image" and rng.random() < 0.5,
    )
