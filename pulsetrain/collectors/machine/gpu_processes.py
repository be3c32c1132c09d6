"""How much memory of GPUs each process has, as NVML says. A stuck driver is waited for only so long."""

from __future__ import annotations

import importlib
from threading import Thread
from typing import Any

LIMIT_S = 5.0


def memory_by_pid(nvml: Any = None, *, limit_s: float = LIMIT_S) -> dict[int, int]:
    """Bytes on all GPUs together, by pid. A process of which NVML does not know it is missing.

    NVML knows processes by the host's pids. In a container with pids of its own it may name others, or none.
    """
    found: dict[int, int] = {}
    thread = Thread(target=_ask, args=(nvml, found), name="gpu-memory", daemon=True)
    thread.start()
    thread.join(limit_s)
    return {} if thread.is_alive() else found


def _ask(nvml: Any, found: dict[int, int]) -> None:
    try:
        nvml = nvml or importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # noqa: BLE001 - no binding, or no driver, of which only the binding knows the errors
        return
    try:
        for index in range(nvml.nvmlDeviceGetCount()):
            for process in nvml.nvmlDeviceGetComputeRunningProcesses(nvml.nvmlDeviceGetHandleByIndex(index)):
                if process.usedGpuMemory is not None:
                    found[process.pid] = found.get(process.pid, 0) + process.usedGpuMemory
    except nvml.NVMLError:
        found.clear()  # a sum over some of the GPUs would be too small
    finally:
        nvml.nvmlShutdown()
