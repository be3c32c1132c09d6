"""Who is faulty, and how soon: group tests on simulated nodes, with DLRover's two-round scheme beside them.

    python benchmarks/machines.py [--seeds 200] [--trials 200] [--cases 20] [--clean 100]

`simulated`: nodes whose all-gathers fail or whose times vary by 5 % from round to round. Both
schemes see the same seeds. `links`: network namespaces as nodes, with real transfers over links that tc makes
bad (`machinecheck/namespaces.py`). It needs root and is left out with --cases 0. `policies`: hardware trouble
on a running job (`machinecheck/policies.py`), left out with --no-policies. `injected`: NaNs, wrong products
and clocks that drop, on real processes (`machinecheck/injected.py`), only with --injected RUNS. With
--resume FILE it goes on where an earlier start ended. `light`: what a light check costs
(`machinecheck/light.py`, a process of its own). The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from machinecheck import injected, light, namespaces, policies, simulated


def light_check() -> object:
    """The cost of a light check, in a process that no thread was started in before it forks."""
    script = Path(light.__file__)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=120
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=200, help="sets of faulty nodes")
    parser.add_argument("--trials", type=int, default=200, help="searches for a slow node, and clean ones")
    parser.add_argument("--cases", type=int, default=20, help="bad links of each kind; 0: none")
    parser.add_argument("--clean", type=int, default=100, help="checks of good links")
    parser.add_argument(
        "--no-policies", action="store_true", help="leave out hardware trouble on a running job"
    )
    parser.add_argument(
        "--injected", type=int, default=0, help="runs with a NaN, wrong products, a slow clock or nothing"
    )
    parser.add_argument("--seed", type=int, default=0, help="of bad links and of the runs of --injected")
    parser.add_argument(
        "--resume-links", type=Path, help="file of the checks of links: those in it are not made again"
    )
    parser.add_argument(
        "--resume", type=Path, help="file of the runs of --injected: those in it are not played again"
    )
    parser.add_argument(
        "--limit", type=float, default=float("inf"), help="seconds after which --injected begins no run"
    )
    parser.add_argument("--quick", action="store_true", help="a few seeds and trials only")
    args = parser.parse_args()
    if args.quick:
        args.seeds = args.trials = 5
        args.cases, args.clean = min(args.cases, 1), 2
    found: dict[str, object] = {"simulated": simulated.run(args.seeds, args.trials)} if args.seeds else {}
    if args.cases and namespaces.missing():
        print(f"links: left out: {namespaces.missing()}", file=sys.stderr)
    elif args.cases:
        found["links"] = namespaces.run(args.cases, args.clean, seed=args.seed, resume=args.resume_links)
    if not args.no_policies:
        found["policies"] = policies.run(quick=args.quick)
    found["light"] = light_check()
    if args.injected:
        found["injected"] = injected.run(
            args.injected, seed=args.seed, resume=args.resume, limit_s=args.limit
        )
    print(json.dumps(summary(found) | found))


def summary(found: Mapping[str, Any]) -> dict[str, object]:
    """The fields that other programs read, None for parts that were left out. The details stand beside them.

    `groups` is about the searches for faulty nodes: `rounds` and `rounds_bound` are the largest.
    """
    links, groups = found.get("links"), found.get("simulated", {}).get("faulty")
    return {
        "clean_runs": links and links["clean"],
        "false_alarms": links and links["clean_checks_that_name_somebody"],
        "groups": groups
        and {
            "seeds": sum(row["seeds"] for row in groups),
            "exact": sum(row["exact"] for row in groups),
            "rounds": max(row["most_rounds"] for row in groups),
            "rounds_bound": max(row["rounds_bound"] for row in groups),
        },
        "light_check_s": found["light"]["light_check_s"],
    }


if __name__ == "__main__":
    main()
