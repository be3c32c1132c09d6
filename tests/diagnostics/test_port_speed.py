"""Which rate a port has negotiated, from trees of /sys and /proc."""

import psutil
import pytest

from pulsetrain.diagnostics.port_speed import in_virtual_machine, speed_of_address, speed_of_interface


@pytest.fixture
def port(tmp_path):
    def make(speed="100000\n", *, hardware=True, name="eth0"):
        folder = tmp_path / "class" / "net" / name
        folder.mkdir(parents=True, exist_ok=True)
        if speed is not None:
            (folder / "speed").write_text(speed)
        if hardware:
            (folder / "device").mkdir(exist_ok=True)
        return folder

    return make


@pytest.mark.parametrize(
    ("speed", "bits_per_s"), [("100000\n", 1e11), ("-1\n", 0.0), ("", 0.0), ("fast\n", 0.0), (None, 0.0)]
)
def test_what_the_kernel_says_counts_if_it_says_something(port, speed, bits_per_s):
    assert speed_of_interface(port(speed)) == bits_per_s


def test_a_virtual_interface_has_no_rate_whatever_it_says(port):
    assert speed_of_interface(port("10000\n", hardware=False)) == 0.0


@pytest.mark.parametrize(("flags", "bits_per_s"), [("fpu hypervisor", 0.0), ("fpu nohypervisor", 1e11)])
def test_the_port_of_an_address_counts_outside_of_virtual_machines(port, tmp_path, flags, bits_per_s):
    for name in psutil.net_if_addrs():
        port(name=name)
    (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags\t\t: {flags} sse\n")
    assert speed_of_address("127.0.0.1", sys_root=tmp_path, proc=tmp_path) == bits_per_s
    assert speed_of_address("192.0.2.1", sys_root=tmp_path, proc=tmp_path) == 0.0


def test_xen_says_so_in_a_file(tmp_path):
    assert not in_virtual_machine(tmp_path, tmp_path)
    (tmp_path / "hypervisor").mkdir()
    (tmp_path / "hypervisor" / "type").write_text("xen\n")
    assert in_virtual_machine(tmp_path, tmp_path)
