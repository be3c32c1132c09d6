"""What premium and standard jobs get of a simulated pool in their worst hour.

`python benchmarks/moving/shares.py [--quick]` prints one JSON object. The whole run has 10,000 devices, 6,000
jobs and 30 days, the quick one 512 devices, 300 jobs and 10 days.
"""

from __future__ import annotations

import argparse
import json
import time

from pulsetrain.simulate.schedule import simulate_schedule
from pulsetrain.simulate.schedule_plan import SchedulePlan

QUICK = SchedulePlan(devices=512, jobs=300, days=10.0, largest_devices=64)


def shares(*, quick: bool = False, seed: int = 0) -> dict[str, float]:
    """The share of its ideal work that a job of each tier got in the worst hour of all. Simulated."""
    result = simulate_schedule(QUICK if quick else SchedulePlan(), seed=seed)
    worst = {each.tier: each.worst_share or 0.0 for each in result.tiers}
    return {"premium_share": worst["premium"], "standard_share": worst["standard"]}


def main() -> None:
    """Print the shares and how long the simulation took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began_s = time.monotonic()
    found = shares(quick=options.quick, seed=options.seed)
    print(json.dumps({**found, "seconds": round(time.monotonic() - began_s, 1)}))


if __name__ == "__main__":
    main()
