"""From one port of a machine to another one: when that is measurable, and what it says."""

import socket
from types import SimpleNamespace

import pytest

from pulsetrain.diagnostics import own_ports
from pulsetrain.diagnostics.own_ports import OwnPort, Sent, checks, judged, why_not

A, B = (OwnPort(name=name, address="192.0.2.1", bits_per_s=1e11) for name in ("eth0", "eth1"))
STREAM = 4e10


@pytest.fixture
def conf(tmp_path):
    def make(**settings):
        for name in ("all", "eth0", "eth1"):
            folder = tmp_path / "sys" / "net" / "ipv4" / "conf" / name
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "accept_local").write_text(f"{settings.get(f'{name}_accept_local', 0)}\n")
            (folder / "rp_filter").write_text(f"{settings.get(f'{name}_rp_filter', 0)}\n")
        return tmp_path

    return make


def test_as_linux_is_set_up_packets_from_own_addresses_are_dropped(conf):
    assert why_not(["eth0", "eth1"], conf()) == "net.ipv4.conf.eth0.accept_local is off"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"all_accept_local": 1}, ""),
        ({"eth0_accept_local": 1, "eth1_accept_local": 1}, ""),
        ({"eth0_accept_local": 1}, "net.ipv4.conf.eth1.accept_local is off"),
        ({"all_accept_local": 1, "eth1_rp_filter": 1}, "net.ipv4.conf.eth1.rp_filter is strict"),
        ({"all_accept_local": 1, "all_rp_filter": 1}, "net.ipv4.conf.eth0.rp_filter is strict"),
        ({"all_accept_local": 1, "all_rp_filter": 1, "eth0_rp_filter": 2, "eth1_rp_filter": 2}, ""),
    ],
)
def test_the_settings_of_all_ports_and_of_one_count(conf, settings, reason):
    assert why_not(["eth0", "eth1"], conf(**settings)) == reason


@pytest.mark.parametrize(
    ("gigabytes", "stream", "ok"),
    [(1.3, 4e10, True), (1.2, 4e10, False), (6.3, 4e11, True), (6.2, 4e11, False)],
)
def test_a_port_must_reach_half_of_its_rate_or_a_quarter_of_what_a_stream_reaches_here(gigabytes, stream, ok):
    sent = int(gigabytes * 1e9)
    check = judged(A, B, Sent(sent=sent, left=sent, arrived=sent, seconds=1.0), stream)
    assert (check.name, check.ok) == ("port_eth0_to_eth1", ok)


def test_ports_without_a_rate_have_no_limit():
    virtual = OwnPort(name="eth2", address="192.0.2.3")
    assert judged(A, virtual, Sent(sent=10, left=10, arrived=10, seconds=1.0), STREAM).limit is None


@pytest.mark.parametrize(("left", "arrived"), [(0, 0), (10**9, 0), (0, 10**9)])
def test_bytes_that_no_counter_saw_did_not_use_the_ports(left, arrived):
    check = judged(A, B, Sent(sent=10**9, left=left, arrived=arrived, seconds=0.1), STREAM)
    assert (check.ok, check.limit) == (True, None)
    assert check.detail == "not measurable: the bytes stayed inside the machine"


def test_what_could_not_be_sent_is_told_and_blames_no_port():
    check = judged(A, B, Sent(sent=0, left=0, arrived=0, seconds=0.0, error="timed out"), STREAM)
    assert (check.ok, check.detail) == (True, "not measurable: timed out")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with so many ports, each with hardware and an address."""

    def make(count):
        names = [f"eth{i}" for i in range(count)]
        for name in names:
            folder = tmp_path / "class" / "net" / name
            (folder / "device").mkdir(parents=True)
            (folder / "operstate").write_text("up\n")
            (folder / "speed").write_text("100000\n")
        address = SimpleNamespace(family=socket.AF_INET, address="192.0.2.1")
        addresses = {name: [address] for name in [*names, "lo"]}
        monkeypatch.setattr(own_ports.psutil, "net_if_addrs", lambda: addresses)
        return tmp_path

    return make


@pytest.mark.parametrize(("ports", "ways"), [(0, 0), (1, 0), (2, 2), (3, 6)])
def test_ports_meet_in_a_ring_and_where_the_kernel_keeps_packets_nothing_is_sent(machine, conf, ports, ways):
    found = checks(0.1, sys_root=machine(ports), proc=conf(eth2_accept_local=0))
    assert len(found) == ways
    assert all(c.ok and c.detail.startswith("not measurable: net.ipv4.conf.") for c in found)


def test_a_machine_that_cannot_send_to_itself_for_a_moment_has_not_failed(machine, conf, monkeypatch):
    def late(*_):
        raise TimeoutError("timed out")

    monkeypatch.setattr(own_ports, "_stream", late)
    found = checks(0.1, sys_root=machine(2), proc=conf(all_accept_local=1))
    assert [c.ok for c in found] == [True, True]
    assert {c.detail for c in found} == {"not measurable: it could not send to itself"}


def test_many_ports_that_do_not_reach_each_other_are_not_all_tried(machine, conf, monkeypatch):
    passed_s = 0.0

    def send(*_):
        nonlocal passed_s
        passed_s += own_ports.CONNECT_S
        return Sent(sent=0, left=0, arrived=0, seconds=0.0, error="timed out")

    monkeypatch.setattr(own_ports, "time", SimpleNamespace(monotonic=lambda: passed_s))
    monkeypatch.setattr(own_ports, "_send", send)
    monkeypatch.setattr(own_ports, "_own_stream", lambda seconds: STREAM)
    root, proc = machine(16), conf(all_accept_local=1)
    found = checks(0.1, sys_root=root, proc=proc)
    assert passed_s <= 0.1 + own_ports.SPARE_S + own_ports.CONNECT_S
    assert len(found) == 32
    assert all(c.ok for c in found)
    assert {c.detail for c in found} == {"not measurable: timed out", "not measurable: no time was left"}
