"""What hub, dashboard and agents take of the processors that they share with training.

    python benchmarks/watching_cost.py [--quick] [--seconds 30] [--steps 40]

Processor time is read from the kernel, so other work on the machine disturbs it little. Three questions. What
does a hub with its dashboard take while no job runs (`idle_hub_cpu_ratio`, of one core)? What does an agent
take whose two ranks make one quiet step each second (`agent_cpu_ratio`, and `quiet_hub_cpu_ratio` for its
hub)? And who takes how much in the demo's undisturbed steps (`demo`, seconds of processor time for each
step)? The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil

from pulsetrain.agent.local_hub import LocalHub, local_hub
from pulsetrain.demo import cluster, reaper
from pulsetrain.demo.job_monitor import JobMonitor

SETTLE_S = 10.0  # a hub is still starting, or an agent still importing
START_S = 120.0
FIRST_STEP = 5  # of the demo: before it, connections and caches are made
QUIET = """
import time
import pulsetrain
run = pulsetrain.init()
import torch.distributed as dist, torch
dist.init_process_group("gloo")
while True:
    with run.phase("forward"):
        time.sleep(1.0)
    dist.all_reduce(torch.ones(1))
    run.step(tokens=1)
"""


def cpu_s(*pids: int) -> float:
    """Processor time that the living processes have used, in seconds."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            times = psutil.Process(pid).cpu_times()
            total += times.user + times.system
    return total


def family(pid: int) -> list[int]:
    """A process and everything below it."""
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def cpu_ratio(pids: Callable[[], list[int]], seconds: float) -> float:
    """Share of one core that these processes take over so many seconds."""
    began, before_s = time.monotonic(), cpu_s(*pids())
    time.sleep(seconds)
    return (cpu_s(*pids()) - before_s) / (time.monotonic() - began)


def hub_pid(folder: Path) -> int:
    """The process of the hub that serves a folder."""
    return int(json.loads((folder / "hub.json").read_text())["pid"])


def idle_hub_cpu_ratio(seconds: float = 30.0, *, settle_s: float = SETTLE_S) -> float:
    """Share of one core that a hub with its dashboard takes while nobody uses either."""
    with tempfile.TemporaryDirectory(prefix="pulsetrain-idle-") as name, local_hub(Path(name)):
        time.sleep(settle_s)
        pid = hub_pid(Path(name))
        return round(cpu_ratio(lambda: family(pid), seconds), 4)


def agent_cpu_ratios(seconds: float = 30.0, *, settle_s: float = SETTLE_S) -> tuple[float, float]:
    """Shares of one core that an agent with two quiet ranks takes, and that its hub and dashboard take.

    The zygote and the ranks are not the agent.
    """
    with tempfile.TemporaryDirectory(prefix="pulsetrain-quiet-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        hub = stack.enter_context(local_hub(folder / "hub"))
        agent = stack.enter_context(_quiet_job(folder, hub))
        _wait(lambda: _step(hub, "quiet") >= 2, "the quiet job does not train")
        time.sleep(settle_s)
        hub_id = hub_pid(folder / "hub")
        before = cpu_s(agent), cpu_s(*family(hub_id)), time.monotonic()
        time.sleep(seconds)
        took_s = time.monotonic() - before[2]
        agent_s, hub_s = cpu_s(agent) - before[0], cpu_s(*family(hub_id)) - before[1]
        return round(agent_s / took_s, 4), round(hub_s / took_s, 4)


def agent_cpu_ratio(seconds: float = 30.0) -> float:
    """Share of one core that an agent with two quiet ranks takes."""
    return agent_cpu_ratios(seconds)[0]


@contextlib.contextmanager
def _quiet_job(folder: Path, hub: LocalHub) -> Iterator[int]:
    """A job of two ranks that make one small step each second. Yields the pid of its agent."""
    script = folder / "quiet.py"
    script.write_text(QUIET)
    env = os.environ | {
        "PULSETRAIN_TOKEN": hub.address.token,
        "PULSETRAIN_DATA": str(folder / "node"),
        "OMP_NUM_THREADS": "1",
    }
    flags = ["--hub", hub.address.url, "--nproc-per-node", "2", "--job", "quiet", str(script)]
    command = [sys.executable, "-m", "pulsetrain.cli", "run", *flags]
    with (folder / "agent.log").open("wb") as log:
        agent = subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=log)
    try:
        yield agent.pid
    finally:
        agent.terminate()
        agent.wait(30)


def demo_cpu(steps: int = 40) -> dict[str, object]:
    """Seconds of processor time that each kind of process takes for one undisturbed step of the demo.

    `plain` is the same for its job under torchrun. `ratio` is the sum of the watched job, hub, agents and
    dashboard, over the sum under torchrun: where every core is busy, steps take so much longer.
    """
    with tempfile.TemporaryDirectory(prefix="pulsetrain-calm-") as name, contextlib.ExitStack() as stack:
        folder, mark = Path(name), uuid.uuid4().hex
        stack.enter_context(reaper.reaper(mark))
        watched = _watched(folder, mark, steps)
        plain = _plain(folder, mark, steps)
        total, total_plain = sum(watched.values()), sum(plain.values())
        return {
            "watched": {role: round(value, 4) for role, value in watched.items()},
            "plain": {role: round(value, 4) for role, value in plain.items()},
            "ratio": round(total / total_plain, 4),
        }


def _command(steps: int) -> list[str]:
    shape = ["--tp", "2", "--pp", "2", "--dp", "2", "--device", "cpu", "--seed", "0"]
    return [str(cluster.find_script()), *shape, "--steps", str(10 * steps)]


def _watched(folder: Path, mark: str, steps: int) -> Mapping[str, float]:
    with contextlib.ExitStack() as stack:
        hub = stack.enter_context(local_hub(folder / "hub"))
        monitor = JobMonitor.of_hub(hub.address, cluster.JOB, lambda who, what: None)
        stack.callback(monitor.close)
        nodes = cluster.Cluster(folder, hub.address, _command(steps), mark)
        stack.callback(nodes.close)
        for number, node in enumerate((*cluster.NODES, cluster.STANDBY)):
            nodes.start(node, f"127.0.0.{number + 2}", standby=node == cluster.STANDBY)

        def step() -> int:
            monitor.poll()
            return monitor.status.step

        def pids() -> list[int]:
            roots = [hub_pid(folder / "hub"), *map(nodes.pid, (*cluster.NODES, cluster.STANDBY))]
            return [pid for root in roots for pid in family(root)]

        return _cost_of_steps(step, pids, steps)


def _plain(folder: Path, mark: str, steps: int) -> Mapping[str, float]:
    reference = cluster.Reference(folder / "reference", _command(steps), mark)
    with contextlib.closing(reference):
        pid = reference._process.pid

        def step() -> int:
            done = reference.progress() if reference.output.exists() else []
            return done[-1][0] if done else -1

        return _cost_of_steps(step, lambda: family(pid), steps)


def _cost_of_steps(step: Callable[[], int], pids: Callable[[], list[int]], steps: int) -> dict[str, float]:
    """Seconds of processor time for each step and kind of process, from the first warm step on."""
    _wait(lambda: step() >= FIRST_STEP, "the job does not train")
    before, first = _by_process(pids()), step()
    _wait(lambda: step() >= first + steps, "the job stands still")
    after, done = _by_process(pids()), step() - first
    spent: Counter[str] = Counter()
    for key, used_s in after.items():
        spent[key[1]] += used_s - before.get(key, 0.0)
    return {role: used_s / done for role, used_s in spent.items()}


def _by_process(pids: list[int]) -> dict[tuple[int, str], float]:
    """Processor time of each process, by pid and kind."""
    return {(pid, _role(pid)): cpu_s(pid) for pid in pids}


def _role(pid: int) -> str:
    """What a process is: hub, dashboard, agent, zygote, rank, worker. "other" where no title says it."""
    with contextlib.suppress(psutil.Error):
        title = " ".join(psutil.Process(pid).cmdline())
        if title.startswith("pulsetrain: "):
            return title.split()[1].rstrip(":")
    return "other"


def _step(hub: LocalHub, job: str) -> int:
    from pulsetrain.protocol.client import HubClient

    steps = [each["step"] for each in HubClient(hub.address).status()["jobs"] if each["job"] == job]
    return int(steps[0]) if steps else -1


def _wait(until: Callable[[], bool], otherwise: str) -> None:
    deadline_s = time.monotonic() + START_S
    while not until():
        if time.monotonic() > deadline_s:
            raise SystemExit(otherwise)
        time.sleep(0.25)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few seconds of each, without the demo")
    parser.add_argument("--seconds", type=float, default=30.0, help="of watching hub and agent")
    parser.add_argument("--steps", type=int, default=40, help="undisturbed steps of the demo")
    options = parser.parse_args()
    seconds, settle_s = (4.0, 2.0) if options.quick else (options.seconds, SETTLE_S)
    idle = idle_hub_cpu_ratio(seconds, settle_s=settle_s)
    agent, hub = agent_cpu_ratios(seconds, settle_s=settle_s)
    found = {"idle_hub_cpu_ratio": idle, "agent_cpu_ratio": agent, "quiet_hub_cpu_ratio": hub}
    print(json.dumps(found if options.quick else found | {"demo": demo_cpu(options.steps)}))


if __name__ == "__main__":
    main()
