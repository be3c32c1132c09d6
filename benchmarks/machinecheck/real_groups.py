"""Group tests of real processes: every node is a process, and the faulty ones die or do not answer.

Each seed draws up to four of 64 nodes, and up to a quarter of fewer ones. In every round all members gather
through gloo on this machine. A faulty one is killed before it joins, or joins nothing until its group has
given up.

    PYTHONPATH=benchmarks python -m machinecheck.real_groups [--first 0] [--seeds 200] [--resume FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from anyjob.kept import Kept

from machinecheck.light import Answer, end, real_round, store_process
from machinecheck.simulated import names, ours
from pulsetrain.diagnostics import all_gather
from pulsetrain.diagnostics.faulty_nodes import rounds_bound
from pulsetrain.recovery.policy import Policy

NODES, MOST_FAULTY = 64, 4


def killed(**_: object) -> object:
    """The process of a member dies."""
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def silent(*, timeout_s: float, **_: object) -> object:
    """A member that does not answer while its group waits for it."""
    time.sleep(timeout_s)
    return {}


def drawn(seed: int, nodes: int = NODES) -> dict[str, Callable[..., object]]:
    """The faulty nodes of a seed, with what each does."""
    draw = random.Random(seed)
    faulty = draw.sample(names(nodes), draw.randint(0, min(MOST_FAULTY, nodes // 4)))
    return {node: draw.choice((killed, silent)) for node in faulty}


def check(
    faulty: Mapping[str, Callable[..., object]], port: int, prefix: int, *, nodes: int, timeout_s: float
) -> Answer:
    """One search among real processes. `prefix` keeps its rounds apart from others of this store."""
    began_s = time.perf_counter()
    found, rounds = ours(
        names(nodes),
        lambda groups, number: real_round(
            groups, 1000 * prefix + number, port, timeout_s, lambda node: faulty.get(node, all_gather.run)
        ),
    )
    return {
        "faulty": sorted(faulty),
        "exact": found == set(faulty),
        "healthy_named": sorted(found - set(faulty)),
        "rounds": rounds,
        "rounds_bound": rounds_bound(nodes, len(faulty)),
        "seconds": round(time.perf_counter() - began_s, 1),
    }


def run(seeds: int, *, first: int = 0, nodes: int = NODES, resume: Path | None = None) -> Answer:
    """Searches of so many seeds from the first one on. Those in the file `resume` are not made again."""
    kept, timeout_s = Kept(resume), Policy().pair_timeout_s
    for seed in range(first, first + seeds):
        if kept.done(f"seed {seed}"):
            continue
        store, port = store_process()
        try:
            row = check(drawn(seed, nodes), port, seed, nodes=nodes, timeout_s=timeout_s)
        finally:
            end(store)
        kept.add(f"seed {seed}", [{"what": "search", **row}])
        print(f"seed {seed}: {row}", file=sys.stderr, flush=True)
    rows = kept.rows
    return {
        "nodes": nodes,
        "seeds": len(rows),
        "exact": sum(row["exact"] for row in rows),
        "healthy_named": sum(bool(row["healthy_named"]) for row in rows),
        "within_bound": sum(row["rounds"] <= row["rounds_bound"] for row in rows),
        "most_rounds": max((row["rounds"] for row in rows), default=0),
        "most_seconds": max((row["seconds"] for row in rows), default=0.0),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first seed")
    parser.add_argument("--seeds", type=int, default=200, help="how many")
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--resume", type=Path, metavar="FILE", help="keep finished searches, go on from them")
    args = parser.parse_args()
    print(json.dumps(run(args.seeds, first=args.first, nodes=args.nodes, resume=args.resume)))


if __name__ == "__main__":
    import numpy  # noqa: F401  # as an agent's zygote has it
    import torch.distributed  # noqa: F401

    main()
