"""One launch of a script under `pulsetrain run`, below a real hub, as a user would start it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from pulsetrain.agent.processes import zygote_protocol
from pulsetrain.core.errors import PulsetrainError
from pulsetrain.faults import outside
from pulsetrain.protocol.client import HubAddress, HubClient

LEAVE_S = 5.0
STEP = re.compile(rb"\bstep (\d+)")
OURS = ("PULSETRAIN_", "TORCHELASTIC_")
TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, kw_only=True)
class Script:
    """A job to launch: the command after `pulsetrain run`'s flags, and on how many local nodes.

    One rank prints ``step N`` after each step. That is how steps are counted without Pulsetrain.
    """

    name: str
    argv: tuple[str, ...]
    nodes: int = 2
    ranks_per_node: int = 2
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """How many ranks it has."""
        return self.nodes * self.ranks_per_node

    def node_of(self, rank: int) -> str:
        """Name of the rank's node."""
        return f"n{rank // self.ranks_per_node}"

    def mates(self, rank: int) -> tuple[int, ...]:
        """Ranks of the same node."""
        first = rank - rank % self.ranks_per_node
        return tuple(range(first, first + self.ranks_per_node))


def environment(scratch: Path, more: Mapping[str, str] = {}) -> dict[str, str]:
    """Return this process's environment without Pulsetrain's and torchrun's settings, with one thread a rank.

    `scratch` becomes the folder for temporary files.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(OURS) and k not in TORCHRUN}
    ours = {
        "TMPDIR": str(scratch),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }
    return {**kept, **ours, **more}


def begin(command: Sequence[str], folder: Path, env: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start a command in `folder`, in a session of its own. It ends with this process."""
    with log.open("wb") as output:
        return subprocess.Popen(
            list(command),
            cwd=folder,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=partial(zygote_protocol.die_with, os.getpid(), signal.SIGTERM),  # no thread runs yet
        )


class StepLog:
    """The newest step that a growing log tells, read from where the last look ended."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset, self._rest = path, 0, b""
        self.step = -1
        self.count = 0
        """how often a step lower than the one before it was told: the job began anew"""

    def look(self) -> int:
        """Return the newest step, -1 for none."""
        with contextlib.suppress(OSError), self._path.open("rb") as file:
            file.seek(self._offset)
            fresh = file.read()
            self._offset += len(fresh)
            whole, _, self._rest = (self._rest + fresh).rpartition(b"\n")
            for match in STEP.finditer(whole):
                step = int(match[1])
                self.count += step < self.step
                self.step = step
        return self.step


class Launch:
    """A context in which a script runs under Pulsetrain. Leaving it ends all of its processes.

    `job` is the job's name at the hub. `flags` go to `pulsetrain run`.
    """

    def __init__(
        self, script: Script, hub: HubAddress, folder: Path, *, job: str, flags: Sequence[str] = ()
    ) -> None:
        self.script, self.job, self.folder = script, job, folder
        self._hub, self._flags = hub, tuple(flags)
        self._client = HubClient(hub)
        self._agents: list[subprocess.Popen[bytes]] = []
        folder.mkdir(parents=True, exist_ok=True)
        self._steps = [StepLog(self.log(number)) for number in range(script.nodes)]

    def __enter__(self) -> Launch:
        for number in range(self.script.nodes):
            self._agents.append(self._start(number))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        script, home = self.script, self.folder / f"n{number}"
        home.mkdir(parents=True, exist_ok=True)
        flags = ["--hub", self._hub.url, "--nnodes", str(script.nodes), "--job", self.job]
        flags += ["--nproc-per-node", str(script.ranks_per_node), "--node", f"n{number}"]
        flags += ["--address", f"127.0.0.{number + 1}", "--data", str(home), *self._flags]
        token = {"PULSETRAIN_TOKEN": self._hub.token}
        env = environment(home / "tmp", {**script.environment, **token})
        command = [sys.executable, "-m", "pulsetrain.cli", "run", *flags, *script.argv]
        return begin(command, self.folder, env, self.log(number))

    def log(self, node: int) -> Path:
        """What the agent and the ranks of a node print."""
        return self.folder / f"n{node}.log"

    @property
    def codes(self) -> list[int | None]:
        """Exit status of each agent, None while it runs."""
        return [agent.poll() for agent in self._agents]

    @property
    def over(self) -> bool:
        """Whether an agent has ended."""
        return any(code is not None for code in self.codes)

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of all agents. Return whether they ended."""
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s and any(code is None for code in self.codes):
            time.sleep(0.1)
        return all(code is not None for code in self.codes)

    def step(self) -> int:
        """Return the newest step that was printed, -1 for none."""
        return max(log.look() for log in self._steps)

    @property
    def starts_over(self) -> int:
        """How often the printed steps went back."""
        return max(log.count for log in self._steps)

    def pids(self) -> dict[int, int]:
        """Return rank -> pid of the ranks that run now."""
        ranks: dict[int, int] = {}
        for agent in self._agents:
            if agent.poll() is None:
                ranks |= outside.ranks_below(agent.pid)
        return ranks

    def agent_pids(self) -> list[int]:
        """Return the pids of the agents."""
        return [agent.pid for agent in self._agents]

    def status(self) -> dict[str, Any]:
        """Return what the hub says of the job: {} while it knows none."""
        jobs = self._client.status()["jobs"]
        return next((dict(job) for job in jobs if job["job"] == self.job), {})

    def last_lines(self, node: int = 0, count: int = 5) -> list[str]:
        """Return the end of a node's log."""
        return self.log(node).read_text(errors="replace").strip().splitlines()[-count:]

    def check(self) -> None:
        """Raises `PulsetrainError` with the end of the log where an agent has ended."""
        for number, code in enumerate(self.codes):
            if code is not None:
                raise PulsetrainError(f"{self.job} ended with status {code}: {self.last_lines(number)}")

    def end(self) -> None:
        """End every agent: SIGTERM, then SIGKILL."""
        alive = [agent for agent in self._agents if agent.poll() is None]
        for agent in alive:
            agent.send_signal(signal.SIGTERM)
        deadline_s = time.monotonic() + LEAVE_S
        for agent in alive:
            with contextlib.suppress(subprocess.TimeoutExpired):
                agent.wait(max(0.05, deadline_s - time.monotonic()))
            if agent.poll() is None:
                outside.kill_tree(agent.pid)
                agent.wait()
