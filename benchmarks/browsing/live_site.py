"""A hub with its dashboard, and simulated fleets that feed it, each a process of its own."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from pulsetrain.core.errors import PulsetrainError
from pulsetrain.core.json import JsonObject
from pulsetrain.protocol.client import HubAddress, HubClient

TP, PP, PER_NODE = 8, 8, 8


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
    """A hub that runs: the address of its dashboard, and its API."""

    data: Path
    dashboard: str
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
            rows += [a for a in alerts if a["subject_type"] == "link"]
        return {
            row["subject"] if row["subject_type"] == "node" else f"{row['subject_type']} {row['subject']}"
            for row in rows
        }


@contextlib.contextmanager
def child(log: Path, *words: str) -> Iterator[None]:
    """A command of `pulsetrain` while the block runs. What it says goes to a file."""
    with log.open("ab") as said:
        command = [sys.executable, "-m", "pulsetrain.cli", *words]
        process = subprocess.Popen(command, stdout=said, stderr=said)
        try:
            yield
        finally:
            process.terminate()
            process.wait(60)


@contextlib.contextmanager
def live_site(data: Path) -> Iterator[LiveSite]:
    """A hub on the folder with its dashboard."""
    facts_file = data / "hub.json"
    data.mkdir(parents=True, exist_ok=True)
    facts_file.unlink(missing_ok=True)
    with child(data / "hub.log", "serve", "--data", str(data), "--port", "0", "--dashboard-port", "0"):
        until(lambda: facts_file.exists() and "dashboard" in json.loads(facts_file.read_text() or "{}"), 60)
        facts = json.loads(facts_file.read_text())
        until(lambda: _answers(f"{facts['dashboard']}/_stcore/health"), 120)
        client = HubClient(HubAddress(url=facts["url"], token=facts["token"]), timeout_s=30.0)
        yield LiveSite(data=data, dashboard=facts["dashboard"], client=client)


def _answers(url: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(url, timeout=20).is_success
    return False


@contextlib.contextmanager
def fleet(
    site: LiveSite, job: str, nodes: int, planted: Sequence[Planted], *, step_s: float
) -> Iterator[None]:
    """A fleet that feeds the hub, once the job runs."""
    plan = site.data / f"{job}.toml"
    plan.write_text("".join(_table(each) for each in planted))
    shape = ("--nodes", str(nodes), "--tp", str(TP), "--pp", str(PP), "--step-s", str(step_s))
    where = ("--data", str(site.data), "--job", job, "--plan", str(plan), "--seconds", "86400")
    pace = ("--metrics-s", "5", "--say-s", "60", "--heartbeat-s", "1" if nodes < 4096 else "10")
    with child(site.data / f"{job}.log", "simulate", "fleet-live", *shape, *where, *pace):
        until(lambda: site.job(job).get("state") == "running", 300)
        yield


def _table(each: Planted) -> str:
    return "[[fault]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in each.table.items())


def until(done: Callable[[], bool], longest_s: float) -> None:
    """Return when it is so. Raises `TimeoutError`."""
    deadline = time.monotonic() + longest_s
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not so within {longest_s:g} s")
        time.sleep(0.5)
