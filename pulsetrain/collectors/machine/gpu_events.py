"""Xids as the driver reports them: a reader sleeps in the driver until one comes, so nothing is polled.

The kernel's log has them too, with more words, and needs a privilege that an agent may lack.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class GpuEvent:
    """One event of one GPU. `xid` is 0 where the GPU was lost while its events were waited for."""

    uuid: str
    xid: int
    ts_ns: int
    lost: bool = False


class GpuEvents:
    """The Xids of some GPUs. `devices` are UUIDs with the handles of `nvml`, the binding.

    `blind` says why no event can come, "" where one can.
    """

    def __init__(self, nvml: Any, devices: Sequence[tuple[str, Any]]) -> None:
        self._nvml = nvml
        self._uuids = {_address(handle): uuid for uuid, handle in devices}
        self._set: Any = None
        self.blind = "no GPU reports Xids" if devices else "NVML sees no GPU"
        if devices:
            self._register(devices)

    def _register(self, devices: Sequence[tuple[str, Any]]) -> None:
        nvml = self._nvml
        try:
            events = nvml.nvmlEventSetCreate()
        except nvml.NVMLError as error:
            self.blind = f"NVML: {error}"
            return
        for _, handle in devices:
            try:
                wanted = nvml.nvmlEventTypeXidCriticalError
                if nvml.nvmlDeviceGetSupportedEventTypes(handle) & wanted:
                    nvml.nvmlDeviceRegisterEvents(handle, wanted, events)
                    self._set, self.blind = events, ""
            except nvml.NVMLError:
                continue

    def wait(self, timeout_s: float) -> GpuEvent | None:
        """The next Xid, None where none came in time. Raises `NVMLError` where the driver fails."""
        nvml = self._nvml
        try:
            event = nvml.nvmlEventSetWait_v2(self._set, round(timeout_s * 1000))
        except nvml.NVMLError_Timeout:
            return None
        except nvml.NVMLError_GpuIsLost:
            return GpuEvent(uuid="", xid=0, ts_ns=time.time_ns(), lost=True)
        uuid = self._uuids.get(_address(event.device), "")
        return GpuEvent(uuid=uuid, xid=int(event.eventData), ts_ns=time.time_ns())


def _address(handle: Any) -> int:
    """What tells two device handles apart. The binding makes a new object for the same handle."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
