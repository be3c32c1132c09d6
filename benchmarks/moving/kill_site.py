"""The processes of one point: a hub, agents, and what their supervisors do."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pulsetrain.core.errors import PulsetrainError
from pulsetrain.protocol.client import HubAddress, HubClient

ROOT = Path(__file__).parents[2]
JOB, HUB = ROOT / "benchmarks/jobs/moved.py", Path(__file__).with_name("staged_hub.py")
NAME, TOKEN, MARK = "moved", "a token for all", "KILLS_SITE"
START_S = 120.0


class Site:
    """One job of two ranks, on two nodes or on one."""

    def __init__(self, folder: Path, *, steps: int, image: bool) -> None:
        self.folder, self.steps, self.image = folder, steps, image
        self.record = folder / "record"
        self.record.mkdir(parents=True)
        port = _free_port()
        self._address = HubAddress(url=f"http://127.0.0.1:{port}", token=TOKEN)
        self._port = port
        inherited = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        self.env = inherited | {  # each of many processes would compile everything anew
            "PULSETRAIN_DATA": str(folder / "hub"),
            "PULSETRAIN_HUB": self._address.url,
            "PULSETRAIN_HUB_TOKEN": TOKEN,
            "PULSETRAIN_TOKEN": TOKEN,
            "PULSETRAIN_CONTROLLER_SELF_CHECK_S": "0.05",
            "STAGED_HUB": str(folder),
            "OMP_NUM_THREADS": "1",
            MARK: str(folder),
        }
        (folder / "node.toml").write_text('[agent]\nimages = "auto"\n' if image else "")
        self._log = (folder / "log").open("ab")
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        self.hub: subprocess.Popen[bytes] | None = None

    def start_hub(self) -> None:
        self.hub = self._spawn(
            *(str(HUB), "serve", "--no-dashboard"),
            *("--data", str(self.folder / "hub"), "--port", str(self._port)),
        )

    def start_agent(self, name: str) -> None:
        """A node joins, or its supervisor starts its agent anew over its folder."""
        shape = (1, 2) if self.image else (2, 1)
        self.agents[name] = self._spawn(
            *("-m", "pulsetrain.cli", "run", "--job", NAME, "--node", name),
            *("--nnodes", str(shape[0]), "--nproc-per-node", str(shape[1])),
            *("--data", str(self.folder / name), "--config", str(self.folder / "node.toml")),
            *("--log-dir", str(self.folder / "logs" / name), str(JOB)),
            *("--steps", str(self.steps), "--record", str(self.record), *(["--plain"] * self.image)),
        )

    def client(self) -> HubClient:
        return HubClient(self._address, timeout_s=5.0)

    def job(self) -> dict[str, Any] | None:
        """What the hub says of the job. {} before it has one, None where the hub does not answer."""
        with contextlib.suppress(PulsetrainError, OSError):
            return dict(next(iter(self.client().status()["jobs"]), {}))
        return None

    def ask(self, what: str, node: str = "", wait_s: float | None = None) -> bool:
        """Ask for a move. Whether the hub has taken it."""
        with contextlib.suppress(PulsetrainError, OSError):
            self.client().move(NAME, what, "a benchmark", node=node, wait_s=wait_s)
            return True
        return False

    def lines(self) -> list[tuple[int, int, int, str, int]]:
        """Rank, attempt, pid, word and step of all that ranks did, by rank. Cut-off lines do not count."""
        found = []
        for file in sorted(self.record.glob("rank-*")):
            rank = int(file.name.removeprefix("rank-"))
            for line in file.read_text().split("\n")[:-1]:
                attempt, pid, word, step = line.split()
                found.append((rank, int(attempt), int(pid), word, int(step)))
        return found

    def live_ranks(self) -> dict[int, list[int]]:
        """The live processes of each rank."""
        pids = {(rank, pid) for rank, _, pid, _, _ in self.lines()}
        live: dict[int, list[int]] = {}
        for rank, pid in sorted(pids):
            if self.is_ours(pid):
                live.setdefault(rank, []).append(pid)
        return live

    def is_ours(self, pid: int) -> bool:
        """Whether it is a live process of this site."""
        with contextlib.suppress(OSError):
            folder = Path("/proc") / str(pid)
            mark = f"{MARK}={self.folder}".encode()
            dead = (folder / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
            return not dead and mark in (folder / "environ").read_bytes().split(b"\0")
        return False

    def processes(self) -> list[int]:
        """All live processes of this site."""
        pids = (int(entry.name) for entry in Path("/proc").glob("[0-9]*"))
        return [pid for pid in pids if self.is_ours(pid)]

    def close(self) -> None:
        """End all processes."""
        for process in (*self.agents.values(), self.hub):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait(60)
        deadline_s = time.monotonic() + 10.0
        while (left := self.processes()) and time.monotonic() < deadline_s:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        self._log.close()

    def _spawn(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=self.env | {"PYTHONPATH": str(ROOT)},
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def until(holds: Callable[[], Any], timeout_s: float, what: str) -> Any:
    """The value once it is true. Raises `TimeoutError`."""
    deadline_s = time.monotonic() + timeout_s
    while not (value := holds()):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{what}: not in {timeout_s:g} s")
        time.sleep(0.03)
    return value
