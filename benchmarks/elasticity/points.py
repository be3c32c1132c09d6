"""Seeded points at which nodes are killed and come back, up to three at once."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from elasticity.judge import judge, read
from elasticity.site import BATCH, PATIENCE_S, SAMPLES, Shape, Site, until

Row = dict[str, Any]

SHAPES = (
    Shape(nodes=4, nproc=1, tp=2, pp=1),
    Shape(nodes=4, nproc=2, tp=2, pp=2),
    Shape(nodes=4, nproc=1, tp=2, pp=1),
    Shape(nodes=4, nproc=1, tp=1, pp=2),
)
"""Of the jobs, in turn. One in four has three dimensions."""

POINTS_PER_JOB = 5


@dataclass(frozen=True, kw_only=True)
class Point:
    """`victims` are killed `after_s` into a settled job, `apart_s` after one another.

    They come back `back_apart_s` after one another. Where `again` names one, it is killed once more so many
    seconds after it came back.
    """

    victims: tuple[int, ...]
    after_s: float
    apart_s: float
    back_apart_s: float
    again: int
    again_s: float


def draw(seed: int, count: int, nodes: int = 4) -> list[Point]:
    """The first `count` points of a seed."""
    rng, points = random.Random(seed), []
    for _ in range(count):
        victims = tuple(rng.sample(range(nodes), rng.choice((1, 1, 2, 3))))
        points.append(
            Point(
                victims=victims,
                after_s=round(rng.uniform(0.0, 1.5), 3),
                apart_s=rng.choice((0.0, 0.0, round(rng.uniform(0.05, 4.0), 3))),
                back_apart_s=rng.choice((0.0, round(rng.uniform(0.1, 3.0), 3))),
                again=rng.choice((-1, -1, victims[0])),
                again_s=round(rng.uniform(0.5, 6.0), 3),
            )
        )
    return points


def strike(site: Site, point: Point) -> Row:
    """Kill and return. The row says how long the job took to be as its nodes allow it."""
    names = site.names
    site.moves_on(3)
    time.sleep(point.after_s)
    for number in point.victims:
        site.kill(names[number])
        time.sleep(point.apart_s)
    shrink_s = site.settles(f"{point}: fewer nodes")
    ranks = site.shape.ranks(len(site.nodes))
    if ranks:
        site.moves_on(2)
    for number in point.victims:
        site.start(names[number])
        time.sleep(point.back_apart_s)
    if point.again >= 0:
        time.sleep(point.again_s)
        site.kill(names[point.again])
        site.settles(f"{point}: killed again")
        site.start(names[point.again])
    until(site.joined, PATIENCE_S, "all nodes are connected")
    regrow_s = site.settles(f"{point}: all nodes")
    return {"what": "point", **asdict(point), "ranks": ranks, "shrink_s": shrink_s, "regrow_s": regrow_s}


def run_job(folder: Path, shape: Shape, points: list[Point], say: Callable[[str], None]) -> Iterator[Row]:
    """One job with its points, and what is to be said of it in the end."""
    site = Site(folder, shape)
    failed = ""
    try:
        for name in site.names:
            site.start(name)
        site.settles("the first world")
        for point in points:
            row = strike(site, point)
            say(f"{shape} {row}")
            yield row
    except TimeoutError as error:
        failed = f"{error}; {site.job()}"
        say(failed)
    finally:
        site.close()
    verdict = judge(read(folder / "record"), samples=SAMPLES, batch=BATCH)
    verdict["wrong"] += [failed] if failed else []
    say(str(verdict))
    yield {"what": "job", "shape": asdict(shape), **verdict}


def example(folder: Path, say: Callable[[str], None]) -> Iterator[Row]:
    """The job of three dimensions on four nodes loses one, and gets it back."""
    point = Point(victims=(3,), after_s=1.0, apart_s=0.0, back_apart_s=0.0, again=-1, again_s=0.0)
    for row in run_job(folder, Shape(nodes=4, nproc=2, tp=2, pp=2), [point], say):
        yield {**row, "what": "example"} if row["what"] == "point" else row
