"""GPU memory of processes, as NVML says it."""

import threading
from types import SimpleNamespace

import pytest

from pulsetrain.collectors.machine.gpu_processes import memory_by_pid


class Nvml:
    """Two GPUs. Process 7 uses both, and of process 9 the driver does not say how much it uses."""

    NVMLError = type("NVMLError", (Exception,), {})
    used = (((7, 100), (8, 5), (9, None)), ((7, 50),))
    lost = -1

    def nvmlInit(self): ...

    def nvmlShutdown(self): ...

    def nvmlDeviceGetCount(self):
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):
        if index == self.lost:
            raise self.NVMLError
        return index

    def nvmlDeviceGetComputeRunningProcesses(self, index):
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self.used[index]]


def test_memory_of_a_process_is_added_up_over_gpus_and_is_missing_where_it_is_not_known():
    assert memory_by_pid(Nvml()) == {7: 150, 8: 5}


@pytest.mark.parametrize("lost", [0, 1])
def test_a_gpu_that_does_not_answer_leaves_all_unknown(lost):
    nvml = Nvml()
    nvml.lost = lost
    assert memory_by_pid(nvml) == {}


def test_a_driver_that_is_stuck_is_not_waited_for():
    nvml, go = Nvml(), threading.Event()
    nvml.nvmlInit = lambda: go.wait(10)
    assert memory_by_pid(nvml, limit_s=0.01) == {}
    go.set()
