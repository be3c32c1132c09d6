"""A hub and nodes that run the sharded job. Nodes are killed, and come back."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pulsetrain.core.errors import PulsetrainError
from pulsetrain.protocol.client import HubClient, find_hub

JOB = Path(__file__).resolve().parents[1] / "jobs" / "elastic_gpt.py"
PATIENCE_S = 120.0
SAMPLES, BATCH = 40_000, 16


@dataclass(frozen=True, kw_only=True)
class Shape:
    """`nodes` of `nproc` ranks each. A replica has `tp` times `pp` ranks."""

    nodes: int
    nproc: int
    tp: int
    pp: int

    @property
    def unit(self) -> int:
        """Nodes of a whole replica."""
        return max(1, self.tp * self.pp // self.nproc)

    def ranks(self, nodes: int) -> int:
        """The world on so many nodes. 0: they are too few."""
        return nodes // self.unit * self.unit * self.nproc


class Site:
    """One job with all its processes."""

    def __init__(self, folder: Path, shape: Shape) -> None:
        self.folder, self.shape = folder, shape
        folder.mkdir(parents=True, exist_ok=True)
        self.env = {
            **os.environ,
            "PULSETRAIN_DATA": str(folder / "hub"),
            "OMP_NUM_THREADS": "1",
            "PULSETRAIN_CONTROLLER_SELF_CHECK_S": "0.05",
            "PULSETRAIN_CONTROLLER_GROW_AFTER_S": "0.25",
            "PULSETRAIN_CHECKPOINT_PERSIST_EVERY": "5",  # for parts of which every copy was killed
        }
        self.log = (folder / "log").open("ab")
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}
        self.hub = self._spawn("serve", "--data", str(folder / "hub"), "--port", "0", "--no-dashboard")
        until(lambda: self.job() is not None, PATIENCE_S, "the hub")

    @property
    def names(self) -> list[str]:
        """All nodes, there or not."""
        return [f"n{number}" for number in range(self.shape.nodes)]

    def start(self, name: str) -> None:
        """A node joins, or comes back with nothing in memory."""
        shape = self.shape
        self.nodes[name] = self._spawn(
            *("run", "--job", "j", "--node", name, "--nnodes", f"{shape.unit}:{shape.nodes}"),
            *("--node-unit", str(shape.unit), "--nproc-per-node", str(shape.nproc)),
            *("--max-restarts", "100000", "--data", str(self.folder / name)),
            *("--checkpoints", str(self.folder / "store")),
            *("--log-dir", str(self.folder / "logs" / name), str(JOB)),
            *("--tp", str(shape.tp), "--pp", str(shape.pp), "--epochs", "1000000"),
            *("--samples", str(SAMPLES), "--batch", str(BATCH), "--rows", "4", "--dim", "16", "--seq", "16"),
            *("--pause", "0.03", "--record", str(self.folder / "record")),
        )

    def kill(self, name: str) -> None:
        """A node is gone at once, with its memory."""
        agent = self.nodes.pop(name)
        agent.kill()
        agent.wait(60)

    def job(self) -> dict[str, Any] | None:
        """What the hub says of the job. {} before it has one, None where the hub does not answer."""
        with contextlib.suppress(PulsetrainError, OSError):
            return next(iter(HubClient(find_hub(environ=self.env), timeout_s=2.0).status()["jobs"]), {})
        return None

    def trains(self, ranks: int) -> bool:
        """Whether the job has done a step with so many ranks."""
        job = self.job() or {}
        if (job.get("state"), job.get("world_size")) != ("running", ranks):
            return False
        return job["verdict"]["state"] not in ("recovering", "starting") and job.get("step", -1) >= 0

    def joined(self) -> bool:
        """Whether all nodes that were started are connected."""
        nodes = (self.job() or {}).get("nodes", ())
        return set(self.nodes) <= {node["node"] for node in nodes if node["connected"]}

    def waits(self) -> int:
        """For how many nodes the job says that it waits. 0: it does not say so."""
        job = self.job() or {}
        resizing = job.get("resizing") if job.get("state") == "waiting" else None
        return int(resizing["missing_nodes"]) if resizing else 0

    def settles(self, what: str) -> float:
        """Wait until the job is as the nodes that are there allow it. Returns the seconds."""
        began_s, shape = time.monotonic(), self.shape
        ranks, missing = shape.ranks(len(self.nodes)), shape.unit - len(self.nodes)
        until(lambda: self.trains(ranks) if ranks else self.waits() == missing, PATIENCE_S, what)
        return time.monotonic() - began_s

    def moves_on(self, steps: int) -> None:
        """Wait until it has done so many steps more."""
        at = int((self.job() or {}).get("step", -1))
        until(lambda: int((self.job() or {}).get("step", -1)) >= at + steps, PATIENCE_S, "new steps")

    def close(self) -> None:
        """End all processes."""
        for process in (*self.nodes.values(), self.hub):
            process.kill()
            process.wait(60)
        self.log.close()

    def _spawn(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "pulsetrain.cli", *arguments],
            env=self.env,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
        )


def until(holds: Callable[[], Any], timeout_s: float, what: str) -> None:
    """Return once it is true. Raises `TimeoutError`."""
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{what}: not in {timeout_s:g} s")
        time.sleep(0.02)
