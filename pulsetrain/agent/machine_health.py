"""The health of this machine: signs of trouble from samples, the kernel's log and the driver's events."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pulsetrain.agent.gpu_owners import gpu_owners, usable_gpus
from pulsetrain.agent.kernel_signs import KernelSigns
from pulsetrain.analytics.machines.hardware import address
from pulsetrain.collectors.machine.gpu_events import GpuEvents
from pulsetrain.collectors.machine.signs import SignTracker
from pulsetrain.collectors.machine.used_disks import UsedDisks
from pulsetrain.core.supervisor import LoopStatus, LoopThread
from pulsetrain.protocol.messages import GpuIdentity, HardwareSign
from pulsetrain.records.columns import Columns

WAIT_S = 30.0  # of one turn, so that the loop shows that it lives. An event ends it at once
STALE_AFTER_S = 4 * WAIT_S
LOST_S = 1.0  # between two waits while a GPU is lost: the driver answers each at once


class MachineHealth:
    """What the heartbeat says of the machine. Any thread may call it.

    `events` are waited for on a thread of their own, because a driver may hold it. Nothing is said of GPUs of
    other jobs: see `gpu_owners` for `environ`, `lost`, `complete` and `on_bus`. `unused` are ports that the
    job leaves alone. `disks` tells those that it uses. None: any may be.
    """

    def __init__(
        self,
        gpus: Iterable[Mapping[str, Any]] = (),
        events: GpuEvents | None = None,
        environ: Mapping[str, str] = MappingProxyType({}),
        unused: Collection[str] = (),
        *,
        lost: Collection[int] = (),
        complete: bool = False,
        on_bus: Collection[str] = (),
        disks: UsedDisks | None = None,
    ) -> None:
        self._environ, self._on_bus, self._disks = environ, on_bus, disks
        self._tracker = SignTracker(unused=unused)
        self._kernel = KernelSigns(self._tracker, unused=unused, disks=disks)
        self._thread = LoopThread("gpu_events", self.wait, stale_after_s=STALE_AFTER_S)
        self._started = False
        self._events: GpuEvents | None = None
        self.adopt(gpus, events, lost=lost, complete=complete)

    def adopt(
        self,
        gpus: Iterable[Mapping[str, Any]],
        events: GpuEvents | None = None,
        *,
        lost: Collection[int] = (),
        complete: bool = False,
    ) -> None:
        """Watch these GPUs from now on, instead of none."""
        known = list(gpus)
        self.identities: Sequence[GpuIdentity] = tuple(map(identity, known))
        self.usable: Sequence[str] = usable_gpus(known, self._environ)
        self._addresses = {gpu.uuid: address(gpu.pci) for gpu in self.identities if gpu.pci}
        self._tracker.set_owners(
            gpu_owners(known, self._environ, lost=lost, complete=complete, on_bus=self._on_bus)
        )
        if events is not None and not events.blind:
            self._events = events
            if self._started:
                self._thread.start()

    @property
    def loops(self) -> tuple[LoopStatus, ...]:
        """How the thread is. None where there are no events to wait for."""
        return (self._thread.status(),) if self._events else ()

    def start(self) -> None:
        """Begin to wait for events, where there can be any."""
        if self._disks is not None:
            self._disks.start()
        self._started = True
        if self._events:
            self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end. One that waits in the driver is left behind."""
        self._thread.stop(timeout_s=0.0)

    def observe(self, rows: Columns) -> None:
        """Look at rows of `metrics`, or at lines of the kernel's log."""
        if self._disks is not None:
            self._disks.look()
        if rows.record == "metrics":
            self._tracker.observe(rows)
        else:
            self._kernel.observe(rows)

    def gpus_silent(self, now_ns: int, for_s: float) -> None:
        """The driver has not answered for so long."""
        self._tracker.gpus_silent(now_ns, for_s)

    def gpus_answered(self) -> None:
        """The driver has answered, or may still do so in time. It has no GPUs yet."""
        self._tracker.gpus_answered()

    def signs(self, now_ns: int) -> tuple[HardwareSign, ...]:
        """The signs of trouble as of now."""
        return self._tracker.read(now_ns)

    def wait(self) -> float:
        """Wait for the next Xid and note it. The seconds until the next turn."""
        if self._events is None:
            return WAIT_S
        event = self._events.wait(WAIT_S)
        if event is None or event.lost:
            return LOST_S if event else 0.0
        if event.xid:
            device = self._addresses.get(event.uuid, event.uuid)
            self._tracker.happened("xid", device, event.ts_ns, code=event.xid)
        return 0.0


def identity(gpu: Mapping[str, Any]) -> GpuIdentity:
    """A GPU as `GpuSampler.identities` describes it, for the hub."""
    return GpuIdentity(
        uuid=str(gpu["uuid"]),
        pci=str(gpu.get("pci", "")),
        model=str(gpu.get("model", "")),
        serial=str(gpu.get("serial", "")),
        numa=int(gpu.get("numa", -1)),
        nvlink_domain=str(gpu.get("nvlink_domain", "")),
    )
