"""Tells a job's GPUs from those of other jobs, by what the driver, the bus and CUDA_VISIBLE_DEVICES say."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import takewhile
from typing import Any

from pulsetrain.analytics.machines.hardware import address
from pulsetrain.collectors.machine.gpu import name_of_lost
from pulsetrain.collectors.machine.gpu_owners import GpuOwners
from pulsetrain.collectors.machine.gpu_settings import is_visible

Gpus = Sequence[Mapping[str, Any]]
"""As `GpuSampler.identities` describes them"""


def gpu_owners(
    gpus: Gpus,
    environ: Mapping[str, str],
    *,
    lost: Collection[int] = (),
    complete: bool = False,
    on_bus: Collection[str] = (),
) -> GpuOwners:
    """Whose the GPUs are. Ranks have `environ`: GPUs that it hides from them are those of other jobs.

    `complete`: `gpus` are all that this process may use. `on_bus` are the addresses of all GPUs of the
    machine. `lost` are the driver's indices of GPUs that had no UUID any more.
    """
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    named = None if visible is None else _names(visible)
    if named == []:
        return GpuOwners(foreign=_called(gpus), usable=frozenset(), others=True)
    total = max(len(on_bus), len(gpus))
    fewer = named is not None and (len(named) < total or (total > 1 and any("MIG-" in n for n in named)))
    hidden = _foreign(gpus, environ)
    foreign = _called(hidden) | _foreign_lost(gpus, lost, environ)
    told = _visible(gpus, environ) is not None or not fewer
    own = _called(gpus) | {name_of_lost(index) for index in lost} if told else frozenset()
    usable = _all_addresses(gpus) if complete else None
    more = usable is not None and any(address(pci) not in usable for pci in on_bus)
    return GpuOwners(
        foreign=foreign,
        own=own - foreign,
        usable=usable,
        doubtful=fewer,
        others=bool(foreign) or fewer or more,
    )


def usable_gpus(gpus: Gpus, environ: Mapping[str, str]) -> list[str]:
    """UUIDs of the GPUs that ranks may use. None where that cannot be told."""
    visible, hidden = environ.get("CUDA_VISIBLE_DEVICES"), _foreign(gpus, environ)
    usable = [str(gpu["uuid"]) for gpu in gpus if gpu not in hidden]
    named = len(usable) if visible is None else len([name for name in visible.split(",") if name.strip()])
    return usable if len(usable) == named else []


def _names(visible: str) -> list[str]:
    """What CUDA_VISIBLE_DEVICES names. The first that is no name of a GPU, such as -1, ends the list."""
    parts = [part.strip() for part in visible.split(",")]
    return list(takewhile(lambda name: name.isdigit() or name.startswith(("GPU-", "MIG-")), parts))


def _called(gpus: Gpus) -> frozenset[str]:
    """UUIDs and PCI addresses."""
    uuids = {str(gpu["uuid"]) for gpu in gpus}
    return frozenset(uuids | {address(gpu["pci"]) for gpu in gpus if gpu.get("pci")})


def _foreign(gpus: Gpus, environ: Mapping[str, str]) -> list[Mapping[str, Any]]:
    """GPUs that ranks do not see. None where that cannot be told.

    CUDA counts GPUs of different models in an order of its own, unless CUDA_DEVICE_ORDER is PCI_BUS_ID. Names
    by UUID are sure. A part of a GPU (MIG) is named by a UUID of its own.
    """
    visible = _visible(gpus, environ)
    if visible is None:
        return []
    return [gpu for gpu in gpus if not is_visible(int(gpu["index"]), str(gpu["uuid"]), visible)]


def _foreign_lost(gpus: Gpus, lost: Collection[int], environ: Mapping[str, str]) -> set[str]:
    """What lost GPUs are called that ranks do not see. None where a UUID may be that of a lost one."""
    visible = _visible(gpus, environ)
    named = [name.strip() for name in (visible or "").split(",") if name.strip().startswith("GPU-")]
    unknown = [name for name in named if not any(str(gpu["uuid"]).startswith(name) for gpu in gpus)]
    if visible is None or unknown:
        return set()
    return {name_of_lost(index) for index in lost if not is_visible(index, "", visible)}


def _visible(gpus: Gpus, environ: Mapping[str, str]) -> str | None:
    """What CUDA_VISIBLE_DEVICES says, None where it does not tell which of these GPUs it names."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or "MIG-" in visible:
        return None
    alike = len({gpu.get("model") for gpu in gpus}) < 2
    by_uuid = all(name.startswith("GPU-") for name in _names(visible))
    return visible if alike or by_uuid or environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" else None


def _all_addresses(gpus: Gpus) -> frozenset[str] | None:
    """PCI addresses of some GPUs. None where one has none."""
    addresses = {address(gpu["pci"]) for gpu in gpus if gpu.get("pci")}
    return frozenset(addresses) if addresses and len(addresses) == len(gpus) else None
