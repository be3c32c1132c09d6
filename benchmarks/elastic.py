"""A job that goes on with the nodes that are left: how fast, and whether state and samples stay right.

    python benchmarks/elastic.py [--points 100] [--seed 0] [--resume FILE] [--seconds 3600]
    python benchmarks/elastic.py --part points --points 20
    python benchmarks/elastic.py --quick

Parts are `example`, `survivors`, `points` and `ntp`. `example` is the GPT of three dimensions on four nodes:
a node is killed without a standby, and comes back. `survivors` kills one of three replicas, and measures how
long the processes of the others stand still. With `--peers PYTHON`, an interpreter in which torchft is
installed, it measures torchft by turns. `points` kills up to three nodes at once at seeded points and lets
them return. After each point the job must train, or say for how many nodes it waits. Every restore is
compared bit by bit with what was saved, and every sample must have been used once. `ntp` compares replicas of
unequal tensor parallelism with equal ones. The last line is one JSON object. Exit status 1: a promise was
broken.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from anyjob.kept import Kept
from elasticity import ntp, points, report, survivors

PARTS = ("example", "survivors", "points", "ntp")
REPEATS = 3
Row = dict[str, Any]
Unit = tuple[str, Callable[[Path], Iterator[Row]]]


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", action="append", choices=PARTS, help="only this part; repeatable")
    parser.add_argument("--points", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=3600.0, help="begin nothing new after this time")
    parser.add_argument(
        "--resume", type=Path, metavar="FILE", help="keep finished units here and go on from it"
    )
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep the folders of jobs here")
    parser.add_argument(
        "--peers", default="", metavar="PYTHON", help="measure torchft of this Python as well"
    )
    parser.add_argument("--quick", action="store_true", help="one small unit of each part, for tests")
    return parser.parse_args()


def units(args: argparse.Namespace) -> Iterator[Unit]:
    """What is to be run, in its order."""
    wanted, quick = args.part or PARTS, args.quick
    if "example" in wanted and not quick:
        yield "example", lambda folder: points.example(folder, say)
    if "survivors" in wanted:
        repeats = 1 if quick else REPEATS
        yield "survivors", lambda folder: survivors.rows(folder, args.peers, say, repeats)
    if "ntp" in wanted:
        yield "ntp", lambda folder: ntp.rows(folder, quick=quick)
    if "points" in wanted:
        drawn = points.draw(args.seed, 1 if quick else args.points)
        each = points.POINTS_PER_JOB
        for number, first in enumerate(range(0, len(drawn), each)):
            some, shape = drawn[first : first + each], points.SHAPES[number % len(points.SHAPES)]
            yield f"points/{args.seed}/{first}", lambda f, p=some, s=shape: points.run_job(f, s, p, say)


def say(line: str) -> None:
    """Tell how it goes on."""
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    """Run what is wanted, print what came out."""
    args = arguments()
    began_s, kept = time.monotonic(), Kept(args.resume)
    for name, run in units(args):
        if kept.done(name) or time.monotonic() - began_s > args.seconds:
            continue
        folder = Path(tempfile.mkdtemp(prefix="pulsetrain-bench-", dir=args.logs))
        kept.add(name, run(folder))
        if args.logs is None:
            shutil.rmtree(folder, ignore_errors=True)
    found = report.result(kept.rows)
    print(json.dumps(found))
    sys.exit(bool(found["wrong"] or found["samples_lost"] or found["samples_doubled"]))


if __name__ == "__main__":
    main()
