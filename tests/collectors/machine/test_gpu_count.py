"""GPUs as the kernel shows them on the bus."""

from pulsetrain.collectors.machine.gpu_count import gpus_on_bus


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
