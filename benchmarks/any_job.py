"""Being watched on jobs that others wrote: who is slow, who only pauses, and what it costs.

    python benchmarks/any_job.py [--resume FILE] [--seconds 3600] [--seed 0]
    python benchmarks/any_job.py --part slow --jobs ddp,pipeline --trials 20
    python benchmarks/any_job.py --quick

Parts are `scripts`, `slow`, `pauses`, `clean`, `demo` and `idle`. Each part is made of units. No unit begins
after `--seconds`. `--resume` keeps the rows of finished units in a file, and goes on from there.
docs/benchmarks.md says what each part measures. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

from anyjob import parts, report
from anyjob.kept import Kept


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", action="append", choices=parts.PARTS, help="only this part; repeatable")
    parser.add_argument("--jobs", type=_names, metavar="A,B", help="only these jobs")
    parser.add_argument("--variants", type=_names, metavar="A,B", help="untouched, instrumented, or both")
    parser.add_argument("--trials", type=int, default=20, help="slow ranks for each job and variant")
    parser.add_argument("--clean", type=int, default=300, help="clean windows in all")
    parser.add_argument("--seconds", type=float, default=3600.0, help="begin nothing new after this time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shape", type=_shape, default=(2, 2), metavar="NxM", help="nodes and ranks of each")
    parser.add_argument(
        "--resume", type=Path, metavar="FILE", help="keep finished units here and go on from it"
    )
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep the folders of launches here")
    parser.add_argument("--steps", type=int, default=parts.STEPS, help="steps of each run of a script")
    parser.add_argument(
        "--after", type=float, default=0.0, metavar="SECONDS", help="a script's steps count from then on"
    )
    parser.add_argument("--quick", action="store_true", help="one small unit of each part, for tests")
    return parser.parse_args()


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def _shape(text: str) -> tuple[int, int]:
    nodes, _, ranks = text.partition("x")
    return int(nodes), int(ranks)


def main() -> None:
    """Run the parts that are wanted. Print what they show, and one JSON object last."""
    args = arguments()
    began_s, kept = time.monotonic(), Kept(args.resume)
    wanted = parts.Wanted(
        parts=tuple(args.part or parts.PARTS),
        jobs=args.jobs,
        variants=args.variants,
        trials=args.trials,
        clean=args.clean,
        seed=args.seed,
        shape=args.shape,
        steps=args.steps,
        after_s=args.after,
        quick=args.quick,
        logs=args.logs,
    )
    units = parts.units(wanted, cores=len(os.sched_getaffinity(0)))
    parts.run(units, kept, until_s=began_s + args.seconds, logs=args.logs)
    print(*report.lines(kept), sep="\n")
    print(json.dumps(report.result(kept)))


if __name__ == "__main__":
    main()
