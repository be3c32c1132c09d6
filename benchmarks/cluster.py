"""A controller for a real cluster: its leader is killed, its nodes are drained and lost, and there are many.

    python benchmarks/cluster.py [--resume FILE] [--seconds 3600] [--seed 0]
    python benchmarks/cluster.py --part failover --points 30
    python benchmarks/cluster.py --quick

Parts are `failover` (real etcd and two hubs), `slurm` (a real Slurm, left out where it is not installed),
`failing` (jobs that fail in every attempt), `agents` (agents without ranks, in one process, and a real hub)
and `simulated` (a real controller in virtual time, up to 100,000 agents). No unit begins after `--seconds`.
`--resume` keeps rows of finished units in a file, and goes on from there. What larger fleets record is
simulated by `pulsetrain simulate fleet-live`. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from anyjob.kept import Kept
from clustered import parts, report

from pulsetrain.core import log


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", action="append", choices=parts.PARTS, help="only this part; repeatable")
    parser.add_argument("--points", type=int, default=30, help="leaders that are killed")
    parser.add_argument("--failing", type=int, default=50, help="jobs that fail in every attempt")
    parser.add_argument(
        "--agents", type=_counts, default=parts.SIZES, metavar="N,N", help="sizes of the fleet"
    )
    parser.add_argument(
        "--simulated", type=_counts, default=parts.SIMULATED, metavar="N,N", help="sizes that are simulated"
    )
    parser.add_argument("--seconds", type=float, default=3600.0, help="begin nothing new after this time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--resume", type=Path, metavar="FILE", help="keep finished units here and go on from it"
    )
    parser.add_argument("--quick", action="store_true", help="one point and a few agents, for tests")
    return parser.parse_args()


def _counts(text: str) -> tuple[int, ...]:
    return tuple(int(count) for count in text.split(",") if count)


def main() -> None:
    """Run the parts that are wanted. Print what they show, and one JSON object last."""
    args = arguments()
    log.configure(level="error")  # a played fleet says each transition
    began_s, kept = time.monotonic(), Kept(args.resume)
    wanted = parts.Wanted(
        parts=tuple(args.part or parts.PARTS),
        points=1 if args.quick else args.points,
        failing=1 if args.quick else args.failing,
        seed=args.seed,
        agents=(8, 16) if args.quick else args.agents,
        simulated=(8, 200) if args.quick else args.simulated,
        steady_s=2.0 if args.quick else 20.0,
    )
    parts.run(parts.units(wanted), kept, until_s=began_s + args.seconds)
    print(json.dumps(report.result(kept.rows)))


if __name__ == "__main__":
    main()
