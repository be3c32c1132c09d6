"""Moving running jobs: what a pre-emption takes, what waiting for one costs, and what devices are shared at.

    python benchmarks/move.py [--quick] [--part barrier] [--seed 0]
    python benchmarks/move.py --part kills --points 50 --resume rows.jsonl
    python benchmarks/move.py --part requests --points 200 --resume rows.jsonl

`barrier` pre-empts and resumes real jobs and compares their parameters with an undisturbed run's. `shares`
schedules many jobs on simulated devices. `slicing` runs ranks on fewer devices than there are ranks. `images`
dumps the processes of one and of eight replicas, where the host can. `squash` computes the updates of those
that share a device once. `kills` kills a hub, an agent or a rank at each stage of a move. `requests` brings a
job of eight ranks to a stand again and again, with ranks at different places. Fields of a part that was not
run are null. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

FIELDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "barrier": ("moves", "identical", "steps_redone", "barrier_ratio", "preempt_s"),
        "shares": ("premium_share", "standard_share"),
        "slicing": ("slicing_ratio",),
        "images": ("image_ratio_8",),
        "squash": ("squash_saving_ratio", "squash_identical", "squash_caught"),
        "kills": ("kill_points", "kill_passed", "kill_worst_s"),
        "requests": ("hold_requests", "hold_acquired", "hold_steps_worst"),
    }
)
"""What others read of each part. Each is a module of `moving` with `run(quick=)`, or with more arguments."""


def gather(parts: Sequence[str], *, quick: bool, **more: object) -> dict[str, object]:
    """Run the parts, each with what it takes. Returns all fields, null for those of other parts, and more."""
    found: dict[str, object] = dict.fromkeys(name for names in FIELDS.values() for name in names)
    for part in parts:
        try:
            module = importlib.import_module(f"moving.{part}")
        except ModuleNotFoundError as error:
            if error.name != f"moving.{part}":
                raise
            print(f"{part}: left out: there is no benchmarks/moving/{part}.py", file=sys.stderr)
            continue
        takes = inspect.signature(module.run).parameters
        found |= module.run(quick=quick, **{name: value for name, value in more.items() if name in takes})
    return found


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started ends in order
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", choices=(*FIELDS, "all"), default="all", help="only this part")
    parser.add_argument("--seed", type=int, default=0, help="of the moments at which jobs are moved")
    parser.add_argument("--quick", action="store_true", help="a few moves and small jobs, for tests")
    parser.add_argument("--points", type=int, default=50, help="of the parts kills and requests")
    parser.add_argument("--beside", type=int, default=1, help="points of the part kills that run at once")
    parser.add_argument(
        "--resume", type=Path, metavar="FILE", help="keep finished points, and go on from them"
    )
    args = vars(parser.parse_args())
    part = args.pop("part")
    print(json.dumps(gather(tuple(FIELDS) if part == "all" else (part,), **args)))


if __name__ == "__main__":
    main()
