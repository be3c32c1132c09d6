"""The barrier: jobs that are pre-empted at seeded moments, and what it costs while nobody asks.

`moves`: pre-emptions that were resumed, of examples/train_gpt.py and of jobs/ddp.py, which has no line of
Pulsetrain and saves by itself. `identical`: those of jobs that ended with the parameters of an undisturbed
run. `steps_redone`: the steps that were done again, by all of them. `preempt_s`: median seconds from the
request until the ranks have ended. `barrier_ratio`: the time of a step with the barrier's code by that
without it.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import random
import statistics
import sys
import tempfile
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from overhead import Job, block, interval, median_ns

from moving.site import ROOT, Site, site
from pulsetrain.collectors.layout import W_HOLD
from pulsetrain.collectors.rank import handle as handle_module
from pulsetrain.collectors.rank.handle import Handle
from pulsetrain.collectors.rank.ring import RingWriter, create_ring

CHECK = "if words[W_HOLD]:"


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
    identical: bool = False
    redone: list[int] = field(default_factory=list)
    preempt_s: list[float] = field(default_factory=list)
    hold_s: list[float] = field(default_factory=list)
    hold_steps: list[int] = field(default_factory=list)
    missed: int = 0


def jobs(*, quick: bool) -> tuple[Moved, ...]:
    """The example job with three dimensions of parallelism, and a DDP script of somebody else."""
    gpt, ddp = ROOT / "examples/train_gpt.py", ROOT / "benchmarks/jobs/ddp.py"
    small = ("--layers", 2, "--dim", 32, "--batch", 8, "--seq", 16) if quick else ("--layers", 2, "--dim", 64)
    steps = 150 if quick else 1500
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
    """Pre-empt and resume it so many times. Returns what became of it, and what it ended with."""
    found = Found()
    last = job.steps * 3 // 4
    moments = sorted(generator.sample(range(job.first, last), times))
    with site(folder) as here:
        here.launch(job.ranks, job.command(folder))
        for step in moments:
            here.until(lambda step=step: here.job().get("step", -1) >= step)
            here.move("preempt")
            here.until(lambda: here.job().get("state") == "preempted")
            here.move("resume")
            here.until(lambda: here.job().get("state") == "running")
            found.moves += 1
        _read_events(here, found)
        here.finish()
    return found, job.digest(folder)


def _read_events(here: Site, found: Found) -> None:
    here.until(lambda: len(here.events("preempted")) >= found.moves)
    for told in map(json.loads, here.events("preempted")):
        found.redone.append(int(told["lost_steps"]))
        found.preempt_s.append(told["total_ns"] / 1e9)
        if told["hold"] is not None:
            found.hold_steps.append(int(told["hold"]["steps"]))
            found.hold_s += [told["hold"]["took_s"]] if told["hold"]["acquired"] else []
            found.missed += not told["hold"]["acquired"]


def without_check() -> Callable[..., None]:
    """`Handle.end_step` as it is without the barrier: the same source, less its check."""
    lines = textwrap.dedent(inspect.getsource(Handle.end_step)).splitlines()
    at = next(i for i, line in enumerate(lines) if line.strip() == CHECK)
    names: dict[str, Callable[..., None]] = {}
    exec("\n".join(lines[:at] + lines[at + 2 :]), vars(handle_module), names)
    return names["end_step"]


def idle_cost(*, quick: bool) -> dict[str, float]:
    """What a step costs while nobody asks: interleaved blocks with and without the check."""
    torch.set_num_threads(1)
    handle = Handle(RingWriter(create_ring()))
    job, blocks = Job("cpu", dim=64, batch=4), 600 if quick else 4000
    variants = {True: Handle.end_step, False: without_check()}

    def timed(*, checks: bool) -> float:
        Handle.end_step = variants[checks]  # type: ignore[method-assign]
        return block(job, handle, 1, "cpu")

    try:
        timed(checks=True), timed(checks=False)
        pairs = []
        for number in range(blocks):
            first = timed(checks=bool(number % 2))
            second = timed(checks=not number % 2)
            pairs.append((second, first) if number % 2 else (first, second))
    finally:
        Handle.end_step = variants[True]  # type: ignore[method-assign]
    assert handle.state is not None
    words = handle.state.words
    ratio, low, high = interval(pairs, draws=1000)
    return {
        "barrier_ratio": round(ratio, 5),
        "barrier_ratio_low": round(low, 5),
        "barrier_ratio_high": round(high, 5),
        "barrier_look_ns": round(median_ns(lambda: words[W_HOLD]), 1),
    }


def run(*, quick: bool, seed: int) -> dict[str, object]:
    """Measure both. A job that fails is reported and counts as not identical."""
    generator, by_job = random.Random(seed), {}
    with tempfile.TemporaryDirectory(prefix="pulsetrain-move-") as name:
        for job in jobs(quick=quick):
            expected = undisturbed(job, Path(name) / job.name / "undisturbed")
            found, digest = moved(job, Path(name) / job.name / "moved", 2 if quick else 10, generator)
            found.identical = digest == expected
            by_job[job.name] = found
            print(f"{job.name}: {found}", file=sys.stderr)
    all_found = list(by_job.values())
    return {
        "moves": sum(found.moves for found in all_found),
        "identical": sum(found.moves for found in all_found if found.identical),
        "steps_redone": sum(sum(found.redone) for found in all_found),
        "preempt_s": statistics.median(s for found in all_found for s in found.preempt_s),
        "by_job": {name: vars(found) for name, found in by_job.items()},
        **idle_cost(quick=quick),
    }
