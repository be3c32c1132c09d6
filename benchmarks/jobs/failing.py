"""A rank that fails in every attempt, as a plan says. No collective, so that a job takes seconds.

    FAILING='{"way": "kill", "nodes": ["n1"], "after": 3}' pulsetrain run benchmarks/jobs/failing.py n1 150

Ways are hang (SIGSTOP), kill (SIGKILL), and raise (an exception of its own). `nodes` fail in every attempt.
Where it is empty, ranks fail in turn.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import pulsetrain


class WrongAnswerError(RuntimeError):
    """What the script itself raises."""


def main() -> None:
    node, steps = sys.argv[1], int(sys.argv[2])
    plan = json.loads(os.environ["FAILING"])
    watch = pulsetrain.init()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    turn = int(os.environ["TORCHELASTIC_RESTART_COUNT"]) % world
    fails = node in plan["nodes"] if plan["nodes"] else rank == turn
    for step in range(steps):
        if fails and step == plan["after"]:
            fail(plan["way"], node)
        time.sleep(0.02)
        watch.step()


def fail(way: str, node: str) -> None:
    if way == "raise":
        raise WrongAnswerError(f"no data for {node}")
    os.kill(os.getpid(), signal.SIGSTOP if way == "hang" else signal.SIGKILL)


if __name__ == "__main__":
    main()
