"""The leader is killed in each state of a recovery. Real etcd, hubs, agents and ranks.

Three members of etcd, two hubs, two nodes of one rank each, and a standby. A point: a node's self-check fails
from now on, and its rank gets SIGKILL. So the leader stops the job, checks, evicts that node and launches on
the standby. In one state of this it gets SIGKILL, at every fifth point together with a member of etcd. The
other hub must bring the job to new steps, with one eviction. At the end the parameters must be those of an
uninterrupted run.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from pulsetrain.core.errors import PulsetrainError  # noqa: E402  # the cluster of the tests needs the root
from pulsetrain.kv.address import parse  # noqa: E402
from pulsetrain.kv.etcd import EtcdStore  # noqa: E402
from pulsetrain.protocol.client import HubAddress, HubClient  # noqa: E402
from tests.kv.cluster import Cluster, free_ports  # noqa: E402

STATES = ("suspending", "checking", "starting", "evicting", "evicted", "launched", "running")
JOB = ROOT / "benchmarks" / "jobs" / "killed.py"
HUB = Path(__file__).resolve().parent / "pausing_hub.py"
TOKEN, NAME = "one token for all", "j"
NODES = 2
HEALED_S, LIMIT_S = 10.0, 120.0
MEMBER_EVERY = 5
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Point:
    """The leader is killed in `state` of a recovery from a fault of the node of `rank`."""

    number: int
    state: str
    rank: int

    @property
    def member(self) -> bool:
        """Whether a member of etcd is killed at the same moment."""
        return self.number % MEMBER_EVERY == MEMBER_EVERY - 1


def missing() -> str:
    """Why this cannot be measured here, "" where it can."""
    return "" if which("etcd") else "no etcd here: run deploy/test-services"


def draw(seed: int, count: int) -> list[Point]:
    """Every state in turn, shuffled each time."""
    rng, states = random.Random(seed), list[str]()
    while len(states) < count:
        states += rng.sample(STATES, len(STATES))
    return [Point(number=i, state=s, rank=rng.randrange(NODES)) for i, s in enumerate(states[:count])]


def until(holds: Callable[[], Any], limit_s: float, what: str) -> Any:
    """The value once it is true. Raises `TimeoutError`."""
    deadline_s = time.monotonic() + limit_s
    while not (value := holds()):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{what}: not in {limit_s:g} s")
        time.sleep(0.01)
    return value


class Site:
    """All processes of one job."""

    def __init__(self, folder: Path, etcd: Cluster) -> None:
        self.folder, self.etcd = folder, etcd
        for name in ("armed", "reached"):
            (folder / name).mkdir()
        (folder / "progress").write_bytes((-1).to_bytes(8, "little", signed=True) * NODES)
        self.ports = dict(zip("ab", free_ports(2), strict=True))
        self.urls = {name: f"http://127.0.0.1:{port}" for name, port in self.ports.items()}
        self.env = os.environ | {
            "KILL_POINTS": str(folder),
            "PAUSING_HUB": str(folder),
            "OMP_NUM_THREADS": "1",
            "PULSETRAIN_HUB_TOKEN": TOKEN,
            "PULSETRAIN_TOKEN": TOKEN,
            "PULSETRAIN_CHECKPOINT_LAG_STEPS": "1",
            "PULSETRAIN_CONTROLLER_SELF_CHECK_S": "0.05",
            "PULSETRAIN_CONTROLLER_EVICTIONS_PER_HOUR": "1000",
            "PULSETRAIN_CONTROLLER_MIN_HEALTHY_RATIO": "0.3",
            "PULSETRAIN_CONTROLLER_FAULTS_OF_A_NODE": "0",
        }
        self.log = (folder / "log").open("ab")
        self.hubs: dict[str, subprocess.Popen[bytes]] = {}
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        self.kv = EtcdStore(parse(etcd.url, {}), prefix="/pulsetrain/")

    def spawn(self, *command: str, **env: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, *command],
            env=self.env | env,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
            cwd=self.folder,
        )

    def start_hub(self, name: str) -> None:
        where = ("--data", str(self.folder / f"hub-{name}"), "--port", str(self.ports[name]))
        self.hubs[name] = self.spawn(str(HUB), "serve", "--no-dashboard", *where, "--kv", self.etcd.url)

    def start_agent(self, *, standby: bool) -> None:
        name = f"n{len(self.agents)}"
        flags = ["--job", NAME, "--node", name, "--nnodes", str(NODES), "--nproc-per-node", "1"]
        flags += ["--max-restarts", "100000", "--hub", ",".join(self.urls.values())]
        flags += ["--data", str(self.folder / name), "--checkpoints", str(self.folder / "store")]
        verb = ["agent", *flags, "--standby"] if standby else ["run", *flags]
        self.agents[name] = self.spawn(str(JOB), *verb, str(JOB), KILL_POINTS_NODE=name)

    def ask(self, name: str) -> dict[str, Any]:
        """The status of a hub, {} where it does not answer or waits."""
        with contextlib.suppress(PulsetrainError, OSError):
            return dict(HubClient(HubAddress(url=self.urls[name], token=TOKEN), timeout_s=2.0).status())
        return {}

    def leader(self) -> str:
        """Name of the hub that leads, "" for none."""
        return next((n for n in self.hubs if self.ask(n).get("hub", {}).get("role") == "leader"), "")

    def waits(self, name: str) -> bool:
        return bool(self.ask(name).get("hub", {}).get("role") == "waiting")

    def nodes(self, leader: str) -> list[dict[str, Any]]:
        with contextlib.suppress(PulsetrainError, OSError):
            client = HubClient(HubAddress(url=self.urls[leader], token=TOKEN), timeout_s=2.0)
            return [dict(node) for node in client.nodes()]
        return []

    def evictions(self) -> int:
        """How many automatic evictions the budget counts."""
        kept = self.kv.get(f"jobs/{NAME}/evictions")
        return len(json.loads(kept.value)) if kept is not None else 0

    def ended(self) -> set[str]:
        """Nodes whose agents have ended."""
        return {name for name, process in self.agents.items() if process.poll() is not None}

    @property
    def steps(self) -> list[int]:
        raw = (self.folder / "progress").read_bytes()
        return [int.from_bytes(raw[i : i + 8], "little", signed=True) for i in range(0, 8 * NODES, 8)]

    def attempt(self) -> int:
        return int((self.folder / "resumed").read_text().split()[0])

    def close(self) -> None:
        for process in (*self.agents.values(), *self.hubs.values()):
            if process.poll() is None:
                process.kill()
                process.wait()
        self.kv.close()
        self.log.close()


def run(points: Sequence[Point], folder: Path) -> Iterator[Row]:
    """A row for each point, and one for the job at its end."""
    with Cluster(folder, count=3) as etcd:
        site = Site(folder, etcd)
        try:
            yield from _run(site, points)
        except BaseException:
            sys.stderr.write((folder / "log").read_text(errors="replace")[-6000:])
            raise
        finally:
            site.close()


def _run(site: Site, points: Sequence[Point]) -> Iterator[Row]:
    for name in site.ports:
        site.start_hub(name)
    until(site.leader, LIMIT_S, "a leader")
    for number in range(NODES + 1):
        site.start_agent(standby=number == NODES)
    until(lambda: min(site.steps) >= 3, LIMIT_S, "the first steps")
    for point in points:
        yield {"what": "point", **strike(site, point)}
    (site.folder / "stop").touch()
    until(lambda: (site.folder / "end").exists(), LIMIT_S, "the end")
    steps, digest = (site.folder / "end").read_text().split()
    yield {"what": "job", "steps": int(steps), "identical": digest == reference(int(steps))}


def strike(site: Site, point: Point) -> Row:
    """Wait until all is well, make a node sick, and kill the leader in the state of the point."""
    leader = _settle(site)
    victim = (site.folder / f"node-{point.rank}").read_text()
    before, spent, ended = site.attempt(), site.evictions(), site.ended()
    (site.folder / "armed" / point.state).touch()
    (site.folder / f"sick-{victim}").touch()
    os.kill(int((site.folder / f"pid-{point.rank}").read_text()), signal.SIGKILL)
    reached = until(lambda: next((site.folder / "reached").iterdir(), None), 60, f"{point}: the state")
    completed = min(site.steps)
    member = point.number % len(site.etcd.members)
    if point.member:
        site.etcd.members[member].kill()
    site.hubs[leader].kill()
    killed_s = time.monotonic()
    reached.unlink()
    site.hubs[leader].wait()
    until(
        lambda: site.attempt() > before and min(site.steps) > completed,
        LIMIT_S,
        f"{point}: new steps",
    )
    seconds = time.monotonic() - killed_s
    with contextlib.suppress(TimeoutError):
        until(lambda: site.agents[victim].poll() is not None, 10, "the end of the evicted agent")
    gone = site.ended() - ended
    evicted = site.evictions() - spent
    if point.member:
        site.etcd.restart(member)
    site.start_hub(leader)
    site.start_agent(standby=True)
    return {
        "number": point.number,
        "state": point.state,
        "member": point.member,
        "seconds": round(seconds, 2),
        "healed": seconds <= HEALED_S,
        "spent": evicted,
        "victim_gone": victim in gone,
        "gone": len(gone),
    }


def _settle(site: Site) -> str:
    """The job trains, a standby is there, and one hub leads while the other waits. Returns the leader."""

    def ready() -> str:
        leader = site.leader()
        job = next(iter(site.ask(leader).get("jobs", [])), {}) if leader else {}
        others = [name for name in site.hubs if name != leader]
        standby = any(node.get("state") == "standby" for node in site.nodes(leader)) if leader else False
        settled = job.get("state") == "running" and standby and all(map(site.waits, others))
        return leader if settled else ""

    leader: str = until(ready, LIMIT_S, "a running job with a standby and two hubs")
    at = max(site.steps)
    until(lambda: min(site.steps) >= at + 3, LIMIT_S, "three steps")
    return leader


def reference(steps: int) -> str:
    """The hash after so many uninterrupted steps of the same script, without agents."""
    with tempfile.TemporaryDirectory(prefix="pulsetrain-bench-") as name:
        (Path(name) / "progress").write_bytes(bytes(8 * NODES))
        command = [sys.executable, str(JOB), "reference", str(steps), str(NODES)]
        env = {**os.environ, "KILL_POINTS": name, "OMP_NUM_THREADS": "1"}
        subprocess.run(command, env=env, check=True, timeout=600)
        return (Path(name) / "end").read_text().split()[1]
