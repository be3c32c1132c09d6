"""Opens the GPUs of a machine for an agent that must join its job whatever the driver does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from pulsetrain.collectors.machine.gpu import NOT_INSTALLED, GpuSampler
from pulsetrain.collectors.machine.gpu_events import GpuEvents

log = structlog.get_logger()

LIMIT_S = 30.0
"""A driver without persistence mode starts one GPU after the other, some seconds for each"""
AGAIN_S = 60.0
"""between two tries"""


@dataclass(frozen=True, kw_only=True)
class OpenedGpus:
    """GPUs that answered. `complete`: all that this process may use have an identity."""

    sampler: GpuSampler
    identities: Sequence[dict[str, Any]]
    events: GpuEvents
    complete: bool


class _Try:
    """Asks the driver once, on a thread of its own. One that hangs is left behind."""

    def __init__(self, make: Callable[[], GpuSampler], began_s: float) -> None:
        self._make, self.began_s = make, began_s
        self.opened: OpenedGpus | None = None
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._run, name="open gpus", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.opened = _opened(self._make())
        except Exception as error:  # noqa: BLE001 - for who waits
            self.error = error


class GpuOpener:
    """Asks the driver for GPUs, again each minute until there are some. One thread may call it.

    `expected`: the machine has GPUs. Else, and where `make` gives a sampler without a binding, one try is
    enough. A try is late after `limit_s`.
    """

    def __init__(
        self,
        make: Callable[[], GpuSampler],
        *,
        expected: bool,
        limit_s: float = LIMIT_S,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make, self._expected, self._clock_s = make, expected, clock_s
        self._limit_s = limit_s
        self._try = _Try(make, clock_s())
        self._told = ""
        self.done = False

    def wait(self) -> None:
        """Wait for the first try, `limit_s` at most. Raises what `make` raises."""
        self._try.thread.join(self._limit_s)
        if self._try.error is not None:
            raise self._try.error

    @property
    def late_s(self) -> float:
        """How long the driver has not answered. 0: it has, or not for long."""
        waited_s = self._clock_s() - self._try.began_s
        return waited_s if self._try.thread.is_alive() and waited_s >= self._limit_s else 0.0

    def poll(self) -> OpenedGpus | None:
        """The GPUs, once. None: there are none yet. Never waits."""
        if self._try.thread.is_alive():
            if self.late_s:
                self._tell("the driver does not answer")
            return None
        opened = self._try.opened
        if opened is not None and not opened.sampler.blind:
            self.done = True
            return opened
        why = opened.sampler.blind if opened else str(self._try.error)
        self.done = not self._expected or why == NOT_INSTALLED
        if self._expected:
            self._tell(why)
        if not self.done and self._clock_s() - self._try.began_s >= AGAIN_S:
            self._try = _Try(self._make, self._clock_s())
        return None

    def _tell(self, why: str) -> None:
        """Log why GPUs are not watched, once for each reason."""
        if why != self._told:
            self._told = why
            log.error("gpus_not_watched", why=why, lacks="samples and Xids of GPUs")


def _opened(sampler: GpuSampler) -> OpenedGpus:
    identities = sampler.identities()
    complete = sampler.complete and len(identities) == sampler.count
    return OpenedGpus(sampler=sampler, identities=identities, events=sampler.events(), complete=complete)
