"""GPUs as NVML tells of them, by a binding that is made here; the real one on a machine with a GPU."""

from __future__ import annotations

import json
import types
from pathlib import Path

import pytest

from pulsetrain.collectors.machine.gpu import READS, GpuSampler


class NVMLError(Exception):
    pass


class NotSupported(NVMLError):
    pass


def binding(**broken):
    """A binding with one card; `broken` maps a function's name to what it raises."""
    calls: list[str] = []
    values = {
        "nvmlDeviceGetCount": 1,
        "nvmlDeviceGetHandleByIndex": "handle",
        "nvmlDeviceGetUUID": b"GPU-1",
        "nvmlDeviceGetName": "NVIDIA H200",
        "nvmlDeviceGetPciInfo": types.SimpleNamespace(busId=b"00000000:9B:00.0"),
        "nvmlDeviceGetCurrentClocksEventReasons": 0x8,
        "nvmlDeviceGetClockInfo": 1980,
        "nvmlDeviceGetPowerUsage": 345_000,
        "nvmlDeviceGetTotalEnergyConsumption": 1_000_000,
        "nvmlDeviceGetTemperature": 60,
        "nvmlDeviceGetUtilizationRates": types.SimpleNamespace(gpu=97, memory=40),
        "nvmlDeviceGetMemoryInfo": types.SimpleNamespace(used=10, total=20),
        "nvmlDeviceGetPcieThroughput": 1000,
        "nvmlDeviceGetCurrPcieLinkGeneration": 5,
        "nvmlDeviceGetMaxPcieLinkGeneration": 5,
        "nvmlDeviceGetCurrPcieLinkWidth": 16,
        "nvmlDeviceGetMaxPcieLinkWidth": 16,
        "nvmlDeviceGetPcieReplayCounter": 3,
        "nvmlDeviceGetTotalEccErrors": 0,
        "nvmlDeviceGetRemappedRows": (1, 0, 0, 0),
        "nvmlDeviceGetFieldValues": (
            types.SimpleNamespace(nvmlReturn=0, valueType=3, value=types.SimpleNamespace(ullVal=7)),
        ),
        "nvmlInit": None,
    }
    made = types.SimpleNamespace(
        NVMLError=NVMLError,
        NVMLError_NotSupported=NotSupported,
        NVML_VOLATILE_ECC=0,
        NVML_MEMORY_ERROR_TYPE_CORRECTED=0,
        NVML_MEMORY_ERROR_TYPE_UNCORRECTED=1,
        NVML_CLOCK_SM=1,
        NVML_CLOCK_MEM=2,
        NVML_TEMPERATURE_GPU=0,
        NVML_PCIE_UTIL_TX_BYTES=0,
        NVML_PCIE_UTIL_RX_BYTES=1,
        calls=calls,
    )

    def answering(name, value):
        def call(*args):
            calls.append(name)
            if name in broken:
                raise broken[name]
            return value

        return call

    for name, value in values.items():
        setattr(made, name, answering(name, value))
    return made


def values(batch):
    return {r["name"]: r["value"] for r in batch.to_rows()}


def test_samples_are_in_the_units_of_their_names():
    sampler = GpuSampler(node="n1", nvml=binding())
    batch = sampler.sample(5)
    found = values(batch)
    assert sampler.blind == ""
    assert {device.split("/")[0] for device in batch.column("device").to_list()} == {"GPU-1"}
    assert {name for name in found if name.startswith("gpu_")} == {*READS, "gpu_lost", "gpu_probe_s"}
    assert (found["gpu_power_watts"], found["gpu_sm_clock_hz"]) == (345.0, 1.98e9)
    assert (found["gpu_nvlink_replays_total"], found["gpu_nvlink_transmit_bytes"]) == (7.0, 7168.0)
    assert (found["gpu_utilization_ratio"], found["gpu_pcie_receive_bytes_per_s"]) == (0.97, 1_024_000.0)
    assert sampler.identities()[0]["pci"] == "00000000:9b:00.0"


def test_what_a_card_does_not_have_is_asked_for_once():
    nvml = binding(nvmlDeviceGetRemappedRows=NotSupported())
    sampler = GpuSampler(nvml=nvml)
    for _ in range(3):
        assert "gpu_remapped_rows_pending" not in values(sampler.sample(1))
    assert nvml.calls.count("nvmlDeviceGetRemappedRows") == 4


def test_a_card_without_nvlink_has_no_sample_of_it():
    nvml = binding()
    nvml.nvmlDeviceGetFieldValues = lambda handle, fields: [types.SimpleNamespace(nvmlReturn=3)]
    found = values(GpuSampler(nvml=nvml).sample(1))
    assert not [name for name in found if "nvlink" in name]


def test_a_failed_read_is_missing_and_tried_again():
    nvml = binding(nvmlDeviceGetPowerUsage=NVMLError("GPU is lost"))
    sampler = GpuSampler(nvml=nvml)
    for _ in range(3):
        assert "gpu_power_watts" not in values(sampler.sample(1))
    assert sampler.failed_reads == 3
    assert nvml.calls.count("nvmlDeviceGetPowerUsage") == 3


def test_without_driver_or_card_it_is_blind_and_says_why():
    lost = GpuSampler(nvml=binding(nvmlInit=NVMLError("Driver Not Loaded")))
    assert lost.blind == "NVML: Driver Not Loaded"
    assert lost.sample(1).num_rows == 0


def test_an_older_driver_calls_the_reasons_by_another_name():
    nvml = binding()
    nvml.nvmlDeviceGetCurrentClocksThrottleReasons = nvml.nvmlDeviceGetCurrentClocksEventReasons
    del nvml.nvmlDeviceGetCurrentClocksEventReasons
    assert values(GpuSampler(nvml=nvml).sample(1))["gpu_clock_event_reasons"] == 8.0


@pytest.mark.gpu
def test_a_real_gpu_is_sampled():
    pytest.importorskip("pynvml")
    if not Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has no NVIDIA driver")
    sampler = GpuSampler()
    assert sampler.blind == ""
    found = values(sampler.sample(1))
    assert found["gpu_memory_total_bytes"] > 1e9
    assert 0 <= found["gpu_utilization_ratio"] <= 1
    assert found["gpu_probe_s"] < 1


def test_the_agent_lists_its_gpus_with_their_models_once():
    listed = GpuSampler(node="n1", nvml=binding()).inventory(7)
    (row,) = listed.to_rows()
    assert (row["kind"], row["node"], row["ts"]) == ("gpus", "n1", 7)
    (gpu,) = json.loads(row["detail"])["gpus"]
    assert (gpu["uuid"], gpu["model"]) == ("GPU-1", "NVIDIA H200")


def test_a_driver_that_does_not_answer_lists_nothing_and_is_asked_again():
    sampler = GpuSampler(node="n1", nvml=binding(nvmlDeviceGetName=NVMLError("lost")))
    assert sampler.inventory(7) is None
    assert sampler.failed_reads == 1
    assert GpuSampler(nvml=binding(nvmlInit=NVMLError("no driver"))).inventory(7) is None
