"""Moving running jobs: what a pre-emption takes, what waiting for one costs, and what devices are shared at.

    python benchmarks/move.py [--quick] [--part barrier] [--seed 0]

`barrier` pre-empts and resumes real jobs and compares their parameters with an undisturbed run's. `shares`
schedules many jobs on simulated devices. `slicing` runs ranks on fewer devices than there are ranks. `squash`
computes the updates of those that share a device once. Fields of a part that was not run are null. The last
line is one JSON object.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType

FIELDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "barrier": ("moves", "identical", "steps_redone", "barrier_ratio", "preempt_s"),
        "shares": ("premium_share", "standard_share"),
        "slicing": ("slicing_ratio", "image_ratio_8"),
        "squash": ("squash_saving_ratio", "squash_identical", "squash_caught"),
    }
)
"""What others read of each part. Each is a module of `moving` with `run(quick=)`, or `run(quick=, seed=)`."""


def gather(parts: Sequence[str], *, quick: bool, seed: int) -> dict[str, object]:
    """Run the parts. Returns all fields, null for those of other parts, and what else the parts say."""
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
        found |= module.run(**{"quick": quick} | ({"seed": seed} if "seed" in takes else {}))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", choices=(*FIELDS, "all"), default="all", help="only this part")
    parser.add_argument("--seed", type=int, default=0, help="of the moments at which jobs are moved")
    parser.add_argument("--quick", action="store_true", help="a few moves and small jobs, for tests")
    args = parser.parse_args()
    parts = tuple(FIELDS) if args.part == "all" else (args.part,)
    print(json.dumps(gather(parts, quick=args.quick, seed=args.seed)))


if __name__ == "__main__":
    main()
