"""The demo's processes: five nodes, each an agent of its own session, and the uninterrupted reference run.

All of them carry the demo's mark in their environment: see `reaper`.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

from pulsetrain.agent.processes import zygote_protocol
from pulsetrain.core.errors import PulsetrainError, UsageError
from pulsetrain.demo.reaper import MARK
from pulsetrain.faults import outside
from pulsetrain.protocol.client import HubAddress

JOB = "train_gpt"
NODES = ("node-a", "node-b", "node-c", "node-d")
STANDBY = "node-e"
RANKS_PER_NODE = 2
LEAVE_S = 15.0
WARM_STEPS = 5


def find_script(package: Path | None = None) -> Path:
    """examples/train_gpt.py beside the package, as in a clone, or inside it. Raises `UsageError`."""
    package = package or Path(__file__).resolve().parents[1]
    tried = (package.parent / "examples" / "train_gpt.py", package / "examples" / "train_gpt.py")
    for path in tried:
        if path.is_file():
            return path
    raise UsageError(
        f"the demo trains examples/train_gpt.py, which is neither at {tried[0]} nor at {tried[1]}; "
        "run it in a clone of the repository"
    )


def clean_environment(mark: str, scratch: Path) -> dict[str, str]:
    """This process's environment without the settings of Pulsetrain, torchrun and CUDA, and with the mark.

    `scratch` becomes the folder for temporary files, where torch leaves some.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    kept = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("PULSETRAIN_", "TORCHELASTIC_"))
        and k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    }
    ours = {MARK: mark, "TMPDIR": str(scratch), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    return kept | ours


class Cluster:
    """Nodes as local processes. Create and use it on the main thread: its children end with that thread."""

    def __init__(self, folder: Path, hub: HubAddress, script: Sequence[str], mark: str) -> None:
        self._folder, self._hub, self._script, self._mark = folder, hub, tuple(script), mark
        self._agents: dict[str, subprocess.Popen[bytes]] = {}
        self._killed: set[str] = set()

    def start(self, node: str, address: str, *, standby: bool = False) -> None:
        """Start one node's agent, in its own session and folder."""
        home = self._folder / node
        home.mkdir(parents=True)
        flags = ["--nnodes", str(len(NODES)), "--nproc-per-node", str(RANKS_PER_NODE), "--job", JOB]
        flags += ["--node", node, "--address", address, "--data", str(home)]
        verb = ["agent", "--standby"] if standby else ["run", "--hub", self._hub.url]
        env = clean_environment(self._mark, home / "tmp")
        env |= {"PULSETRAIN_HUB": self._hub.url, "PULSETRAIN_TOKEN": self._hub.token}
        with (home / "agent.log").open("wb") as log:
            self._agents[node] = subprocess.Popen(
                [sys.executable, "-m", "pulsetrain.cli", *verb, *flags, *self._script],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=partial(
                    zygote_protocol.die_with, os.getpid(), signal.SIGTERM
                ),  # no thread runs yet
            )

    def pid(self, node: str) -> int:
        """The pid of a node's agent."""
        return self._agents[node].pid

    def kill(self, node: str) -> None:
        """Send SIGKILL to the agent and everything below it, like a power cut."""
        self._killed.add(node)
        outside.kill_tree(self._agents[node].pid)
        self._agents[node].wait()

    def check(self) -> None:
        """Raises `PulsetrainError` with an agent's last line where one ended that was not killed."""
        for node, agent in self._agents.items():
            code = agent.poll()
            if code is not None and node not in self._killed:
                raise PulsetrainError(f"{node} ended with status {code}: {last_line(self.log(node))}")

    def log(self, node: str) -> Path:
        """What the node's agent and ranks print."""
        return self._folder / node / "agent.log"

    def await_end(self) -> None:
        """Wait until every agent that was not killed has ended by itself. Raises `PulsetrainError`."""
        deadline_s = time.monotonic() + LEAVE_S
        for node, agent in self._agents.items():
            with contextlib.suppress(subprocess.TimeoutExpired):
                agent.wait(max(0.1, deadline_s - time.monotonic()))
            if agent.returncode != 0 and node not in self._killed:
                line = last_line(self.log(node))
                raise PulsetrainError(f"{node} ended with status {agent.returncode}: {line}")

    def close(self) -> None:
        """End every agent: SIGTERM, then SIGKILL. Nothing of them is left."""
        alive = [a for a in self._agents.values() if a.poll() is None]
        for agent in alive:
            outside.send([agent.pid], signal.SIGTERM)
        deadline_s = time.monotonic() + 3
        for agent in alive:
            with contextlib.suppress(subprocess.TimeoutExpired):
                agent.wait(max(0.05, deadline_s - time.monotonic()))
        for agent in alive:
            if agent.poll() is None:
                outside.kill_tree(agent.pid)
                agent.wait()


class Reference:
    """The same job under plain torchrun: its parameters' hash and its median step."""

    def __init__(self, folder: Path, script: Sequence[str], mark: str) -> None:
        self._folder = folder
        folder.mkdir(parents=True)
        ranks = len(NODES) * RANKS_PER_NODE
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(ranks), *script, "--log-every", "1"]
        with (folder / "output.log").open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "--params-hash-out", str(folder / "hash")],
                env=clean_environment(mark, folder / "tmp"),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=partial(zygote_protocol.die_with, os.getpid(), signal.SIGTERM),
            )

    def wait(self, timeout_s: float, progress: Callable[[int, float], None]) -> None:
        """Wait for its end; `progress` gets the step and loss every 20 steps. Raises `PulsetrainError`."""
        deadline_s = time.monotonic() + timeout_s
        reported = 0
        while self._process.poll() is None:
            if time.monotonic() > deadline_s:
                raise PulsetrainError(f"the reference run is not done after {timeout_s:g} s")
            time.sleep(0.2)
            steps = self.progress()
            if steps and steps[-1][0] >= reported + 20:
                reported = steps[-1][0]
                progress(reported, steps[-1][1])
        if self._process.returncode != 0:
            raise PulsetrainError(
                f"the reference run ended with status {self._process.returncode}: {last_line(self.output)}"
            )

    @property
    def output(self) -> Path:
        """What it prints."""
        return self._folder / "output.log"

    @property
    def hash(self) -> str:
        """The parameters' hash."""
        return read_hash(self._folder / "hash")

    def progress(self) -> list[tuple[int, float, float]]:
        """Every step it printed: number of steps done, loss, seconds since the first began."""
        text = self.output.read_text(errors="replace")
        lines = re.findall(r"^step (\d+)/\d+ loss (\S+) norm \S+ (\S+) s$", text, re.MULTILINE)
        return [(int(step), float(loss), float(elapsed)) for step, loss, elapsed in lines]

    def median_step_s(self, last: int) -> float:
        """Median step after the first few and up to `last`, in seconds; 0 where there is none."""
        ends = [elapsed for step, _, elapsed in self.progress() if WARM_STEPS <= step <= last]
        steps = [after - before for before, after in pairwise(ends)]
        return statistics.median(steps) if steps else 0.0

    def close(self) -> None:
        """End it, and everything below it."""
        if self._process.poll() is None:
            outside.kill_tree(self._process.pid)
        self._process.wait()


def read_hash(path: Path) -> str:
    """The hash in a file that the job wrote; "" where it did not write one."""
    return path.read_text().strip() if path.exists() else ""


def last_line(path: Path) -> str:
    """The last line of a log that is not blank."""
    lines = path.read_text(errors="replace").strip().splitlines() if path.exists() else []
    return lines[-1].strip() if lines else "no output"
