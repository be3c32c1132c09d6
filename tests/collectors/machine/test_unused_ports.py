"""Which ports a job leaves alone, by the environment of its ranks."""

import pytest

from pulsetrain.collectors.machine.unused_ports import unused_ports
from tests.collectors.machine.test_interfaces import ROUTES

IB = ("mlx5_0/1", "mlx5_1/1", "mlx5_10/1")


@pytest.fixture
def machine(tmp_path):
    """`eth0` has the default route, `bond0` is made of `p0` and `p1`, and `ib0` is that of mlx5_0."""
    (tmp_path / "proc" / "net").mkdir(parents=True)
    (tmp_path / "proc" / "net" / "route").write_text(ROUTES)
    net, rdma = tmp_path / "sys" / "class" / "net", tmp_path / "sys" / "class" / "infiniband"
    for name in ("eth0", "p0", "p1", "ib0", "san0", "mgmt0"):
        (net / name / "device").mkdir(parents=True)
    for lower in ("p0", "p1"):
        (net / "bond0" / f"lower_{lower}").mkdir(parents=True)
    for port in IB:
        (rdma / port.replace("/", "/ports/")).mkdir(parents=True)
    (net / "ib0" / "device" / "infiniband" / "mlx5_0").mkdir(parents=True)
    return tmp_path


def unused(machine, in_use=(), **environ):
    return unused_ports(environ, in_use, sys_root=machine / "sys", proc=machine / "proc")


@pytest.mark.parametrize(
    "environ", [{}, {"NCCL_SOCKET_IFNAME": "^san"}, {"GLOO_SOCKET_IFNAME": "eth0"}, {"NCCL_IB_HCA": ""}]
)
def test_where_nothing_is_named_any_port_may_be_used(machine, environ):
    assert unused(machine, **environ) == set()


@pytest.mark.parametrize(
    ("named", "left"),
    [
        ("mlx5_0", {"mlx5_1/1", "mlx5_10/1"}),
        ("mlx5_1", {"mlx5_0/1"}),
        ("=mlx5_1:1", {"mlx5_0/1", "mlx5_10/1"}),
        ("mlx5_0:2", set(IB)),
        ("^=mlx5_1,mlx5_10", {"mlx5_1/1", "mlx5_10/1"}),
    ],
)
def test_nccl_names_the_rdma_ports_of_a_job(machine, named, left):
    assert unused(machine, NCCL_IB_HCA=named) == left


def test_an_interface_is_in_use_where_something_that_is_in_use_needs_it(machine):
    assert unused(machine, ["mgmt0"], NCCL_SOCKET_IFNAME="bond0") == {"san0"}
    assert unused(machine, NCCL_SOCKET_IFNAME="bond0") == {"san0", "mgmt0"}


def test_the_interface_of_a_card_without_an_rdma_port_in_use_is_not(machine):
    found = unused(machine, ["mgmt0"], NCCL_SOCKET_IFNAME="=p0", NCCL_IB_HCA="=mlx5_1")
    assert found == {"p1", "san0", "ib0", "mlx5_0/1", "mlx5_10/1"}


def on_bus(machine, bus, address, *ports):
    """Ports of one device, as links to its folder."""
    device = machine / "sys" / "devices" / address
    device.mkdir(parents=True)
    (machine / "sys" / "bus" / bus).mkdir(parents=True, exist_ok=True)
    (device / "subsystem").symlink_to(machine / "sys" / "bus" / bus)
    for port in ports:
        folder = machine / "sys" / "class" / port
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "device").symlink_to(device)


def test_an_interface_on_the_usb_bus_is_left_alone_unless_something_needs_it(machine):
    on_bus(machine, "usb", "1-14:2.0", "net/enxbmc")
    assert unused(machine) == {"enxbmc"}
    assert unused(machine, NCCL_SOCKET_IFNAME="enx") >= {"p0"}
    for needed in (unused(machine, ["enxbmc"]), unused(machine, NCCL_SOCKET_IFNAME="enx")):
        assert "enxbmc" not in needed


def test_a_card_all_of_whose_ports_are_unused_is_named_by_its_address(machine):
    on_bus(machine, "pci", "0000:5c:00.0", "infiniband/mlx5_1", "net/ib1")
    on_bus(machine, "pci", "0000:5d:00.0", "infiniband/mlx5_10", "net/ib10")
    found = unused(machine, NCCL_IB_HCA="=mlx5_10", NCCL_SOCKET_IFNAME="eth0")
    assert "0000:5c:00.0" in found
    assert "0000:5d:00.0" not in found
    assert "0000:5c:00.0" not in unused(machine, ["ib1"], NCCL_IB_HCA="=mlx5_10", NCCL_SOCKET_IFNAME="eth0")
