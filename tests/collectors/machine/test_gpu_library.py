"""GPUs through NVIDIA's binding and a C library of our own: the calls are real, the cards are not."""

import os
import subprocess
import sys
import threading
import time

import pytest

from pulsetrain.collectors.machine.gpu import READS, GpuSampler
from tests.nvml.library import TestDriver
from tests.repository import ROOT

pytest.importorskip("pynvml")


@pytest.fixture
def driver(tmp_path, monkeypatch):
    driver = TestDriver(tmp_path / "state", gpus=2)
    driver.bind(monkeypatch)
    return driver


def values(sampler, uuid):
    sampler.sample(1)
    return {r["name"]: r["value"] for r in sampler.sample(2).to_rows() if r["device"] == uuid}


def test_every_value_comes_through_the_binding_in_the_unit_of_its_name(driver):
    sampler = GpuSampler(node="n")
    found = values(sampler, "GPU-00")
    assert sampler.blind == ""
    assert {*READS} <= {*found}
    assert (found["gpu_power_watts"], found["gpu_sm_clock_hz"]) == (345.0, 1.98e9)
    assert (found["gpu_pcie_width"], found["gpu_nvlink_transmit_bytes"]) == (16.0, 18 * 1024.0)
    activity = ("gpu_sm_activity_ratio", "gpu_tensor_activity_ratio", "gpu_memory_bandwidth_ratio")
    assert [found[name] for name in activity] == [0.81, 0.52, 0.33]
    assert (found["gpu_lost"], sampler.failed_reads) == (0.0, 0)


def test_a_change_in_the_driver_is_in_the_next_sample(driver):
    sampler = GpuSampler()
    driver.set(1, event_reasons=0x40, ecc_uncorrected=2, pcie_width=8, rows_failed=1)
    found = values(sampler, "GPU-01")
    assert found["gpu_clock_event_reasons"] == 0x40
    assert (found["gpu_ecc_uncorrected_total"], found["gpu_pcie_width"]) == (2.0, 8.0)
    assert found["gpu_remapped_rows_failed"] == 1.0
    assert values(sampler, "GPU-00")["gpu_pcie_width"] == 16.0


def test_what_a_card_lacks_is_missing_and_never_zero(driver):
    lacking = {"numa": None, "fabric_state": None, "ecc_corrected": None, "gpm_sm": None}
    driver.set(0, nvlink_replays=None, gpm_tensor=None, **lacking)
    driver.set(1, gpm_tensor=None)
    driver.name(0, serial="")
    sampler = GpuSampler(root=ROOT)
    found = values(sampler, "GPU-00")
    assert not {n for n in found if "activity_ratio" in n and n != "gpu_memory_activity_ratio"}
    assert not {"gpu_ecc_corrected_total", "gpu_nvlink_replays_total"} & {*found}
    assert "gpu_nvlink_recoveries_total" in found
    assert "gpu_tensor_activity_ratio" not in values(sampler, "GPU-01")
    assert "gpu_sm_activity_ratio" in values(sampler, "GPU-01")
    assert not {"serial", "numa", "nvlink_domain"} & {*sampler.identities()[0]}


def test_identity_is_uuid_serial_address_memory_node_and_fabric(driver):
    driver.set(1, fabric_state=2)
    first, second = GpuSampler().identities()
    assert (first["uuid"], first["serial"], first["pci"]) == ("GPU-00", "165023000", "00000000:18:00.0")
    assert (first["numa"], first["nvlink_domain"]) == (1, "0123456789abcdef" * 2 + ".4")
    assert "nvlink_domain" not in second  # its fabric is not set up yet


def test_the_memory_node_comes_from_the_kernel_where_nvml_does_not_know(driver, tmp_path):
    folder = tmp_path / "sys/bus/pci/devices/0000:18:00.0"
    folder.mkdir(parents=True)
    (folder / "numa_node").write_text("3\n")
    driver.set(0, numa=None)
    assert GpuSampler(root=tmp_path).identities()[0]["numa"] == 3
    (folder / "numa_node").write_text("-1\n")
    assert "numa" not in GpuSampler(root=tmp_path).identities()[0]


def test_a_gpu_that_is_lost_while_it_is_held_says_so_and_nothing_else(driver):
    sampler = GpuSampler()
    values(sampler, "GPU-00")
    driver.lose(0)
    found = values(sampler, "GPU-00")
    assert {*found} == {"gpu_lost", "gpu_probe_s"}
    assert found["gpu_lost"] == 1.0
    assert values(sampler, "GPU-01")["gpu_lost"] == 0.0


def test_a_gpu_that_must_be_reset_says_so_though_it_answers_nothing_else(driver):
    sampler = GpuSampler()
    values(sampler, "GPU-00")
    driver.set(0, needs_reset=1)
    found = values(sampler, "GPU-00")
    assert (found["gpu_lost"], found["gpu_recovery_action"]) == (0.0, 1.0)
    assert {*found} == {"gpu_lost", "gpu_recovery_action", "gpu_probe_s"}
    driver.set(0, needs_reset=0)
    assert values(sampler, "GPU-00")["gpu_recovery_action"] == 0.0


def test_an_xid_wakes_the_reader(driver):
    events = GpuSampler().events()
    assert events.blind == ""
    assert events.wait(0.0) is None
    raised = []
    timer = threading.Timer(0.05, lambda: (raised.append(time.monotonic()), driver.raise_event(1, 79)))
    timer.start()
    event = events.wait(10.0)
    assert (event.uuid, event.xid, event.lost) == ("GPU-01", 79, False)
    assert time.monotonic() - raised[0] < 1.0
    driver.raise_event(0, 1, kind=0x1)  # a corrected memory error: no Xid
    assert events.wait(0.0) is None
    timer.join()


def test_a_card_that_reports_no_xids_is_blind(driver):
    driver.set(0, event_types=0)
    driver.set(1, event_types=None)
    assert GpuSampler().events().blind == "no GPU reports Xids"


def test_without_the_driver_the_library_says_why(driver):
    driver.unload()
    sampler = GpuSampler()
    assert sampler.blind == "NVML: Driver Not Loaded"
    assert sampler.events().blind == "NVML sees no GPU"


@pytest.mark.integration
def test_another_process_finds_the_library_as_it_finds_the_real_one(tmp_path):
    driver = TestDriver(tmp_path / "state")
    code = "from pulsetrain.collectors.machine.gpu import GpuSampler; print(GpuSampler().identities())"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | driver.environ,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert "'uuid': 'GPU-00'" in ran.stdout, ran.stderr
