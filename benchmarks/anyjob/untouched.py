"""The scripts of benchmarks/jobs as launches: untouched, or with phases of their own."""

from __future__ import annotations

from collections.abc import Iterable

from jobs.catalogue import FOLDER, JOBS

from anyjob.launch import Script

VARIANTS = ("untouched", "instrumented")
SLOW_JOBS = ("ddp", "fsdp2", "tensor_parallel", "pipeline")
"""the jobs in which a rank is made slower. All of them can be run with phases of their own"""
ENDLESS = 1_000_000
SMALL_JOB = 16
"""sequences of a microbatch over all ranks"""


def runnable(names: Iterable[str] | None = None) -> list[str]:
    """Return the names of the jobs whose packages are installed, of all or of `names`."""
    return [name for name in (names or JOBS) if not JOBS[name].missing]


def argv(name: str, variant: str, args: Iterable[str]) -> tuple[str, ...]:
    """Return the command of a job after the launcher's flags."""
    if variant == "instrumented":
        return (str(FOLDER / "instrumented.py"), name, *args)
    return (str(JOBS[name].script), *args)


def endless(name: str, variant: str, *, nodes: int, ranks_per_node: int) -> Script:
    """Return a job with steps of some 200 ms that goes on until it is ended. Few ranks get larger batches."""
    batch = SMALL_JOB // (nodes * ranks_per_node)
    return Script(
        name=name,
        argv=argv(name, variant, (*JOBS[name].load_args, "--batch", str(batch), "--steps", str(ENDLESS))),
        nodes=nodes,
        ranks_per_node=ranks_per_node,
    )


def short(name: str, steps: int) -> tuple[tuple[str, ...], int]:
    """Return the command of a job of so many steps of some 100 ms, and its ranks."""
    job = JOBS[name]
    return argv(name, "untouched", (*job.load_args, "--steps", str(steps))), job.ranks
