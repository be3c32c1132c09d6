"""Which rate a port has negotiated, from trees of /sys and /proc."""

import socket
from types import SimpleNamespace

import psutil
import pytest

from pulsetrain.diagnostics.port_speed import (
    in_virtual_machine,
    other_ports,
    speed_of_address,
    speed_of_interface,
)


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


def test_other_ports_are_interfaces_with_hardware_a_link_and_an_address(port, tmp_path, monkeypatch):
    addresses = {"eth0": "10.0.0.1", "eth1": "10.1.0.1", "eth2": "10.2.0.1", "eth3": "10.3.0.1"}
    addresses |= {"usb0": "10.4.0.1", "eth5": "fe80::1%eth5", "docker0": "172.17.0.1"}
    for name in addresses:
        (port(name=name, hardware=name != "docker0") / "operstate").write_text("up\n")
    (tmp_path / "class" / "net" / "eth2" / "operstate").write_text("down\n")
    (tmp_path / "class" / "net" / "eth3" / "master").mkdir()  # of a bond
    (tmp_path / "usb").mkdir()
    (tmp_path / "class" / "net" / "usb0" / "device" / "subsystem").symlink_to(tmp_path / "usb")
    found = {
        name: [SimpleNamespace(address=at, family=socket.AF_INET6 if "::" in at else socket.AF_INET)]
        for name, at in addresses.items()
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: found)
    assert other_ports("10.0.0.1", sys_root=tmp_path) == {"eth1": "10.1.0.1"}
