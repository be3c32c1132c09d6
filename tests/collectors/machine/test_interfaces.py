"""Which network interfaces count: hardware, default routes, the job's own choice, and a person's."""

import pytest

from pulsetrain.collectors.machine.interfaces import InterfaceChoice, default_routes

ROUTES = """Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0
old0\t00000000\t010200C0\t0002\t0\t0\t0\t00000000\t0\t0\t0
data\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
"""
ANY = "0" * 32
ROUTES6 = f"""{ANY} 00 {ANY} 00 {"fe80".ljust(32, "0")} 00000400 00000001 00000000 00000003 six0
{ANY} 00 {ANY} 00 {ANY} ffffffff 00000001 00000000 00200200 lo
{"fe80".ljust(32, "0")} 40 {ANY} 00 {ANY} 00000100 00000001 00000000 00000001 data
"""


@pytest.fixture
def machine(tmp_path):
    """A container: no hardware but `ib0`, a virtual `eth0` with the default route, `data` beside it."""
    (tmp_path / "proc" / "net").mkdir(parents=True)
    (tmp_path / "proc" / "net" / "route").write_text(ROUTES)
    for name in ("data", "data1", "docker0", "eth0", "ib0", "lo", "veth9"):
        (tmp_path / "net" / name).mkdir(parents=True)
    (tmp_path / "net" / "ib0" / "device").mkdir()
    return tmp_path


def counting(machine, listed=(), **environ):
    choice = InterfaceChoice.of(listed, environ, machine / "proc")
    return [device.name for device in choice.counting(sorted((machine / "net").iterdir()))]


def test_hardware_and_a_virtual_interface_with_the_default_route_count(machine):
    assert counting(machine) == ["eth0", "ib0"]


def test_default_routes_of_both_versions_are_known_where_they_are_up(machine):
    (machine / "proc" / "net" / "ipv6_route").write_text(ROUTES6)
    assert default_routes(machine / "proc") == {"eth0", "six0"}
    assert default_routes(machine / "nowhere") == set()


@pytest.mark.parametrize(
    ("environ", "more"),
    [
        ({"GLOO_SOCKET_IFNAME": "data"}, ["data", "data1"]),
        ({"NCCL_SOCKET_IFNAME": "=data"}, ["data"]),
        ({"NCCL_SOCKET_IFNAME": "=veth9,data"}, ["data", "veth9"]),
        ({"NCCL_SOCKET_IFNAME": "^data,lo"}, []),
        ({"NCCL_SOCKET_IFNAME": "lo, docker0"}, ["docker0"]),
    ],
)
def test_an_interface_that_the_job_chooses_counts(machine, environ, more):
    assert counting(machine, **environ) == sorted([*more, "eth0", "ib0"])


def test_a_listed_interface_counts_whatever_it_is(machine):
    assert counting(machine, ("veth9", "no-such")) == ["eth0", "ib0", "veth9"]


def test_files_with_rubbish_name_nothing(machine):
    (machine / "proc" / "net" / "route").write_text("Iface\neth0 00000000 x zz 0 0 0 00000000 0 0 0\n")
    assert counting(machine) == ["ib0"]
