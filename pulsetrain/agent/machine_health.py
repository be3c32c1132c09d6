"""The health of this machine: signs of trouble from samples, the kernel's log and the driver's events."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pulsetrain.agent.kernel_signs import KernelSigns
from pulsetrain.analytics.machines.hardware import address
from pulsetrain.collectors.machine.gpu import name_of_lost
from pulsetrain.collectors.machine.gpu_events import GpuEvents
from pulsetrain.collectors.machine.gpu_settings import is_visible
from pulsetrain.collectors.machine.signs import SignTracker
from pulsetrain.core.supervisor import LoopStatus, LoopThread
from pulsetrain.protocol.messages import GpuIdentity, HardwareSign
from pulsetrain.records.columns import Columns

WAIT_S = 30.0  # of one turn, so that the loop shows that it lives. An event ends it at once
STALE_AFTER_S = 4 * WAIT_S
LOST_S = 1.0  # between two waits while a GPU is lost: the driver answers each at once


class MachineHealth:
    """What the heartbeat says of the machine. Any thread may call it.

    `events` are waited for on a thread of their own, because a driver may hold it. Ranks have `environ`: GPUs
    that it hides from them are those of other jobs, and nothing is said of them. `complete`: `gpus` are all
    that this process may use, so an Xid of another address is of another job. `on_bus` are the addresses of
    all GPUs of the machine. `lost` are the driver's indices of GPUs that had no UUID any more. `unused`
    are ports that the job leaves alone.
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
    ) -> None:
        known = list(gpus)
        self.identities: Sequence[GpuIdentity] = tuple(map(identity, known))
        self.usable: Sequence[str] = _usable(known, environ)
        self._addresses = {gpu.uuid: address(gpu.pci) for gpu in self.identities if gpu.pci}
        foreign = _foreign(known, environ) | _foreign_lost(known, lost, environ)
        ours = _all_addresses(known) if complete else None
        self._tracker = SignTracker(foreign, unused=unused, gpus=ours)
        others = ours is not None and any(address(pci) not in ours for pci in on_bus)
        own = [at for at in self._addresses.values() if at not in foreign]
        self._kernel = KernelSigns(self._tracker, unused=unused, shared=bool(foreign) or others, own=own)
        self._events = None if events is None or events.blind else events
        self._thread = LoopThread("gpu_events", self.wait, stale_after_s=STALE_AFTER_S)

    @property
    def loops(self) -> tuple[LoopStatus, ...]:
        """How the thread is. None where there are no events to wait for."""
        return (self._thread.status(),) if self._events else ()

    def start(self) -> None:
        """Begin to wait for events, where there can be any."""
        if self._events:
            self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end. One that waits in the driver is left behind."""
        self._thread.stop(timeout_s=0.0)

    def observe(self, rows: Columns) -> None:
        """Look at rows of `metrics`, or at lines of the kernel's log."""
        if rows.record == "metrics":
            self._tracker.observe(rows)
        else:
            self._kernel.observe(rows)

    def gpus_silent(self, now_ns: int, for_s: float) -> None:
        """The driver has not answered for so long, and nobody asks it again."""
        self._tracker.gpus_silent(now_ns, for_s)

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


def _foreign(gpus: Sequence[Mapping[str, Any]], environ: Mapping[str, str]) -> set[str]:
    """UUIDs and PCI addresses of GPUs that ranks do not see. None where that cannot be told.

    CUDA counts GPUs of different models in an order of its own, unless CUDA_DEVICE_ORDER is PCI_BUS_ID. A
    part of a GPU (MIG) is named by a UUID of its own.
    """
    visible = _visible(gpus, environ)
    if visible is None:
        return set()
    hidden = [gpu for gpu in gpus if not is_visible(int(gpu["index"]), str(gpu["uuid"]), visible)]
    return {str(gpu["uuid"]) for gpu in hidden} | {address(gpu["pci"]) for gpu in hidden if gpu.get("pci")}


def _foreign_lost(
    gpus: Sequence[Mapping[str, Any]], lost: Collection[int], environ: Mapping[str, str]
) -> set[str]:
    """What lost GPUs are called that ranks do not see. None where a UUID may be that of a lost one."""
    visible = _visible(gpus, environ)
    named = [name.strip() for name in (visible or "").split(",") if name.strip().startswith("GPU-")]
    unknown = [name for name in named if not any(str(gpu["uuid"]).startswith(name) for gpu in gpus)]
    if visible is None or unknown:
        return set()
    return {name_of_lost(index) for index in lost if not is_visible(index, "", visible)}


def _visible(gpus: Sequence[Mapping[str, Any]], environ: Mapping[str, str]) -> str | None:
    """What CUDA_VISIBLE_DEVICES says, None where it does not tell which of these GPUs it names."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    models = {gpu.get("model") for gpu in gpus}
    by_bus = len(models) < 2 or environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    return None if visible is None or "MIG-" in visible or not by_bus else visible


def _all_addresses(gpus: Sequence[Mapping[str, Any]]) -> set[str] | None:
    """PCI addresses of some GPUs. None where one has none."""
    addresses = {address(gpu["pci"]) for gpu in gpus if gpu.get("pci")}
    return addresses if addresses and len(addresses) == len(gpus) else None


def _usable(gpus: Sequence[Mapping[str, Any]], environ: Mapping[str, str]) -> list[str]:
    """UUIDs of the GPUs that ranks may use. None where that cannot be told."""
    visible, foreign = environ.get("CUDA_VISIBLE_DEVICES"), _foreign(gpus, environ)
    usable = [str(gpu["uuid"]) for gpu in gpus if str(gpu["uuid"]) not in foreign]
    named = len(usable) if visible is None else len([name for name in visible.split(",") if name.strip()])
    return usable if len(usable) == named else []


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
