"""What a PCIe link promises, from trees of /sys and /proc."""

import pytest

from pulsetrain.diagnostics.pcie import PcieLink, address_of_gpu, encrypts_memory, link_of

ADDRESS = "0000:17:00.0"


@pytest.fixture
def device(tmp_path):
    def make(**files):
        folder = tmp_path / "bus" / "pci" / "devices" / ADDRESS
        folder.mkdir(parents=True)
        for name, text in files.items():
            (folder / name).write_text(text + "\n")
        return tmp_path

    return make


@pytest.mark.parametrize(
    ("speed", "width", "gigabytes"),
    [
        ("2.5 GT/s PCIe", 16, 4.0),
        ("5.0 GT/s PCIe", 8, 4.0),
        ("8.0 GT/s PCIe", 16, 15.8),
        ("16.0 GT/s PCIe", 16, 31.5),
        ("32.0 GT/s PCIe", 16, 63.0),
        ("64.0 GT/s PCIe", 16, 121.0),
    ],
)
def test_a_link_carries_what_its_speed_and_width_allow(device, speed, width, gigabytes):
    root = device(current_link_speed=speed, current_link_width=str(width), max_link_width="16", numa_node="1")
    link = link_of(ADDRESS, root)
    assert link.bytes_per_s / 1e9 == pytest.approx(gigabytes, abs=0.05)
    assert link.near == 1


def test_lanes_that_are_not_in_use_are_told():
    assert str(PcieLink(gt_per_s=32.0, width=8, device_width=16)) == "PCIe 32 GT/s x8 of x16"
    assert str(PcieLink(gt_per_s=8.0, width=16, device_width=16)) == "PCIe 8 GT/s x16"


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"current_link_speed": "Unknown", "current_link_width": "16"},
        {"current_link_speed": "3.0 GT/s", "current_link_width": "16"},
        {"current_link_speed": "16.0 GT/s PCIe", "current_link_width": "0"},
        {"current_link_speed": "16.0 GT/s PCIe", "current_link_width": "255"},
        {"current_link_speed": "16.0 GT/s PCIe"},
    ],
)
def test_a_link_that_says_nothing_of_use_promises_nothing(device, files):
    assert link_of(ADDRESS, device(**files)) is None


def test_without_an_address_there_is_no_link(device):
    assert link_of("", device()) is None


def test_the_driver_says_where_a_gpu_is(tmp_path):
    for address, uuid in ((ADDRESS, "GPU-1"), ("0000:18:00.0", "GPU-12")):
        folder = tmp_path / "driver" / "nvidia" / "gpus" / address
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t NVIDIA H100\nGPU UUID: \t {uuid}\nIRQ: 1\n")
    assert address_of_gpu("GPU-1", tmp_path) == ADDRESS
    assert address_of_gpu("GPU-12", tmp_path) == "0000:18:00.0"
    assert address_of_gpu("GPU-2", tmp_path) == ""


@pytest.mark.parametrize(
    ("flags", "encrypts"),
    [
        ("fpu sev sev_snp", False),
        ("fpu hypervisor sev_snp", True),
        ("tdx_guest", True),
        ("hypervisor", False),
    ],
)
def test_a_confidential_machine_is_known_by_its_processor(tmp_path, flags, encrypts):
    (tmp_path / "cpuinfo").write_text(f"model name : x\nflags : {flags}\n")
    assert encrypts_memory(tmp_path) is encrypts
