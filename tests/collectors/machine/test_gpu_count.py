"""GPUs as the kernel shows them on the bus, and those that are visible."""

import pytest

from pulsetrain.collectors.machine.gpu_count import gpus_on_bus, visible_gpus


def test_gpus_on_the_bus_are_those_of_nvidia_that_are_no_switch_and_no_sound(tmp_path):
    devices = {
        "0000:18:00.0": ("0x10de", "0x030200"),
        "0000:18:00.1": ("0x10de", "0x040300"),
        "0000:05:00.0": ("0x10de", "0x068000"),
        "0000:03:00.0": ("0x1a03", "0x030000"),
    }
    for address, (vendor, kind) in devices.items():
        folder = tmp_path / "bus" / "pci" / "devices" / address
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "class").write_text(f"{kind}\n")
    assert gpus_on_bus(tmp_path) == ["0000:18:00.0"]
    assert gpus_on_bus(tmp_path / "absent") == []


@pytest.mark.parametrize(
    ("visible", "count"),
    [
        (None, 3),
        ("0,2", 2),
        (" 1 , 0 ", 2),
        ("", 0),
        ("-1", 0),
        ("0,-1,2", 1),
        ("0,3,1", 1),
        ("1,1", 0),
        ("GPU-5ebe9f43,GPU-8a1c", 2),
        ("MIG-1c9f,MIG-77aa", 1),
    ],
)
def test_gpus_are_those_that_are_visible(tmp_path, visible, count):
    for number in range(3):
        (tmp_path / str(number)).mkdir()
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert visible_gpus(environ, tmp_path) == count


def test_without_a_driver_those_count_that_are_named(tmp_path):
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "4,5"}, tmp_path / "none") == 2
    assert visible_gpus({}, tmp_path / "none") == 0
