"""A job in an allocation of a real Slurm: how soon it trains on after an eviction, and after a lost machine.

The cluster and the job are those of `tests/deploy/test_slurm.py`: four nodes of which two are held back.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from shutil import which
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.agent.real_processes import until  # noqa: E402  # the tests need the root
from tests.deploy.slurm_cluster import NODES, PROGRAMS, Slurm  # noqa: E402
from tests.deploy.test_slurm import Job, evict, lose  # noqa: E402

Row = dict[str, Any]


def missing() -> str:
    """Why this cannot be measured here, "" where it can."""
    if os.geteuid() != 0:
        return "only root can start a Slurm of its own"
    absent = [program for program in PROGRAMS if which(program) is None]
    return f"not installed: {', '.join(absent)}; run deploy/test-services" if absent else ""


def run(folder: Path) -> Iterator[Row]:
    """One row: seconds from the fault to new steps."""
    for name in ("slurm", "job"):
        (folder / name).mkdir()
    with Slurm(folder / "slurm") as slurm:
        if not until(lambda: slurm.idle() == NODES, 60):
            raise TimeoutError("the nodes of Slurm are not idle in 60 s")
        time.sleep(2)  # a node refuses a job in the second in which its last one ended
        with Job(slurm, folder / "job", "--nodes", "4", steps=100_000, STANDBYS="2") as job:
            job.trains(60, 180)
            if not until(lambda: len(job.nodes("standby")) == 2, 120):
                raise TimeoutError("the nodes that were held back do not join in 120 s")
            evict(slurm, job, "fan failed")
            evict_s = job.recoveries()[-1]["total_ns"] / 1e9
            job.trains(job.ask()["step"] + 20)
            lose(slurm, job)
            lost_s = job.recoveries()[-1]["total_ns"] / 1e9
            (folder / "job" / "stop").touch()
    yield {"what": "slurm", "evict_s": round(evict_s, 2), "lost_node_s": round(lost_s, 2)}
