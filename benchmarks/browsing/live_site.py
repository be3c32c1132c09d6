"""A hub with its dashboard, and simulated fleets that feed it, each a process of its own.

The machines of a fleet share the processors with hub, dashboard and browser here. In production they are
other machines. So a fleet's process gives way: it runs where nobody else wants to (`giving_way`).
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
from anyjob.giving_way import giving_way

from pulsetrain.core.errors import PulsetrainError
from pulsetrain.core.json import JsonObject
from pulsetrain.protocol.client import HubAddress, HubClient
from pulsetrain.records.columns import Columns
from pulsetrain.simulate.live.recorder import FleetRecorder

TP, PP, PER_NODE = 8, 8, 8
POOL = {
    "PULSETRAIN_POOL_DEVICES_PER_MACHINE": str(PER_NODE),
    "PULSETRAIN_POOL_RESERVE_RATIO": "0",
}
"""A hub whose pool is all devices of the fleet. Each simulated node counts as a machine."""
LINES, FOUND_LINE = 2000, "rank 7: step 3, loss"


@dataclass(frozen=True, kw_only=True)
class Planted:
    """One fault of a plan: the table of the plan, what pages call it, and the ranks that wear its mark."""

    table: JsonObject
    name: str
    ranks: tuple[int, ...]


def faults(nodes: int) -> tuple[Planted, ...]:
    """A slow rank, a slow node and a flapping link, far apart, in different blocks of the mesh."""
    rank, node, link = min(371, 4 * nodes + 3), min(1000, 2 * nodes // 3), 2 * nodes // 5
    return (
        Planted(
            table={"kind": "slow_rank", "at_s": 5, "rank": rank, "factor": 1.3},
            name=f"rank {rank}",
            ranks=(rank,),
        ),
        Planted(
            table={"kind": "slow_node", "at_s": 5, "node": f"sim-{node:05d}", "factor": 1.25},
            name=f"sim-{node:05d}",
            ranks=tuple(range(node * PER_NODE, (node + 1) * PER_NODE)),
        ),
        Planted(
            table={"kind": "flapping_link", "at_s": 5, "node": f"sim-{link:05d}", "every_s": 5},
            name=f"link sim-{link:05d}/mlx5_0/1",
            ranks=tuple(range(link * PER_NODE, (link + 1) * PER_NODE)),
        ),
    )


def hang(nodes: int) -> Planted:
    """A rank that stops."""
    rank = nodes // 4 * PER_NODE + 3
    return Planted(table={"kind": "hung_rank", "at_s": 12, "rank": rank}, name=f"rank {rank}", ranks=(rank,))


@dataclass(frozen=True, kw_only=True)
class LiveSite:
    """A hub that runs: its process, the address of its dashboard, its own, and its API."""

    data: Path
    pid: int
    dashboard: str
    address: HubAddress
    client: HubClient

    def job(self, name: str) -> JsonObject:
        """A job as the hub sees it. {} where it has none, or does not answer in time."""
        with contextlib.suppress(PulsetrainError):
            return next((dict(job) for job in self.client.status()["jobs"] if job["job"] == name), {})
        return {}

    def named(self, name: str) -> set[str]:
        """What findings and firing alerts accuse in a job, as pages call it."""
        rows = [row for row in self.job(name).get("findings", []) if row["severity"] != "info"]
        with contextlib.suppress(PulsetrainError):
            alerts = [a for a in self.client.alerts() if a["state"] == "firing" and a["job"] == name]
            rows += [a for a in alerts if a["subject_type"] == "link" and a["severity"] != "info"]
        return {
            row["subject"] if row["subject_type"] == "node" else f"{row['subject_type']} {row['subject']}"
            for row in rows
        }


@dataclass(frozen=True, kw_only=True)
class Feed:
    """A fleet that feeds the hub. `log` has one report a line, as JSON."""

    log: Path

    def heartbeats(self) -> dict[str, float]:
        """How late the fleet sent heartbeats at worst, and how many it held back since the job runs, because
        the hub had not taken the one before."""
        lines = self.log.read_text().splitlines()
        reports = [json.loads(line) for line in lines if line.startswith('{"at_s"')]
        running = [report for report in reports if report["at_s"] >= 0]
        return {
            "late_s": round(max((r["late_s"] for r in running), default=0.0), 2),
            "held_back": sum(r["held_back"] for r in running),
        }


@contextlib.contextmanager
def child(
    log: Path, *words: str, environ: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A command of `pulsetrain` while the block runs. What it says goes to a file."""
    with log.open("ab") as said:
        command = [sys.executable, "-m", "pulsetrain.cli", *words]
        process = subprocess.Popen(command, stdout=said, stderr=said, env={**os.environ, **(environ or {})})
        try:
            yield process
        finally:
            process.terminate()
            process.wait(60)


@contextlib.contextmanager
def live_site(data: Path, environ: Mapping[str, str] | None = None) -> Iterator[LiveSite]:
    """A hub on the folder with its dashboard. `environ` configures it."""
    facts_file = data / "hub.json"
    data.mkdir(parents=True, exist_ok=True)
    facts_file.unlink(missing_ok=True)
    words = ("serve", "--data", str(data), "--port", "0", "--dashboard-port", "0")
    with child(data / "hub.log", *words, environ=environ) as hub:
        until(lambda: facts_file.exists() and "dashboard" in json.loads(facts_file.read_text() or "{}"), 60)
        facts = json.loads(facts_file.read_text())
        until(lambda: _answers(f"{facts['dashboard']}/_stcore/health"), 120)
        address = HubAddress(url=facts["url"], token=facts["token"])
        client = HubClient(address, timeout_s=30.0)
        yield LiveSite(data=data, pid=hub.pid, dashboard=facts["dashboard"], address=address, client=client)


@contextlib.contextmanager
def plain_site() -> Iterator[str]:
    """Streamlit serves `plain_page.py` while the block runs. Yields its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    page = str(Path(__file__).with_name("plain_page.py"))
    where = ("--server.address", "127.0.0.1", "--server.port", str(port))
    quiet = ("--server.headless", "true", "--browser.gatherUsageStats", "false")
    command = [sys.executable, "-m", "streamlit", "run", page, *where, *quiet]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: _answers(f"http://127.0.0.1:{port}/_stcore/health"), 60)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def _answers(url: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(url, timeout=20).is_success
    return False


@contextlib.contextmanager
def fleet(
    site: LiveSite, job: str, nodes: int, planted: Sequence[Planted], *, step_s: float, say_s: float = 30.0
) -> Iterator[Feed]:
    """A fleet that feeds the hub, once the job runs. It gives way to every other process.

    It reports every `say_s`, for which it asks the hub for its status.
    """
    plan = site.data / f"{job}.toml"
    plan.write_text("".join(_table(each) for each in planted))
    shape = ("--nodes", str(nodes), "--tp", str(TP), "--pp", str(PP), "--step-s", str(step_s))
    where = ("--data", str(site.data), "--job", job, "--plan", str(plan), "--seconds", "86400")
    pace = ("--metrics-s", "5", "--heartbeat-s", "1" if nodes < 4096 else "10")
    said = ("--json", "--say-s", str(say_s))
    log = site.data / f"{job}.log"
    with (
        child(log, "simulate", "fleet-live", *shape, *where, *pace, *said) as process,
        giving_way(process.pid),
    ):
        until(lambda: site.job(job).get("state") == "running", 300)
        yield Feed(log=log)


def write_lines(site: LiveSite, job: str, nodes: int) -> None:
    """A line of standard output of each rank, of 2,000 at most. A simulated fleet prints none by itself.

    They reach the hub as records of agents do. One of them contains `FOUND_LINE`.
    """
    now_ns = time.time_ns()
    rows = [
        {
            "ts": now_ns + rank, "node": f"sim-{rank // PER_NODE:05d}", "job": job, "attempt": 0,
            "rank": rank, "source": "stdout", "severity": "info", "rule": "",
            "message": f"rank {rank}: step 3, loss 2.{rank % 97:02d}",
        }
        for rank in range(min(LINES, nodes * PER_NODE))
    ]  # fmt: skip
    with FleetRecorder.open(site.address, 1) as recorder:
        recorder.make(lambda: [Columns.from_rows("logs", rows)])


def _table(each: Planted) -> str:
    return "[[fault]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in each.table.items())


def until(done: Callable[[], bool], longest_s: float) -> None:
    """Return when it is so. Raises `TimeoutError`."""
    deadline = time.monotonic() + longest_s
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not so within {longest_s:g} s")
        time.sleep(0.5)
