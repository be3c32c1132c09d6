"""The barrier: jobs that are pre-empted at seeded moments, and what it costs while nobody asks.

Each job has four nodes on this machine. It is resumed on the two that did not run it, in turn.

`moves`: pre-emptions that were resumed, of examples/train_gpt.py and of jobs/ddp.py, which has no line of
Pulsetrain and saves by itself. `moved`: those after which no node from before ran a rank. `identical`: those
of jobs that ended with the parameters of an undisturbed run. `steps_redone`: the steps that were done again,
by all of them. `preempt_s`: median seconds from the request until the ranks have ended. `barrier_ratio`: the
time of a step with the barrier's code by that without it (`barrier_idle`). `stages_s` has medians of each
job: until its step was saved, until its ranks stood, until they had ended, until their state had come from
other nodes, and until the first step after the resume.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from moving import barrier_idle
from moving.site import NODES, ROOT, Site, site
from pulsetrain.core.json import JsonObject
from pulsetrain.protocol.client import HubClient, find_hub
from pulsetrain.stream.store.clickhouse import open_store

SPARES = ("c", "d")
STEPS = {True: 150, False: 1500}
TRANSFERS = """SELECT attempt, max(duration_ns) AS ns, sum(bytes) AS bytes FROM checkpoints
WHERE stage = 'restore' AND tier = 'peer' GROUP BY attempt"""


@dataclass(frozen=True, kw_only=True)
class Moved:
    """One job. `command` gets the folder of a run. `digest` reads what the run ended with."""

    name: str
    ranks: int
    steps: int
    first: int
    command: Callable[[Path], list[object]]
    digest: Callable[[Path], str]


@dataclass(kw_only=True)
class Found:
    """What became of the moves of one job."""

    moves: int = 0
    moved: int = 0
    identical: bool = False
    redone: list[int] = field(default_factory=list)
    preempt_s: list[float] = field(default_factory=list)
    save_s: list[float] = field(default_factory=list)
    hold_s: list[float] = field(default_factory=list)
    hold_steps: list[int] = field(default_factory=list)
    stop_s: list[float] = field(default_factory=list)
    transfer_s: list[float] = field(default_factory=list)
    transfer_bytes: list[int] = field(default_factory=list)
    restore_s: list[float] = field(default_factory=list)
    missed: int = 0

    def stages_s(self) -> dict[str, float | None]:
        """Median seconds of each stage, None for one that this job has not."""
        stages = {
            "save": self.save_s,
            "barrier": self.hold_s,
            "stop": self.stop_s,
            "transfer": self.transfer_s,
            "restore": self.restore_s,
        }
        return {name: round(statistics.median(s), 3) if s else None for name, s in stages.items()}


def jobs(*, quick: bool) -> tuple[Moved, ...]:
    """The example job with three dimensions of parallelism, and a DDP script of somebody else."""
    gpt, ddp = ROOT / "examples/train_gpt.py", ROOT / "benchmarks/jobs/ddp.py"
    small = ("--layers", 2, "--dim", 32, "--batch", 8, "--seq", 16) if quick else ("--layers", 2, "--dim", 64)
    steps = STEPS[quick]
    return (
        Moved(
            name="example",
            ranks=4,
            steps=steps,
            first=3,
            command=lambda folder: [gpt, *small, "--steps", steps, "--params-hash-out", folder / "hash"],
            digest=lambda folder: (folder / "hash").read_text(),
        ),
        Moved(
            name="ddp",
            ranks=1,
            steps=10 * steps,
            first=30,
            command=lambda folder: [
                *(ddp, "--width", 32, "--layers", 1, "--steps", 10 * steps, "--out", folder / "out"),
                *("--save-every", 10),
            ],
            digest=lambda folder: _of_tensors(torch.load(folder / "out/ckpt.pt")["model"]),
        ),
    )


def _of_tensors(tensors: Mapping[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode() + tensors[name].numpy().tobytes())
    return digest.hexdigest()


def undisturbed(job: Moved, folder: Path) -> str:
    """Run the job on a site of its own. Returns what it ended with."""
    with site(folder) as here:
        here.launch(job.ranks, job.command(folder))
        here.finish()
    return job.digest(folder)


def moved(job: Moved, folder: Path, times: int, generator: random.Random) -> tuple[Found, str]:
    """Pre-empt it and resume it elsewhere so often. Returns what became of it, and what it ended with."""
    found = Found()
    last = job.steps * 3 // 4
    moments = sorted(generator.sample(range(job.first, last), times))
    with site(folder) as here:
        here.launch(job.ranks, job.command(folder))
        here.launch(job.ranks, job.command(folder), nodes=SPARES)
        here.until(lambda: here.job().get("state") == "running" and len(_connected(here)) == 4)
        for step in moments:
            here.until(lambda step=step: here.job().get("step", -1) >= step)
            before = _connected(here, state="active")
            here.move("preempt")
            here.until(lambda: here.job().get("state") == "preempted")
            _resume(here, sorted({*NODES, *SPARES} - before))
            here.until(lambda: here.job().get("state") == "running")
            found.moves += 1
        _read_events(here, found)
        here.finish()
    return found, job.digest(folder)


def _connected(here: Site, *, state: str = "") -> set[str]:
    """Names of the nodes that are here, and in this state where one is given."""
    nodes = here.job().get("nodes", ())
    return {str(n["node"]) for n in nodes if n["connected"] and state in ("", n["state"])}


def _resume(here: Site, nodes: Sequence[str]) -> None:
    client = HubClient(find_hub(environ=here.environ))
    client.move(here.name, "resume", "a benchmark", nodes=nodes)


def _read_events(here: Site, found: Found) -> None:
    """Read what the job's own records say of each move."""
    here.until(lambda: len(here.events("preempted")) >= found.moves and len(_resumed(here)) >= found.moves)
    resumed = _resumed(here)
    for stop, start in zip(map(json.loads, here.events("preempted")), resumed, strict=True):
        stages_ns = stop["stages_ns"]
        found.redone.append(max(int(stop["lost_steps"]), int(start["lost_steps"])))
        found.preempt_s.append(stop["total_ns"] / 1e9)
        found.save_s.append((stages_ns["save"] + stages_ns["dump"]) / 1e9)
        found.stop_s.append(stages_ns["stop"] / 1e9)
        found.restore_s.append(start["total_ns"] / 1e9)
        found.moved += len(start["joined_nodes"]) == len(start["left_nodes"]) == len(NODES)
        if stop["hold"] is not None:
            found.hold_steps.append(int(stop["hold"]["steps"]))
            found.hold_s += [stop["hold"]["took_s"]] if stop["hold"]["acquired"] else []
            found.missed += not stop["hold"]["acquired"]
    sent = {start["attempt"] for start in resumed if start["resumed_by"] == "checkpointer"}
    here.until(lambda: sent <= _transfers(here).keys())
    for attempt, (seconds, size) in sorted(_transfers(here).items()):
        if attempt in sent:
            found.transfer_s.append(seconds)
            found.transfer_bytes.append(size)


def _resumed(here: Site) -> list[JsonObject]:
    """The recoveries that followed pre-emptions, in their order."""
    return [r for r in map(json.loads, here.events("recovery")) if r["cause"] == "preemption"]


def _transfers(here: Site) -> dict[int, tuple[float, int]]:
    """By attempt: the longest seconds in which a rank got its state from another node, and bytes of all."""
    address = find_hub(environ=here.environ)
    store = open_store(address.url, token=address.token)
    try:
        rows = store.query(TRANSFERS).to_pylist()
    finally:
        store.close()
    return {int(row["attempt"]): (int(row["ns"]) / 1e9, int(row["bytes"])) for row in rows}


def run(*, quick: bool, seed: int) -> dict[str, object]:
    """Measure both. A job that fails is reported and counts as not identical."""
    generator, by_job = random.Random(seed), {}
    with tempfile.TemporaryDirectory(prefix="pulsetrain-move-") as name:
        for job in jobs(quick=quick):
            expected = undisturbed(job, Path(name) / job.name / "undisturbed")
            found, digest = moved(job, Path(name) / job.name / "moved", 2 if quick else 10, generator)
            found.identical = digest == expected
            by_job[job.name] = found
            print(f"{job.name}: {found.stages_s()} {found}", file=sys.stderr)
    all_found = list(by_job.values())
    return {
        "moves": sum(found.moves for found in all_found),
        "identical": sum(found.moves for found in all_found if found.identical),
        "steps_redone": sum(sum(found.redone) for found in all_found),
        "preempt_s": statistics.median(s for found in all_found for s in found.preempt_s),
        "moved": sum(found.moved for found in all_found),
        "by_job": {name: vars(found) | {"stages_s": found.stages_s()} for name, found in by_job.items()},
        "load": os.getloadavg()[0],
        **barrier_idle.measure(quick=quick),
    }
