"""Jobs that hang, die or fail to launch in every attempt, by one node or by none. Real processes.

Each must end, or go on without the node that is at fault, within the stated attempts. None may start for
ever, evict a node for a fault that is not its own, or leave a process behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from clustered.failover import until
from pulsetrain.core.errors import PulsetrainError
from pulsetrain.protocol.client import HubClient, find_hub

JOB = Path(__file__).resolve().parents[1] / "jobs" / "failing.py"
WAYS = ("hang", "kill", "raise", "launch")
OFFENCES = 3
"""faults of one node after which a standby takes its place, `[controller] faults_of_a_node`"""
IDLE_ATTEMPTS = 3
"""attempts in a row without a step after which a job ends, `[controller] no_progress_attempts`"""
NODES, STEPS, LIMIT_S = 2, 150, 150.0
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One job. `by` is one or none: the same node fails in each attempt, or all ranks by turns."""

    number: int
    way: str
    by: str
    standby: bool
    after: int
    max_restarts: int

    @property
    def heals(self) -> bool:
        """Whether another node in the offender's place ends the trouble: what a script raises is its own."""
        enough = self.max_restarts >= OFFENCES
        return self.by == "one" and self.standby and self.way != "raise" and enough

    @property
    def most_attempts(self) -> int:
        """How many launches are allowed."""
        if self.heals:
            return OFFENCES + 1
        idle = self.after == 0 or self.way == "launch"
        return min(self.max_restarts + 1, IDLE_ATTEMPTS) if idle else self.max_restarts + 1


def draw(seed: int, count: int) -> list[Case]:
    """Every way by one node and by none in turn, the rest by chance."""
    rng = random.Random(seed)
    kinds = [(way, by) for way in WAYS for by in ("one", "none")]
    return [
        Case(
            number=number,
            way=kinds[number % len(kinds)][0],
            by=kinds[number % len(kinds)][1],
            standby=rng.random() < 0.5,
            after=rng.choice((0, 8)),
            max_restarts=rng.choice((1, 3, 5)),
        )
        for number in range(count)
    ]


def run(cases: Sequence[Case], folder: Path) -> Iterator[Row]:
    """A row for each case."""
    with hub(folder) as client:
        for case in cases:
            where = folder / f"case-{case.number}"
            where.mkdir()
            yield {"what": "failing", **asdict(case), **play(case, client, where)}


@contextlib.contextmanager
def hub(folder: Path) -> Iterator[HubClient]:
    """One hub for all cases."""
    data = folder / "hub"
    env = os.environ | {
        "PULSETRAIN_CONTROLLER_SELF_CHECK_S": "0.05",
        "PULSETRAIN_CONTROLLER_EVICTIONS_PER_HOUR": "1000",
        "PULSETRAIN_CONTROLLER_MIN_HEALTHY_RATIO": "0.3",
    }
    with (folder / "hub.log").open("wb") as log:
        process = subprocess.Popen(
            [*_cli("serve"), "--no-dashboard", "--data", str(data), "--port", "0"],
            env=env,
            stdout=log,
            stderr=log,
        )
    try:
        until((data / "hub.json").exists, LIMIT_S, "a hub")
        yield HubClient(find_hub(data=data), timeout_s=5.0)
    finally:
        process.terminate()
        process.wait(60)


def play(case: Case, client: HubClient, folder: Path) -> Row:
    """Run one job to its end, and say what it did."""
    began_s, name = time.monotonic(), f"job-{case.number}"
    agents: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for number in range(NODES + case.standby):
            node = f"{name}-n{number}"
            agents[node] = _agent(case, name, node, folder, standby=number == NODES)
        if case.way == "launch":
            _lose_scripts(case, client, name, folder, len(agents))
        ended = _ended(client, name)
        codes = {node: _code(process) for node, process in agents.items()}
        left = _processes(folder)
    finally:
        for process in agents.values():
            process.kill()
            process.wait()
    wrong = judge(case, name, ended, codes, left)
    seconds = round(time.monotonic() - began_s, 1)
    return {**ended, "codes": codes, "left": left, "seconds": seconds, "wrong": wrong}


def judge(
    case: Case, name: str, ended: Row, codes: Mapping[str, int | None], left: Sequence[str]
) -> list[str]:
    """What was not as it must be. Pure."""
    wanted = [f"{name}-n1"] if case.heals else []
    state, wrong = ended["state"], []
    if state != ("finished" if case.heals else "failed"):
        wrong.append(f"it ended as {state!r}")
    if ended["attempts"] > case.most_attempts:
        wrong.append(f"{ended['attempts']} attempts where {case.most_attempts} are allowed")
    if ended["evicted"] != wanted:
        wrong.append(f"evicted: {ended['evicted']}, expected: {wanted}")
    if not ended["sentence"]:
        wrong.append("it does not say how it ended")
    running = [node for node, code in codes.items() if code is None]
    if running or left:
        wrong.append(f"agents {running} and processes {left} run on")
    return wrong


def _agent(case: Case, job: str, node: str, folder: Path, *, standby: bool) -> subprocess.Popen[bytes]:
    """Start an agent, with a copy of the script of its own."""
    plan = {"way": case.way, "nodes": [f"{job}-n1"] if case.by == "one" else [], "after": case.after}
    script = folder / node / JOB.name
    script.parent.mkdir()
    script.write_text(JOB.read_text())
    command = [*_cli("agent" if standby else "run"), "--job", job, "--node", node, "--nnodes", str(NODES)]
    command += ["--nproc-per-node", "1", "--max-restarts", str(case.max_restarts)]
    command += ["--data", str(folder / node / "data"), *(["--standby"] if standby else [])]
    hub = find_hub(data=folder.parent / "hub")
    env = os.environ | {
        "PULSETRAIN_HUB": hub.url,
        "PULSETRAIN_TOKEN": hub.token,
        "FAILING": json.dumps(plan),
        "OMP_NUM_THREADS": "1",
    }
    with (folder / f"{node}.log").open("wb") as log:
        return subprocess.Popen(
            [*command, str(script), node, str(STEPS)],
            env=env,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _lose_scripts(case: Case, client: HubClient, job: str, folder: Path, count: int) -> None:
    """Once all nodes have joined, the script of one or of all is gone, as with a file system."""
    until(lambda: len(_nodes(client, job)) == count, LIMIT_S, "all nodes")
    for node in [f"{job}-n1"] if case.by == "one" else _nodes(client, job):
        (folder / node / JOB.name).unlink()


def _nodes(client: HubClient, job: str) -> list[str]:
    with contextlib.suppress(PulsetrainError, OSError):
        return [str(row["node"]) for row in client.nodes() if row["job"] == job]
    return []


def _job(client: HubClient, job: str) -> Row:
    with contextlib.suppress(PulsetrainError, OSError):
        return next((dict(row) for row in client.status()["jobs"] if row["job"] == job), {})
    return {}


def _ended(client: HubClient, job: str) -> Row:
    """How the job stands at its end, or after the time that it has."""
    with contextlib.suppress(TimeoutError):
        until(lambda: _job(client, job).get("state") in ("finished", "failed"), LIMIT_S, "the end")
    row = _job(client, job)
    evicted = [str(n["node"]) for n in client.nodes() if n["job"] == job and n["state"] == "evicted"]
    return {
        "state": row.get("state", ""),
        "attempts": row.get("attempt", -1) + 1,
        "evicted": evicted,
        "sentence": row.get("verdict", {}).get("sentence", ""),
    }


def _code(process: subprocess.Popen[bytes]) -> int | None:
    """The status with which an agent ended, None for one that runs on."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(40)
    return None


def _processes(folder: Path) -> list[str]:
    """Processes whose command names the folder: agents, their zygotes and ranks."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            line = " ".join(process.cmdline())
            if str(folder) in line and process.status() != psutil.STATUS_ZOMBIE:
                found.append(line[:120])
    return found


def _cli(verb: str) -> list[str]:
    return [sys.executable, "-m", "pulsetrain.cli", verb]
