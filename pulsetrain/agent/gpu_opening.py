"""Opens the GPUs of a machine for an agent that must join its job whatever the driver does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from pulsetrain.collectors.machine.gpu import GpuSampler
from pulsetrain.collectors.machine.gpu_events import GpuEvents

log = structlog.get_logger()

LIMIT_S = 30.0
"""A driver without persistence mode starts one GPU after the other, some seconds for each"""


@dataclass(frozen=True, kw_only=True)
class OpenedGpus:
    """GPUs that answered. `complete`: all that this process may use have an identity."""

    sampler: GpuSampler
    identities: Sequence[dict[str, Any]]
    events: GpuEvents
    complete: bool


def open_gpus(make: Callable[[], GpuSampler], limit_s: float = LIMIT_S) -> OpenedGpus | None:
    """The GPUs of this machine, None where the driver does not answer in time.

    A thread of its own asks the driver. One that hangs is left behind. Raises what `make` raises.
    """
    opened: list[OpenedGpus] = []
    failed: list[Exception] = []

    def run() -> None:
        try:
            opened.append(_opened(make()))
        except Exception as error:  # noqa: BLE001 - raised again by who waits
            failed.append(error)

    thread = threading.Thread(target=run, name="open gpus", daemon=True)
    thread.start()
    thread.join(limit_s)
    if failed:
        raise failed[0]
    if not opened:
        log.error("gpu_driver_silent", waited_s=limit_s, lacks="samples and Xids of GPUs until a new start")
    return opened[0] if opened else None


def _opened(sampler: GpuSampler) -> OpenedGpus:
    identities = sampler.identities()
    complete = sampler.complete and len(identities) == sampler.count
    return OpenedGpus(sampler=sampler, identities=identities, events=sampler.events(), complete=complete)
