"""Samples each GPU through NVML as rows of `metrics`. The device is the GPU's UUID, never its index.

NVML comes with the driver. Its Python binding (nvidia-ml-py) is optional. Without either the sampler is blind
and says why. A value that a card does not have is asked for once. A failed read is a missing sample. A card
that fell off the bus has one sample, `gpu_lost`. One that must be reset may answer nothing else, so that is
its recovery action. A call can hang inside a stuck driver, so sample in a thread of its own and watch
`gpu_probe_s`.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pulsetrain.collectors.machine.gpm import GpuActivity
from pulsetrain.collectors.machine.gpu_events import GpuEvents
from pulsetrain.collectors.machine.nvlinks import NvlinkReader, field_value
from pulsetrain.collectors.machine.samples import Sample, metrics
from pulsetrain.records.columns import Columns
from pulsetrain.records.counters import Counter, counters

ALL_LINKS = 0xFFFFFFFF  # scopeId UINT_MAX of nvml.h: all links of a GPU together. 0 is the first link alone

RECOVERY_ACTION = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
MUST_BE_RESET = 1.0  # what it says of a GPU that answers NVML_ERROR_RESET_REQUIRED

Read = Callable[[Any, Any], float]  # NVML module and device handle to a value in the metric's unit


def _ecc(kind: str) -> Read:
    def read(nvml: Any, handle: Any) -> float:
        return float(nvml.nvmlDeviceGetTotalEccErrors(handle, getattr(nvml, kind), nvml.NVML_VOLATILE_ECC))

    return read


def _clock(kind: str) -> Read:
    return lambda nvml, handle: nvml.nvmlDeviceGetClockInfo(handle, getattr(nvml, kind)) * 1e6


def _remapped(index: int) -> Read:
    return lambda nvml, handle: float(nvml.nvmlDeviceGetRemappedRows(handle)[index])


def _pcie(kind: str) -> Read:
    return lambda nvml, handle: (
        nvml.nvmlDeviceGetPcieThroughput(handle, getattr(nvml, kind)) * 1024.0  # KB/s over the last 20 ms
    )


def _reasons(nvml: Any, handle: Any) -> float:
    name = "nvmlDeviceGetCurrentClocksEventReasons"  # the throttle reasons of drivers before 535
    read = getattr(nvml, name, None) or nvml.nvmlDeviceGetCurrentClocksThrottleReasons
    return float(read(handle))


def _nvlink(counter: Counter) -> Read:
    """Read one field of all links together. A card without NVLink answers "not supported".

    The error counters before NVLink 5 are sums already. All else is of one link, unless all are asked for.
    """
    number = int(counter.folder)
    return _field((number, ALL_LINKS) if counter.by_link == "scope" else number, counter.scale)


def _field(wanted: int | tuple[int, int], scale: float = 1) -> Read:
    """Read one field of nvml.h, or one of its scopes."""

    def read(nvml: Any, handle: Any) -> float:
        (field,) = nvml.nvmlDeviceGetFieldValues(handle, [wanted])
        value = field_value(field)
        if value is None:
            raise AttributeError(f"field {wanted}")
        return value * scale

    return read


READS: dict[str, Read] = {
    **{metric: _nvlink(counter) for metric, counter in counters("nvlink").items()},
    "gpu_clock_event_reasons": _reasons,
    "gpu_sm_clock_hz": _clock("NVML_CLOCK_SM"),
    "gpu_memory_clock_hz": _clock("NVML_CLOCK_MEM"),
    "gpu_power_watts": lambda n, h: n.nvmlDeviceGetPowerUsage(h) / 1e3,
    "gpu_energy_joules": lambda n, h: n.nvmlDeviceGetTotalEnergyConsumption(h) / 1e3,
    "gpu_temperature_celsius": lambda n, h: float(n.nvmlDeviceGetTemperature(h, n.NVML_TEMPERATURE_GPU)),
    "gpu_utilization_ratio": lambda n, h: n.nvmlDeviceGetUtilizationRates(h).gpu / 100,
    "gpu_memory_activity_ratio": lambda n, h: n.nvmlDeviceGetUtilizationRates(h).memory / 100,
    "gpu_memory_used_bytes": lambda n, h: float(n.nvmlDeviceGetMemoryInfo(h).used),
    "gpu_memory_total_bytes": lambda n, h: float(n.nvmlDeviceGetMemoryInfo(h).total),
    "gpu_pcie_transmit_bytes_per_s": _pcie("NVML_PCIE_UTIL_TX_BYTES"),
    "gpu_pcie_receive_bytes_per_s": _pcie("NVML_PCIE_UTIL_RX_BYTES"),
    "gpu_pcie_generation": lambda n, h: float(n.nvmlDeviceGetCurrPcieLinkGeneration(h)),
    "gpu_pcie_generation_max": lambda n, h: float(n.nvmlDeviceGetMaxPcieLinkGeneration(h)),
    "gpu_pcie_width": lambda n, h: float(n.nvmlDeviceGetCurrPcieLinkWidth(h)),
    "gpu_pcie_width_max": lambda n, h: float(n.nvmlDeviceGetMaxPcieLinkWidth(h)),
    "gpu_pcie_replays_total": lambda n, h: float(n.nvmlDeviceGetPcieReplayCounter(h)),
    "gpu_ecc_corrected_total": _ecc("NVML_MEMORY_ERROR_TYPE_CORRECTED"),
    "gpu_ecc_uncorrected_total": _ecc("NVML_MEMORY_ERROR_TYPE_UNCORRECTED"),
    "gpu_remapped_rows_correctable_total": _remapped(0),
    "gpu_remapped_rows_uncorrectable_total": _remapped(1),
    "gpu_remapped_rows_pending": _remapped(2),
    "gpu_remapped_rows_failed": _remapped(3),
    "gpu_recovery_action": _field(RECOVERY_ACTION),
}
SENTINEL = 1 << 62  # "not supported" leaks out of drivers as a huge integer
LOST = "gpu_lost"
NOT_INSTALLED = "nvidia-ml-py is not installed"
FABRIC_COMPLETED = 3  # NVML_GPU_FABRIC_STATE_COMPLETED of nvml.h


class GpuSampler:
    """Samples every GPU of a machine. `nvml` is the binding. None: the installed one, if there is one.

    `root` is the root of the file system.
    """

    def __init__(self, *, node: str = "", nvml: Any = None, root: Path = Path("/")) -> None:
        self._node, self._root = node, root
        self._nvml = nvml
        self._unsupported: set[tuple[str, str]] = set()
        self._devices: list[tuple[str, Any]] = []
        self._indices: dict[str, int] = {}  # the driver's own, by UUID
        self.lost: list[int] = []  # indices of those that were lost when this began
        self._unread = 0  # GPUs that may be ours, of which the driver said nothing when this began
        self.failed_reads = 0
        self.blind = self._open()
        self._activity = GpuActivity(self._nvml)
        self._nvlinks = NvlinkReader(self._nvml)

    def _open(self) -> str:
        if self._nvml is None:
            try:
                self._nvml = importlib.import_module("pynvml")
            except ImportError:
                return NOT_INSTALLED
        try:
            self._nvml.nvmlInit()
            count = self._nvml.nvmlDeviceGetCount()
        except self._nvml.NVMLError as error:
            return f"NVML: {error}"
        for index in range(count):
            self._open_one(index)
        return "" if self._devices or self.lost else "NVML sees no GPU"

    def _open_one(self, index: int) -> None:
        """One that is lost by now has no name of its own. One that may not be read is left out."""
        try:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = _text(self._nvml.nvmlDeviceGetUUID(handle))
            self._devices.append((uuid, handle))
            self._indices[uuid] = index
        except _error(self._nvml, "NVMLError_GpuIsLost"):
            self.lost.append(index)
        except _error(self._nvml, "NVMLError_NoPermission"):
            self.failed_reads += 1  # it is another job's
        except self._nvml.NVMLError:
            self.failed_reads += 1
            self._unread += 1

    def identities(self) -> list[dict[str, Any]]:
        """Return index, UUID, PCI address and model of each GPU that answers.

        `serial`, `numa` (the memory node near the GPU) and `nvlink_domain` (cluster and clique
        of its NVLink fabric) are there where the driver knows them.
        """
        found = []
        for device in self._devices:
            with contextlib.suppress(self._nvml.NVMLError):
                found.append(self._identity(*device))
        return found

    def _identity(self, uuid: str, handle: Any) -> dict[str, Any]:
        pci = _text(self._nvml.nvmlDeviceGetPciInfo(handle).busId).lower()
        return {
            "index": self._indices[uuid],
            "uuid": uuid,
            "pci": pci,
            "model": _text(self._nvml.nvmlDeviceGetName(handle)),
            **self._known("serial", lambda: _text(self._nvml.nvmlDeviceGetSerial(handle))),
            **self._known("numa", lambda: self._numa(handle, pci)),
            **self._known("nvlink_domain", lambda: self._nvlink_domain(handle)),
        }

    def _known(self, name: str, read: Callable[[], Any]) -> dict[str, Any]:
        """One part of an identity. Empty where the driver or the card does not know it."""
        with contextlib.suppress(self._nvml.NVMLError, AttributeError):
            value = read()
            return {} if value is None else {name: value}
        return {}

    def _numa(self, handle: Any, pci: str) -> int | None:
        """The memory node by NVML, else by the kernel. None: the machine has only one."""
        with contextlib.suppress(self._nvml.NVMLError, AttributeError):
            return int(self._nvml.nvmlDeviceGetNumaNodeId(handle))
        file = self._root / "sys" / "bus" / "pci" / "devices" / pci[-12:] / "numa_node"
        try:
            node = int(file.read_text())
        except (OSError, ValueError):
            return None
        return node if node >= 0 else None

    def _nvlink_domain(self, handle: Any) -> str | None:
        """Cluster and clique of the NVLink fabric, None where the GPU has not joined one."""
        fabric = self._nvml.c_nvmlGpuFabricInfo_v2_t()
        self._nvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(fabric))
        if fabric.state != FABRIC_COMPLETED:
            return None
        return f"{bytes(fabric.clusterUuid).hex()}.{fabric.cliqueId}"

    def events(self) -> GpuEvents:
        """The Xids of these GPUs."""
        return GpuEvents(self._nvml, self._devices)

    @property
    def complete(self) -> bool:
        """Whether every GPU that this process may use had a UUID when this began."""
        return bool(self._devices) and not self.lost and not self._unread

    @property
    def count(self) -> int:
        """How many GPUs there are to sample."""
        return len(self._devices)

    def inventory(self, now_ns: int) -> Columns | None:
        """Return an event of kind `gpus` that lists `identities`. None while blind, or where NVML fails."""
        if self.blind:
            return None
        gpus = self.identities()
        if len(gpus) < len(self._devices):
            self.failed_reads += 1
            return None
        row = {"ts": now_ns, "node": self._node, "job": "", "attempt": -1, "rank": -1}
        event = {"kind": "gpus", "actor": "agent", "detail": json.dumps({"gpus": gpus})}
        return Columns.from_rows("events", [row | event])

    def sample(self, now_ns: int) -> Columns:
        """Return one batch of `metrics`, all stamped `now_ns` (UTC). Empty while blind."""
        rows = [(name_of_lost(index), LOST, 1.0) for index in self.lost]
        for uuid, handle in self._devices:
            began = time.monotonic()
            values = dict(self._values(uuid, handle))
            rows += [(uuid, name, value) for name, value in values.items()]
            rows += self._links(uuid, handle, values, now_ns)
            rows.append((uuid, "gpu_probe_s", time.monotonic() - began))
        return metrics(self._node, rows, now_ns)

    def _links(self, uuid: str, handle: Any, values: Mapping[str, float], now_ns: int) -> Iterator[Sample]:
        """Samples of single NVLinks. A GPU that is lost has none."""
        if values[LOST]:
            return
        try:
            yield from self._nvlinks.read(uuid, handle, values, now_ns)
        except AttributeError:  # an older binding
            return
        except self._nvml.NVMLError:
            self.failed_reads += 1

    def _values(self, uuid: str, handle: Any) -> Iterator[tuple[str, float]]:
        try:
            yield from self._present(uuid, handle)
        except _error(self._nvml, "NVMLError_GpuIsLost"):
            yield LOST, 1.0
        except _error(self._nvml, "NVMLError_ResetRequired"):
            yield LOST, 0.0
            yield "gpu_recovery_action", MUST_BE_RESET
        else:
            yield LOST, 0.0

    def _present(self, uuid: str, handle: Any) -> Iterator[tuple[str, float]]:
        """The values of a GPU. Raises where it is lost or must be reset."""
        nvml = self._nvml
        absent = (nvml.NVMLError_NotSupported, _error(nvml, "NVMLError_FunctionNotFound"), AttributeError)
        gone = (_error(nvml, "NVMLError_GpuIsLost"), _error(nvml, "NVMLError_ResetRequired"))
        for name, read in READS.items():
            if (uuid, name) in self._unsupported:
                continue
            try:
                value = float(read(nvml, handle))
            except absent:
                self._unsupported.add((uuid, name))
                continue
            except gone:
                raise
            except nvml.NVMLError:
                self.failed_reads += 1
                continue
            if value < SENTINEL:
                yield name, value
        try:
            yield from self._activity.read(uuid, handle)
        except gone:
            raise
        except nvml.NVMLError:
            self.failed_reads += 1


def name_of_lost(index: int) -> str:
    """What a GPU is called that has told no UUID. `index` is the driver's."""
    return f"GPU {index}"


class _Never(Exception):
    """Nothing raises it."""


def _error(nvml: Any, name: str) -> type[Exception]:
    """An exception of the binding. An older one may lack it."""
    error = getattr(nvml, name, _Never)
    return error if isinstance(error, type) and issubclass(error, Exception) else _Never


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
