"""Run a script of this folder under torchrun or `pulsetrain run`. See what came of it and was recorded."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from jobs.catalogue import FOLDER, Job

from pulsetrain.protocol.client import HubAddress
from pulsetrain.stream.store.clickhouse import Store, open_store

Launcher = Literal["torchrun", "pulsetrain"]
STEP = re.compile(r"\bstep (\d+) loss (\S+)")
FINAL = re.compile(r"\bfinal loss (\S+)")
FLIGHT_RECORDER = "20000"  # operations that it keeps, more than any of these jobs has


@dataclass(frozen=True, slots=True)
class Traffic:
    """Operations of one rank: how many, and their bytes together."""

    operations: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run shows from outside.

    `losses` has the loss of each step as printed. `times` has when its line came, in seconds since the start.
    `traffic` has each rank's, if it was counted.
    """

    status: int
    final: str
    losses: tuple[str, ...]
    times: tuple[float, ...]
    seconds: float
    output: str
    traffic: Mapping[int, Traffic] = field(default_factory=dict)

    @property
    def result(self) -> tuple[int, str, tuple[str, ...]]:
        """What must not depend on the launcher."""
        return self.status, self.final, self.losses


def run_job(
    job: Job,
    launcher: Launcher = "torchrun",
    *,
    args: Iterable[str] = (),
    ranks: int = 0,
    hub: HubAddress | None = None,
    name: str = "",
    limit_s: float = 300.0,
) -> Outcome:
    """Run `job` with further `args` on this machine, until it ends or `limit_s` are over.

    Under torchrun its traffic is counted, without any part of Pulsetrain. With a `hub` it runs there as
    `name`, by default the job's. Raises `subprocess.TimeoutExpired`.
    """
    command = [
        *_launch(launcher, ranks or job.ranks, hub, name or job.name),
        str(job.script),
        *job.args,
        *args,
    ]
    with tempfile.TemporaryDirectory(prefix="jobs-") as folder:
        environ = _environment(launcher, Path(folder))
        status, lines, seconds = _run(command, environ, limit_s)
        traffic = _counted(Path(folder))
    text = [line for _, line in lines]
    steps = [(at, m[2]) for at, line in lines if (m := STEP.search(line))]
    return Outcome(
        status=status,
        final=next((m[1] for line in reversed(text) if (m := FINAL.search(line))), ""),
        losses=tuple(loss for _, loss in steps),
        times=tuple(at for at, _ in steps),
        seconds=seconds,
        output="\n".join(text),
        traffic=traffic,
    )


def _launch(launcher: Launcher, ranks: int, hub: HubAddress | None, name: str) -> list[str]:
    count = ["--nproc-per-node", str(ranks)]
    if launcher == "torchrun":
        return [sys.executable, "-m", "torch.distributed.run", "--standalone", *count]
    where = ["--hub", hub.url, "--token", hub.token] if hub else ["--standalone"]
    return [sys.executable, "-m", "pulsetrain.cli", "run", *where, "--job", name, *count]


def _environment(launcher: Launcher, folder: Path) -> dict[str, str]:
    environ = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}
    if launcher == "torchrun":
        path = os.pathsep.join(filter(None, [str(FOLDER / "counting"), os.environ.get("PYTHONPATH")]))
        environ |= {"PYTHONPATH": path, "JOBS_COUNT": str(folder), "TORCH_FR_BUFFER_SIZE": FLIGHT_RECORDER}
    return environ


def _run(
    command: list[str], environ: dict[str, str], limit_s: float
) -> tuple[int, list[tuple[float, str]], float]:
    """The exit status, the lines with the seconds at which they came, and how long it took."""
    began = time.monotonic()
    process = subprocess.Popen(
        ["timeout", "--kill-after=20", str(limit_s), *command],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    with process:  # closes its output too
        assert process.stdout is not None
        lines = [(time.monotonic() - began, line.rstrip("\n")) for line in process.stdout]
    return process.returncode, lines, time.monotonic() - began


def _counted(folder: Path) -> dict[int, Traffic]:
    counts = {}
    for path in folder.glob("rank*.json"):
        sizes = [size for _, size in json.loads(path.read_text())]
        counts[int(path.stem.removeprefix("rank"))] = Traffic(len(sizes), sum(sizes))
    return counts


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the store knows of a job, by rank.

    `steps` and `losses` are in the order of steps. A loss that is not known is None. `phases` leaves
    communication out. `mesh` has the coordinates tp, pp, dp, cp, ep.
    """

    steps: Mapping[int, tuple[int, ...]]
    losses: Mapping[int, tuple[float | None, ...]]
    phases: Mapping[int, frozenset[str]]
    traffic: Mapping[int, Traffic]
    mesh: Mapping[int, Mapping[str, int]]


def recorded(hub: HubAddress, name: str) -> Recorded:
    """Read what was recorded of the job `name`."""
    store = open_store(hub.url, token=hub.token)
    try:
        return _recorded(store, name)
    finally:
        store.close()


def _recorded(store: Store, name: str) -> Recorded:
    def rows(query: str) -> list[dict[str, object]]:
        found: list[dict[str, object]] = store.query(query, {"job": name}).to_pylist()
        return found

    steps = rows(
        "SELECT rank, groupArray(step) AS steps, groupArray(ifNull(loss, -1e300)) AS losses FROM"
        " (SELECT * FROM steps WHERE job = {job:String} ORDER BY rank, step) GROUP BY rank"
    )
    phases = rows(
        "SELECT rank, groupUniqArray(phase) AS phases FROM spans WHERE job = {job:String}"
        " AND NOT open AND category != 'communication' GROUP BY rank"
    )
    traffic = rows(
        "SELECT rank, count() AS n, sum(bytes) AS size FROM spans WHERE job = {job:String}"
        " AND NOT open AND category = 'communication' GROUP BY rank"
    )
    axes = "tp", "pp", "dp", "cp", "ep"
    newest = ", ".join(f"argMax({axis}, ts) AS {axis}" for axis in axes)
    mesh = rows(f"SELECT rank, {newest} FROM topology WHERE job = {{job:String}} GROUP BY rank")
    return Recorded(
        steps={r["rank"]: tuple(r["steps"]) for r in steps},
        losses={r["rank"]: tuple(None if x < -1e299 else x for x in r["losses"]) for r in steps},
        phases={r["rank"]: frozenset(r["phases"]) for r in phases},
        traffic={r["rank"]: Traffic(r["n"], r["size"]) for r in traffic},
        mesh={r["rank"]: {a: r[a] for a in axes} for r in mesh},
    )
