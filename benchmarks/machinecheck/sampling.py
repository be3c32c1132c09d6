"""What it costs to sample ports each millisecond: processor time for each port, and of a bare sleep.

Pairs of virtual interfaces are made for it, so it needs root. `sleep_alone` is a loop that only sleeps so
often: no sampling costs less on this machine.

    PYTHONPATH=benchmarks .venv/bin/python -m machinecheck.sampling [--seconds 10]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator

from pulsetrain.collectors.machine.port_sampling import PERIOD_NS, ports, sample

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


def run(seconds: float = 10.0) -> dict[str, object]:
    """Sample 1, 2, 4 and 8 ports."""
    rows = []
    with interfaces(max(PORTS)) as names:
        for count in PORTS:
            found = sample(ports(devices=names[:count]), seconds=seconds)
            share = found[0].cpu_ns / 1e9 / seconds
            rows.append(
                {
                    "ports": count,
                    "cpu_share_of_each_port": round(share, 5),
                    "samples": int(found[0].times_ns.size),
                    "of": int(seconds * 1e9) // PERIOD_NS,
                }
            )
    return {"seconds": seconds, "rows": rows, "sleep_alone": round(sleeping(seconds), 5)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="of each number of ports")
    print(json.dumps(run(parser.parse_args().seconds)))


if __name__ == "__main__":
    main()
