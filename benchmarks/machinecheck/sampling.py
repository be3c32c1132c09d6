"""What it costs to sample ports each millisecond: processor time for each port, and of a bare sleep.

Pairs of virtual interfaces are made for it, so it needs root. Each number of ports is sampled within the
budget, and once more without pauses. `of_budget` is the cost beside the budget: 1 is the limit.
`covered_share` of the time was sampled. `sleep_alone` is a loop that only sleeps so often: no sampling
without pauses costs less on this machine. What only the first sampling of a process costs, as imports of
numpy do, is left out.

    PYTHONPATH=benchmarks .venv/bin/python -m machinecheck.sampling [--seconds 10]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator, Sequence

from pulsetrain.collectors.machine.port_sampling import BUDGET_RATIO, PERIOD_NS, ports, sample, summary

PORTS = (1, 2, 4, 8)


@contextlib.contextmanager
def interfaces(count: int) -> Iterator[list[str]]:
    """So many interfaces, which are up. They are gone at the end."""
    tag = f"pt{os.getpid() % 10000}"
    made = [f"{tag}a{i}" for i in range(count)]
    try:
        for i, name in enumerate(made):
            _ip("link", "add", name, "type", "veth", "peer", "name", f"{tag}b{i}")
            _ip("link", "set", name, "up")
            _ip("link", "set", f"{tag}b{i}", "up")
        yield made
    finally:
        for name in made:
            subprocess.run(["ip", "link", "del", name], check=False, capture_output=True)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def sleeping(seconds: float) -> float:
    """Processor time of a thread that only sleeps, as a share of a core."""
    began_s, cpu_s = time.monotonic(), time.thread_time()
    due_s = began_s
    while due_s < began_s + seconds:
        due_s += PERIOD_NS / 1e9
        time.sleep(max(0.0, due_s - time.monotonic()))
    return (time.thread_time() - cpu_s) / (time.monotonic() - began_s)


def sampled(names: Sequence[str], seconds: float, budget_ratio: float) -> dict[str, object]:
    """Sample these ports together, and make rows of them as an agent does. All of that is the cost."""
    began_s, cpu_s = time.monotonic(), time.thread_time()
    found = ports(devices=names)
    taken = sample(found, seconds=seconds, budget_ratio=budget_ratio)
    rows = [summary(port, samples) for port, samples in zip(found, taken, strict=True)]
    cpu_s, wall_s = time.thread_time() - cpu_s, time.monotonic() - began_s
    share = cpu_s / wall_s / len(names)
    return {
        "ports": len(names),
        "cpu_share_of_each_port": round(share, 5),
        "of_budget": round(share / BUDGET_RATIO, 3),
        "covered_share": rows[0]["covered_share"],
        "seconds": round(wall_s, 2),
        "samples": rows[0]["samples"],
        "of": int(seconds * 1e9) // PERIOD_NS,
    }


def run(seconds: float = 10.0) -> dict[str, object]:
    """Sample 1, 2, 4 and 8 ports."""
    with interfaces(max(PORTS)) as names:
        sampled(names[:1], 0.1, 1.0)
        within = [sampled(names[:count], seconds, BUDGET_RATIO) for count in PORTS]
        whole = [sampled(names[:count], seconds, 1.0) for count in PORTS]
    return {
        "seconds": seconds,
        "budget_ratio": BUDGET_RATIO,
        "rows": within,
        "without_pauses": whole,
        "sleep_alone": round(sleeping(seconds), 5),
        "load": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="of each number of ports")
    print(json.dumps(run(parser.parse_args().seconds)))


if __name__ == "__main__":
    main()
