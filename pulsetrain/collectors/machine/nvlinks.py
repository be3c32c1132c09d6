"""The NVLinks of a GPU one by one: which of them has errors, and what each one carries.

Counters of all links together are read with each sample (`gpu.READS`). Where one of them rose, the links are
asked which it was. What each link carries is asked twice a minute, by one call. The device of a sample is
the GPU's UUID and the link, as GPU-1/nvlink3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pulsetrain.collectors.machine.samples import Sample
from pulsetrain.records.counters import Counter, counters

LINK_COUNT = 91  # NVML_FI_DEV_NVLINK_LINK_COUNT
TRAFFIC_NS = 30 * 10**9
MOST_LINKS = 36  # NVML_NVLINK_MAX_LINKS
SEPARATOR = "/nvlink"
_VALUES = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal"}  # nvmlValueType_t


def field_value(field: Any) -> float | None:
    """The number in a field value of nvml.h. None where NVML does not know it."""
    if field.nvmlReturn:
        return None
    return float(getattr(field.value, _VALUES.get(field.valueType, "ullVal")))


def metric_of_link(metric: str) -> str:
    """The name of a metric of one link, from that of all links of a GPU."""
    return metric.removeprefix("gpu_")


def link_of(device: str) -> tuple[str, str]:
    """The GPU's UUID and the number of the link, "" for the GPU itself.

    >>> link_of("GPU-1/nvlink3"), link_of("GPU-1")
    (('GPU-1', '3'), ('GPU-1', ''))
    """
    gpu, _, link = device.partition(SEPARATOR)
    return gpu, link


class NvlinkReader:
    """Reads single links. `nvml` is the binding."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        known = counters("nvlink")
        self._errors = {metric: c for metric, c in known.items() if c.by_link and c.reveals != "traffic"}
        self._traffic = [c for c in known.values() if c.reveals == "traffic"]
        self._links: dict[str, int] = {}
        self._totals: dict[tuple[str, str], float] = {}
        self._values: dict[tuple[str, str], float] = {}
        self._unsupported: set[tuple[str, str]] = set()
        self._traffic_ns: dict[str, int] = {}

    def read(self, uuid: str, handle: Any, totals: Mapping[str, float], now_ns: int) -> Iterator[Sample]:
        """Samples of the links of a GPU. `totals` are the newest values of all its links together.

        An error counter has a sample for each link at first, and then for each link where it changed. Raises
        what NVML raises.
        """
        links = self._count(uuid, handle)
        for metric, counter in self._errors.items() if links else ():
            total = totals.get(metric)
            if total is not None and total != self._totals.get((uuid, metric)):
                yield from self._errors_of(uuid, handle, counter, links)
                self._totals[uuid, metric] = total
        if links and now_ns - self._traffic_ns.get(uuid, -TRAFFIC_NS) >= TRAFFIC_NS:
            self._traffic_ns[uuid] = now_ns
            yield from self._traffic_of(uuid, handle, links)

    def _count(self, uuid: str, handle: Any) -> int:
        """How many links a GPU has. 0 where it has none, or the driver does not say."""
        if uuid not in self._links:
            (field,) = self._nvml.nvmlDeviceGetFieldValues(handle, [LINK_COUNT])
            self._links[uuid] = min(MOST_LINKS, int(field_value(field) or 0))
        return self._links[uuid]

    def _errors_of(self, uuid: str, handle: Any, counter: Counter, links: int) -> Iterator[Sample]:
        if (uuid, counter.metric) in self._unsupported:
            return
        for link in range(links):
            value = self._error(handle, counter, link)
            if value is None:  # the first link tells it for all of them
                self._unsupported.add((uuid, counter.metric))
                return
            device, metric = f"{uuid}{SEPARATOR}{link}", metric_of_link(counter.metric)
            if value != self._values.get((device, metric)):
                self._values[device, metric] = value
                yield device, metric, value

    def _error(self, handle: Any, counter: Counter, link: int) -> float | None:
        """An error counter of one link. None where the card does not have it."""
        how, _, number = counter.by_link.partition(" ")
        if how == "scope":
            (field,) = self._nvml.nvmlDeviceGetFieldValues(handle, [(int(counter.folder), link)])
            return field_value(field)
        absent = (self._nvml.NVMLError_NotSupported, AttributeError)
        try:
            return float(self._nvml.nvmlDeviceGetNvLinkErrorCounter(handle, link, int(number)))
        except absent:
            return None

    def _traffic_of(self, uuid: str, handle: Any, links: int) -> Iterator[Sample]:
        wanted = [(counter, link) for counter in self._traffic for link in range(links)]
        asked = [(int(counter.folder), link) for counter, link in wanted]
        fields = self._nvml.nvmlDeviceGetFieldValues(handle, asked)
        for (counter, link), field in zip(wanted, fields, strict=False):
            value = field_value(field)
            if value is not None:
                yield f"{uuid}{SEPARATOR}{link}", metric_of_link(counter.metric), value * counter.scale
