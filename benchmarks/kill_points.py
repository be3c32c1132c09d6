"""A training job that is killed at a hundred seeded points, and comes back bit-identical each time.

    python benchmarks/kill_points.py [--points 100] [--seed 0] [--budget-s 1800]

A hub, four nodes of one rank each in two placement groups, and two standbys, all real processes. Each point
is a victim (a rank; a node; an agent; a node in each placement group; a whole group; the hub) and a moment
(in the middle of phase one, phase two, the manifest commit, a transfer to a peer, or a restore), at which the
victim gets SIGKILL. At the end the job's parameters must be those of an uninterrupted run of as many steps,
and where a replica survived no point may have cost more than one step that every rank had completed. Points
are spread over as many jobs as `--points-per-job` says. Prints one JSON object as its last line; exit status
1 where a promise was broken.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pulsetrain.core.errors import PulsetrainError
from pulsetrain.protocol.client import HubClient, find_hub

JOB = Path(__file__).resolve().parent / "jobs" / "killed.py"
NODES, STANDBYS = 4, 2
VICTIMS = ("rank", "node", "agent", "one_of_each_group", "group", "hub")
MOMENTS = ("phase_one", "phase_two", "manifest", "transfer", "restore")


@dataclass(frozen=True, kw_only=True)
class Point:
    """One kill. `node_rank` is where the moment is waited for; the victims are there or around it."""

    victim: str
    moment: str
    node_rank: int

    @property
    def place(self) -> str:
        """Where in the code it is waited for: a rank restores in its own process, a node in its agent's."""
        return "restore_rank" if (self.victim, self.moment) == ("rank", "restore") else self.moment

    @property
    def standbys(self) -> int:
        """Nodes that it takes away."""
        return {"node": 1, "agent": 1, "one_of_each_group": 2, "group": 2}.get(self.victim, 0)


def draw_points(seed: int, count: int) -> list[Point]:
    """Every victim at every moment in turn, shuffled; the manifest is written by rank 0's node."""
    rng, points = random.Random(seed), []
    while len(points) < count:
        grid = [(v, m) for v in VICTIMS for m in MOMENTS]
        rng.shuffle(grid)
        for victim, moment in grid:
            node_rank = 0 if moment == "manifest" else rng.randrange(NODES)
            points.append(Point(victim=victim, moment=moment, node_rank=node_rank))
    return points[:count]


def until(holds: Callable[[], Any], timeout_s: float, what: str) -> Any:
    """The value once it is true. Raises `TimeoutError`."""
    deadline = time.monotonic() + timeout_s
    while not (value := holds()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not in {timeout_s:g} s")
        time.sleep(0.002)
    return value


class Site:
    """One job with all its processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("armed", "reached"):
            (folder / name).mkdir()
        self.env = {
            **os.environ,
            "PULSETRAIN_DATA": str(folder / "hub"),
            "KILL_POINTS": str(folder),
            "OMP_NUM_THREADS": "1",
            "PULSETRAIN_CHECKPOINT_PLACEMENT": "group",
            "PULSETRAIN_CHECKPOINT_PERSIST_EVERY": "5",
            "PULSETRAIN_CHECKPOINT_POLL_S": "0.004",
            "PULSETRAIN_CHECKPOINT_COMMIT_TIMEOUT_S": "5",
            "PULSETRAIN_CHECKPOINT_LAG_STEPS": "1",
            "PULSETRAIN_CONTROLLER_SELF_CHECK_S": "0.05",
        }
        self.log = (folder / "log").open("ab")
        self.hub: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        self.made = 0

    def spawn(self, arguments: list[str], **env: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            arguments,
            env=self.env | env,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
            cwd=self.folder,
        )

    def start_hub(self) -> None:
        known = self.folder / "hub" / "hub.json"
        known.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pulsetrain.cli", "serve", "--no-dashboard"]
        self.hub = self.spawn([*command, "--data", str(self.folder / "hub"), "--port", str(self.port)])
        until(lambda: self.job() is not None, 60, "hub")
        self.port = int(json.loads(known.read_text())["url"].rpartition(":")[2])

    def start_agent(self, *, standby: bool) -> None:
        name = f"n{self.made}"
        self.made += 1
        flags = ["--job", "j", "--node", name, "--nnodes", str(NODES), "--nproc-per-node", "1"]
        flags += ["--max-restarts", "100000", "--address", f"127.0.0.{self.made + 1}"]
        flags += ["--data", str(self.folder / name), "--checkpoints", str(self.folder / "store")]
        verb = ["agent", *flags, "--standby"] if standby else ["run", *flags]
        self.agents[name] = self.spawn([sys.executable, str(JOB), *verb, str(JOB)], KILL_POINTS_NODE=name)

    def job(self) -> dict[str, Any] | None:
        """What the hub says of the job; {} before it has one, None where the hub does not answer."""
        with contextlib.suppress(PulsetrainError, OSError):
            jobs = HubClient(find_hub(environ=self.env), timeout_s=2.0).status()["jobs"]
            return next(iter(jobs), {})
        return None

    @property
    def steps(self) -> list[int]:
        """The newest step that each rank has completed, also of ranks that are dead."""
        raw = (self.folder / "progress").read_bytes()
        return [int.from_bytes(raw[i : i + 8], "little", signed=True) for i in range(0, 8 * NODES, 8)]

    def node_of(self, node_rank: int) -> str:
        """The node that has this place in the newest attempt."""
        return (self.folder / f"node-{node_rank}").read_text()

    def pids(self, node: str, kind: str = "") -> list[int]:
        """Live processes of a node; `kind` rank: its ranks alone."""
        marks = {f"KILL_POINTS_NODE={node}".encode(), f"KILL_POINTS={self.folder}".encode()}
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                env = set((entry / "environ").read_bytes().split(b"\0"))
                ranked = str(entry.name) in self.rank_pids()
                if marks <= env and (kind != "rank" or ranked):
                    found.append(int(entry.name))
        return found

    def rank_pids(self) -> set[str]:
        return {file.read_text() for file in self.folder.glob("pid-*")}

    def close(self) -> None:
        for process in (*self.agents.values(), self.hub):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()
        for node in self.agents:
            until(lambda node=node: not self.pids(node), 10, f"processes of {node}")
        self.log.close()


class Run:
    """One job from its first step to its last, with a list of points between."""

    def __init__(self, site: Site, points: list[Point]) -> None:
        self.site, self.points = site, points

    def start(self) -> None:
        (self.site.folder / "progress").write_bytes((-1).to_bytes(8, "little", signed=True) * NODES)
        self.site.start_hub()
        for _ in range(NODES):
            self.site.start_agent(standby=False)
        for _ in range(STANDBYS):
            self.site.start_agent(standby=True)
        until(lambda: min(self.site.steps) >= 3, 180, "the first steps")

    def strike(self, point: Point) -> dict[str, Any]:
        """Wait for the moment, kill, wait until the job trains on."""
        site = self.site
        self.settle(point.standbys)
        before, victims = self.attempt(), self.victims(point)
        self.arm(point)
        if point.moment == "restore":  # there is one after a fault only
            self.kill(site.pids(site.node_of((point.node_rank + 1) % NODES), "rank"))
        stopped = self.await_moment(point)
        self.kill(victims or [stopped])
        began = time.monotonic()
        completed = min(site.steps)  # who is dead completes nothing more, so this is as of the kill
        for file in (site.folder / "armed").iterdir():
            file.unlink()
        if point.victim == "hub":
            assert site.hub is not None, "it was started"
            site.hub.wait()
            site.start_hub()
        unharmed = point.victim == "hub" and point.moment != "restore"
        until(lambda: self.moved(before, completed, same_attempt=unharmed), 120, f"{point}: the job goes on")
        resumed = completed if self.attempt() == before else self.resumed()
        for name in [n for n, p in site.agents.items() if p.poll() is not None]:
            site.agents.pop(name)
            site.start_agent(standby=True)
        return {
            "victim": point.victim,
            "moment": point.moment,
            "node_rank": point.node_rank,
            "completed": completed,
            "resumed": resumed,
            "lost": max(0, completed - resumed),
            "seconds": time.monotonic() - began,
        }

    def settle(self, standbys: int) -> None:
        """The job trains, and so many standbys are there."""

        def ready() -> bool:
            job = self.site.job() or {}
            return job.get("state") == "running" and self.standbys() >= standbys

        until(ready, 120, "a running job with its standbys")
        at = max(self.site.steps)
        until(lambda: min(self.site.steps) >= at + 3, 120, "three steps")

    def standbys(self) -> int:
        with contextlib.suppress(PulsetrainError, OSError):
            nodes = HubClient(find_hub(environ=self.site.env), timeout_s=2.0).nodes()
            return sum(node.get("state") == "standby" for node in nodes)
        return 0

    def arm(self, point: Point) -> None:
        node = self.site.node_of(point.node_rank)
        (self.site.folder / "armed" / f"{point.place}-{node}").touch()

    def await_moment(self, point: Point) -> int:
        """The process that has come to it, and stands there."""
        reached = self.site.folder / "reached"
        file = until(lambda: next(reached.iterdir(), None), 60, f"{point}: the moment")
        pid = int(file.name.rpartition("-")[2])
        file.unlink()
        return pid

    def victims(self, point: Point) -> list[int]:
        """Process ids; none: whichever stands at the moment."""
        site, place = self.site, point.node_rank
        node, partner, far = (site.node_of(r) for r in (place, place ^ 1, (place + 2) % NODES))
        match point.victim:
            case "rank":
                return [] if point.moment == "restore" else site.pids(node, "rank")
            case "agent":
                return [site.agents[node].pid]
            case "node":
                return site.pids(node)
            case "one_of_each_group":
                return site.pids(node) + site.pids(far)
            case "group":
                return site.pids(node) + site.pids(partner)
            case _:
                assert site.hub is not None, "it was started"
                return [site.hub.pid]

    @staticmethod
    def kill(pids: list[int]) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def attempt(self) -> int:
        return int((self.site.folder / "resumed").read_text().split()[0])

    def resumed(self) -> int:
        return int((self.site.folder / "resumed").read_text().split()[1])

    def moved(self, before: int, completed: int, *, same_attempt: bool) -> bool:
        fresh = same_attempt or self.attempt() > before
        return fresh and min(self.site.steps) > completed

    def finish(self) -> tuple[int, str]:
        """End at a step that all ranks agree on; that step and the hash of all parameters."""
        (self.site.folder / "stop").touch()
        until(lambda: (self.site.folder / "end").exists(), 60, "the end")
        steps, digest = (self.site.folder / "end").read_text().split()
        return int(steps), digest


def reference(steps: int) -> str:
    """The hash after so many uninterrupted steps of the same script, without agents."""
    with tempfile.TemporaryDirectory(prefix="pulsetrain-bench-") as name:
        (Path(name) / "progress").write_bytes(bytes(8 * NODES))
        command = [sys.executable, str(JOB), "reference", str(steps)]
        env = {**os.environ, "KILL_POINTS": name, "OMP_NUM_THREADS": "1"}
        subprocess.run(command, env=env, check=True, timeout=600)
        return (Path(name) / "end").read_text().split()[1]


def run_job(points: list[Point], deadline: float, say: Callable[[str], None]) -> dict[str, Any]:
    """One job with its points; stops early, and says so, where `deadline` has passed."""
    with tempfile.TemporaryDirectory(prefix="pulsetrain-bench-") as name:
        site, struck = Site(Path(name)), []
        try:
            run = Run(site, points)
            run.start()
            for point in points:
                if struck and time.monotonic() > deadline:
                    break
                struck.append(run.strike(point))
                say(json.dumps(struck[-1]))
            steps, digest = run.finish()
        except BaseException:
            say((Path(name) / "log").read_text(errors="replace")[-6000:])
            raise
        finally:
            site.close()
    return {"points": struck, "steps": steps, "identical": digest == reference(steps)}


def summary(jobs: list[dict[str, Any]], seed: int, seconds: float) -> dict[str, Any]:
    points = [p for job in jobs for p in job["points"]]
    kept = [p for p in points if p["victim"] != "group"]
    times = sorted(p["seconds"] for p in points)
    return {
        "points": len(points),
        "jobs": len(jobs),
        "seed": seed,
        "identical": all(job["identical"] for job in jobs),
        "lost_with_replica_max": max((p["lost"] for p in kept), default=0),
        "lost_with_replica": dict(sorted(Counter(p["lost"] for p in kept).items())),
        "lost_whole_group_max": max((p["lost"] for p in points if p["victim"] == "group"), default=0),
        "by_victim": dict(sorted(Counter(p["victim"] for p in points).items())),
        "by_moment": dict(sorted(Counter(p["moment"] for p in points).items())),
        "recovery_p50_s": times[len(times) // 2],
        "recovery_max_s": times[-1],
        "steps": sum(job["steps"] for job in jobs),
        "seconds": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--points", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--skip", type=int, default=0, help="points of the seed to leave out at the beginning"
    )
    parser.add_argument("--points-per-job", type=int, default=10)
    parser.add_argument("--budget-s", type=float, default=1800.0, help="no new point after so long")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started ends with it
    began = time.monotonic()
    points, jobs = draw_points(args.seed, args.skip + args.points)[args.skip :], []
    for start in range(0, len(points), args.points_per_job):
        if jobs and time.monotonic() - began > args.budget_s:
            break
        some = points[start : start + args.points_per_job]
        jobs.append(
            run_job(some, began + args.budget_s, lambda line: print(line, file=sys.stderr, flush=True))
        )
    found = summary(jobs, args.seed, time.monotonic() - began)
    print(json.dumps(found))
    sys.exit(not (found["identical"] and found["lost_with_replica_max"] <= 1))


if __name__ == "__main__":
    main()
