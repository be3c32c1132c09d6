"""How long survivors stand still when another replica is killed: ours, and torchft's where it is installed.

Three nodes of one rank each train the same small model. One is killed without a standby. The stall is the
longest time between two steps of a process that was there before and after.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from elasticity.site import PATIENCE_S, until
from pulsetrain.core.errors import PulsetrainError
from pulsetrain.protocol.client import HubClient, find_hub

Row = dict[str, Any]
JOB = Path(__file__).resolve().parents[1] / "jobs" / "replica.py"
NODES, SETTLED_STEPS = 3, 40
STEPS_AFTER = 20
NODES_KEPT = NODES - 1
HEARTBEAT_MS = 5000
"""torchft's default: a replica that was not heard of for so long is gone"""
LIGHTHOUSE = """
import sys
from torchft.coordination import LighthouseServer
server = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=1000, quorum_tick_ms=100,
                          heartbeat_timeout_ms=int(sys.argv[1]))
print(server.address(), flush=True)
sys.stdin.read()
"""
Steps = dict[int, list[tuple[int, int, float]]]
"""By process: number of the step, number of replicas, and when it was completed (monotonic seconds)."""


def read(folder: Path) -> Steps:
    """What each process has written down so far. A last line that is not whole is left out."""
    steps: Steps = {}
    for path in folder.glob("*.jsonl"):
        whole, _, _ = path.read_text().rpartition("\n")
        rows = [json.loads(line) for line in whole.splitlines()]
        steps[int(path.stem)] = [(row["step"], row["world"], row["at_s"]) for row in rows]
    return steps


def stalls_s(steps: Steps, killed_s: float) -> list[float]:
    """The longest time between two steps of each process that was there before the kill and trained on after.

    Only what ends after the kill counts.

    >>> stalls_s({7: [(0, 3, 1.0), (1, 3, 1.1), (2, 2, 4.1), (3, 2, 4.2)], 8: [(0, 3, 1.0)]}, killed_s=1.15)
    [3.0]
    """
    found = []
    for rows in steps.values():
        times = [at_s for _, _, at_s in rows]
        gaps = [late - early for early, late in pairwise(times) if late > killed_s]
        if times[0] < killed_s and rows[-1][1] < NODES and gaps:
            found.append(round(max(gaps), 3))
    return found


def moved_on(steps: Steps, killed_s: float) -> bool:
    """Whether all others have done enough steps with one replica less."""
    done = [
        sum(world == NODES_KEPT and at_s > killed_s for _, world, at_s in rows) for rows in steps.values()
    ]
    return sum(count >= STEPS_AFTER for count in done) >= NODES_KEPT


def settled(steps: Steps) -> bool:
    """Whether all replicas train together."""
    done = [sum(world == NODES for _, world, _ in rows) for rows in steps.values()]
    return len(done) == NODES and min(done) >= SETTLED_STEPS


class Spawned:
    """Processes that end with the block."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._env, self._log = env, (folder / "log").open("ab")
        self._all: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Spawned:
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._all):
            process.kill()
            process.wait(60)
        self._log.close()

    def spawn(self, *command: str, pipe: bool = False) -> subprocess.Popen[bytes]:
        """Start one. With `pipe` its input and output are ours."""
        own = subprocess.PIPE if pipe else None
        process = subprocess.Popen(
            command, env=self._env, stdin=own, stdout=own or self._log, stderr=self._log
        )
        self._all.append(process)
        return process


def ours(folder: Path) -> Row:
    """A job under Pulsetrain. It waits for a standby as long as it does by default."""
    record, data = folder / "record", folder / "hub"
    env = {
        **os.environ,
        "PULSETRAIN_DATA": str(data),
        "OMP_NUM_THREADS": "1",
        "PULSETRAIN_CONTROLLER_SELF_CHECK_S": "0.05",
    }
    cli = (sys.executable, "-m", "pulsetrain.cli")
    with Spawned(folder, env) as processes:
        processes.spawn(*cli, "serve", "--data", str(data), "--port", "0", "--no-dashboard")
        until(lambda: _answers(env), PATIENCE_S, "the hub")
        nodes = [
            processes.spawn(
                *(*cli, "run", "--job", "j", "--node", f"n{number}", "--nnodes", f"2:{NODES}"),
                *("--nproc-per-node", "1", "--data", str(folder / f"n{number}")),
                *("--log-dir", str(folder / "logs"), str(JOB), "--record", str(record)),
            )
            for number in range(NODES)
        ]
        return _strike(record, nodes[-1])


def _answers(env: dict[str, str]) -> bool:
    try:
        return "jobs" in HubClient(find_hub(environ=env), timeout_s=2.0).status()
    except (PulsetrainError, OSError):
        return False


def torchft(folder: Path, python: str) -> Row:
    """The same model under torchft in another Python."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHFT_MANAGER_PORT": "0"}
    record = folder / "record"
    with Spawned(folder, env) as processes:
        lighthouse = processes.spawn(python, "-c", LIGHTHOUSE, str(HEARTBEAT_MS), pipe=True)
        assert lighthouse.stdout is not None, "it was opened as a pipe"
        address = lighthouse.stdout.readline().decode().strip()
        if not address:
            return {"stall_s": None, "why_not": (folder / "log").read_text().strip().splitlines()[-1]}
        replicas = [
            processes.spawn(
                python, str(JOB), "--record", str(record), "--peer", address, "--replica", str(number)
            )
            for number in range(NODES)
        ]
        return _strike(record, replicas[-1])


def _strike(record: Path, victim: subprocess.Popen[bytes]) -> Row:
    """Kill one replica of those that train, and see how long the others stand still."""
    until(lambda: settled(read(record)), PATIENCE_S, "all replicas train")
    victim.kill()
    killed_s = time.monotonic()
    until(lambda: moved_on(read(record), killed_s), PATIENCE_S, "the others train on")
    steps = read(record)
    stalls = stalls_s(steps, killed_s)
    return {"stall_s": max(stalls, default=None), "survivors": len(stalls)}


def rows(folder: Path, python: str, say: Callable[[str], None], repeats: int) -> Iterator[Row]:
    """Both by turns. `python` has torchft, "" for ours alone."""
    ways: Sequence[tuple[str, Callable[[Path], Row]]] = (
        ("pulsetrain", ours),
        ("torchft", lambda of: torchft(of, python)),
    )
    for number in range(repeats):
        for name, run in ways:
            if name == "torchft" and not python:
                continue
            row = {"what": "survivors", "library": name, **run(folder / f"{name}-{number}")}
            say(str(row))
            yield row
