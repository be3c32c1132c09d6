"""The scripts of benchmarks/jobs as launches: untouched, or with phases of their own."""

from __future__ import annotations

from collections.abc import Iterable

from jobs.catalogue import FOLDER, JOBS

from anyjob import core_speed
from anyjob.launch import Script

VARIANTS = ("untouched", "instrumented")
SLOW_JOBS = ("ddp", "fsdp2", "tensor_parallel", "pipeline")
"""the jobs in which a rank is made slower. All of them can be run with phases of their own"""
ENDLESS = 1_000_000
SEQUENCES = {"ddp": 32, "fsdp2": 32, "tensor_parallel": 16, "pipeline": 16}
"""of a microbatch over all ranks, for steps of some 200 ms on two cores of `REFERENCE_GFLOPS` each"""
OF_TWO_RANKS = {"pipeline": 16}
"""the same for two ranks that are alone on the two cores, 32 where nothing is said"""
REFERENCE_GFLOPS = 105.0


def runnable(names: Iterable[str] | None = None) -> list[str]:
    """Return the names of the jobs whose packages are installed, of all or of `names`."""
    return [name for name in (names or JOBS) if not JOBS[name].missing]


def argv(name: str, variant: str, args: Iterable[str]) -> tuple[str, ...]:
    """Return the command of a job after the launcher's flags."""
    if variant == "instrumented":
        return (str(FOLDER / "instrumented.py"), name, *args)
    return (str(JOBS[name].script), *args)


def batch(sequences: int, ranks: int, gflops: float) -> int:
    """Return the sequences of a rank's microbatch. Fast cores and few ranks get larger ones.

    >>> batch(32, 2, 105.0), batch(32, 4, 52.5), batch(16, 4, 1.0)
    (16, 4, 1)
    """
    return max(1, round(sequences * gflops / REFERENCE_GFLOPS / ranks))


def endless(name: str, variant: str, *, nodes: int, ranks_per_node: int) -> Script:
    """Return a job with steps of some 200 ms that goes on until it is ended."""
    sequences = batch(SEQUENCES.get(name, 16), nodes * ranks_per_node, core_speed.gflops())
    return Script(
        name=name,
        argv=argv(name, variant, (*JOBS[name].load_args, "--batch", str(sequences), "--steps", str(ENDLESS))),
        nodes=nodes,
        ranks_per_node=ranks_per_node,
    )


def short(name: str, steps: int) -> tuple[tuple[str, ...], int]:
    """Return the command of a job of so many steps of some 100 to 200 ms, and its ranks."""
    job = JOBS[name]
    sequences = batch(OF_TWO_RANKS.get(name, 32), job.ranks, core_speed.gflops())
    args = (*job.load_args, "--batch", str(sequences), "--steps", str(steps))
    return argv(name, "untouched", args), job.ranks
