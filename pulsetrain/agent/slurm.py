"""What Slurm tells a task about its place: the node, the job, how many nodes there are. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SlurmStep:
    """The step that srun has started this process in. "" and 0: Slurm does not say."""

    job: str = ""
    node: str = ""
    nodes: int = 0


def step_of(environ: Mapping[str, str]) -> SlurmStep:
    """What the environment of a task says. Nothing outside one: a batch script runs on one node of many.

    A job that is queued again keeps its number, so it is the same job to Pulsetrain.

    >>> task = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_JOB_NAME": "gpt", "SLURM_JOB_ID": "77"}
    >>> step_of({**task, "SLURMD_NODENAME": "n2", "SLURM_STEP_NUM_NODES": "4"})
    SlurmStep(job='gpt-77', node='n2', nodes=4)
    >>> step_of({"SLURM_JOB_ID": "77"})
    SlurmStep(job='', node='', nodes=0)
    """
    if not environ.get("SLURM_STEP_ID", "").isdecimal() or "SLURM_PROCID" not in environ:
        return SlurmStep()
    name, number = environ.get("SLURM_JOB_NAME", ""), environ.get("SLURM_JOB_ID", "")
    nodes = environ.get("SLURM_STEP_NUM_NODES", "")
    return SlurmStep(
        job=f"{name}-{number}" if name and number else "",
        node=environ.get("SLURMD_NODENAME", ""),
        nodes=int(nodes) if nodes.isdecimal() else 0,
    )
