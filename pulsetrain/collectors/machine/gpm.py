"""What a GPU's engines do, through GPM: busy SMs, tensor operations and memory bandwidth.

`gpu_utilization_ratio` says only that some kernel runs, and a kernel that spins keeps it at 1. GPM counts in
hardware and takes no lock that a profiler needs. Hopper and later cards have it. Source: nvml.h (GPM).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

METRICS: Mapping[str, str] = MappingProxyType(
    {
        "gpu_sm_activity_ratio": "NVML_GPM_METRIC_SM_UTIL",
        "gpu_tensor_activity_ratio": "NVML_GPM_METRIC_ANY_TENSOR_UTIL",
        "gpu_memory_bandwidth_ratio": "NVML_GPM_METRIC_DRAM_BW_UTIL",
    }
)


_REFUSALS = ("NotSupported", "NoPermission", "InvalidArgument")


class GpuActivity:
    """Activity of GPUs between one look and the next. `nvml` is the binding."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._supported: dict[str, bool] = {}
        self._before: dict[str, Any] = {}
        self._spare: dict[str, Any] = {}

    def read(self, uuid: str, handle: Any) -> Iterator[tuple[str, float]]:
        """Metric and ratio since the last call. Nothing at the first call, and for a card without GPM.

        A card that refuses it once is not asked again. Raises `NVMLError` where the driver fails.
        """
        if not self._supports(uuid, handle):
            return
        try:
            yield from self._read(uuid, handle)
        except self._refusals:
            self._supported[uuid] = False

    def _read(self, uuid: str, handle: Any) -> Iterator[tuple[str, float]]:
        sample = self._spare.pop(uuid, None) or self._nvml.nvmlGpmSampleAlloc()
        try:
            self._nvml.nvmlGpmSampleGet(handle, sample)
        except Exception:
            self._spare[uuid] = sample  # the next call takes it: it would be lost
            raise
        before = self._before.get(uuid)
        self._before[uuid] = sample
        if before is None:
            return
        self._spare[uuid] = before
        yield from self._between(before, sample)

    @property
    def _refusals(self) -> tuple[type[Exception], ...]:
        """What the binding raises where a card has no GPM, as a part of one, or this process may not ask."""
        found = [getattr(self._nvml, f"NVMLError_{name}", None) for name in _REFUSALS]
        return tuple(error for error in found if error is not None)

    def _supports(self, uuid: str, handle: Any) -> bool:
        if uuid not in self._supported:
            nvml = self._nvml
            query = getattr(nvml, "nvmlGpmQueryDeviceSupport", None)
            try:
                self._supported[uuid] = bool(query and query(handle).isSupportedDevice)
            except (nvml.NVMLError_NotSupported, getattr(nvml, "NVMLError_FunctionNotFound", AttributeError)):
                self._supported[uuid] = False
        return self._supported[uuid]

    def _between(self, before: Any, after: Any) -> Iterator[tuple[str, float]]:
        nvml = self._nvml
        wanted = nvml.c_nvmlGpmMetricsGet_t()
        wanted.version, wanted.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(METRICS)
        wanted.sample1, wanted.sample2 = before, after
        for index, name in enumerate(METRICS.values()):
            wanted.metrics[index].metricId = getattr(nvml, name)
        nvml.nvmlGpmMetricsGet(wanted)
        for index, metric in enumerate(METRICS):
            if wanted.metrics[index].nvmlReturn == 0:
                yield metric, wanted.metrics[index].value / 100
