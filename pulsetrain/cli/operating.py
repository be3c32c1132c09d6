"""The operator for Kubernetes as a process."""

from __future__ import annotations

import os

import click

from pulsetrain.cli.interrupts import importing
from pulsetrain.cli.root import pulsetrain


@pulsetrain.command("operator")
def operator() -> None:
    """Run the operator for PulsetrainJobs of this namespace, in a pod of Kubernetes.

    It makes pods, standbys and the headless service of each job, and writes the job's status. It needs
    deploy/kubernetes/crd.yaml, and PULSETRAIN_TOKEN for the hubs of the jobs.

    Example: pulsetrain operator
    """
    with importing():
        from pulsetrain.core.log import configure
        from pulsetrain.hub.kubernetes.operator import run_operator

    configure()
    run_operator(dict(os.environ), lambda line: click.echo(line))
