"""Which scheduler a configuration means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from pulsetrain.core.errors import ConfigError
from pulsetrain.hub.kubernetes.api import KubernetesApi
from pulsetrain.hub.kubernetes.scheduler import KubernetesScheduler
from pulsetrain.hub.slurm_scheduler import SlurmScheduler
from pulsetrain.protocol.kubernetes_access import find_api
from pulsetrain.recovery.scheduler import (
    KUBERNETES,
    NONE,
    SLURM,
    NoScheduler,
    Scheduler,
    SchedulerConfig,
    SchedulerRequests,
)

Make = Callable[[SchedulerConfig, Mapping[str, str]], Scheduler]

SCHEDULERS: Mapping[str, Make] = {
    NONE: lambda config, environ: NoScheduler(),
    SLURM: SlurmScheduler,
    KUBERNETES: lambda config, environ: KubernetesScheduler(
        config, KubernetesApi(find_api(environ), timeout_s=config.timeout_s)
    ),
}


def requests_to(config: SchedulerConfig, environ: Mapping[str, str]) -> SchedulerRequests:
    """The scheduler of `[scheduler] kind`. Raises `ConfigError` for a template that is not there, and
    `UsageError` where there is no Kubernetes API."""
    if config.template and not Path(config.template).is_file():
        raise ConfigError(f"scheduler.template = {config.template!r}: no such file")
    return SchedulerRequests(SCHEDULERS[config.kind](config, environ), config)
