"""One TCP transfer over loopback."""

import os
import socket
import subprocess
import sys

import pytest

from pulsetrain.diagnostics.transfers import Sink, own_address, send

pytestmark = pytest.mark.integration


def test_a_transfer_says_how_fast_it_was_and_that_nothing_was_lost():
    sink = Sink("127.0.0.1")
    report = send("127.0.0.1", sink.port, seconds=0.1, source="127.0.0.1")
    sink.close()
    assert report.error == ""
    assert report.bits_per_s > 1e7
    assert 0 <= report.resent_share < 0.01


@pytest.mark.skipif(not socket.has_ipv6 or not own_address("::1"), reason="no IPv6 here")
@pytest.mark.parametrize(("sink_at", "to"), [("::1", "::1"), ("", "::1"), ("", "127.0.0.1")])
def test_a_transfer_goes_over_ipv6_too(sink_at, to):
    sink = Sink(sink_at)
    assert own_address(to) == to
    report = send(to, sink.port, seconds=0.05, source=to)
    sink.close()
    assert (report.error, report.bits_per_s > 0) == ("", True)


def test_an_address_that_no_interface_has_is_no_own_one():
    assert [own_address(address) for address in ("2001:db8::7", "192.0.2.7", "no.such.host.")] == [""] * 3


def test_nobody_there_is_an_error_in_one_line():
    sink = Sink("127.0.0.1")
    sink.close()
    report = send("127.0.0.1", sink.port, seconds=0.1)
    assert "127.0.0.1" in report.error
    assert report.bits_per_s == 0.0


def test_a_limit_on_the_rate_is_kept():
    sink = Sink("127.0.0.1")
    report = send("127.0.0.1", sink.port, seconds=0.4, bits_per_s=4e8)
    sink.close()
    assert 1e8 < report.bits_per_s < 6e8  # one window may hold a segment more


def test_a_device_that_does_not_lead_there_is_not_measured_and_blames_nobody():
    sink = Sink("127.0.0.1")
    try:
        found = send("127.0.0.1", sink.port, seconds=0.1, device="no-such-port")
    finally:
        sink.close()
    assert (found.error, found.bits_per_s) == ("", 0.0)
    assert "127.0.0.1: " in found.unmeasured


@pytest.fixture
def two_wires():
    """Two wires to a namespace, all four ends in one network. The second carries 20 Mbit/s."""
    tag, space = f"ptw{os.getpid() % 10000}", f"pt-wires-{os.getpid()}"
    commands = [f"ip netns add {space}", f"ip -n {space} link set lo up"]
    for i, address in enumerate(("10.213.9.1", "10.213.9.2")):
        commands += [
            f"ip link add {tag}{i} type veth peer name e{i} netns {space}",
            f"ip addr add {address}/24 dev {tag}{i}",
            f"ip link set {tag}{i} up",
            f"ip -n {space} addr add 10.213.9.1{i}/24 dev e{i}",
            f"ip -n {space} link set e{i} up",
        ]
    commands += [f"tc qdisc add dev {tag}1 root tbf rate 20mbit burst 16kb latency 100ms"]
    try:
        for command in commands:
            if subprocess.run(command.split(), capture_output=True, check=False).returncode:
                pytest.skip(f"needs root, ip and tc: {command}")
        yield tag, space
    finally:
        subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)
        for i in range(2):
            subprocess.run(["ip", "link", "del", f"{tag}{i}"], capture_output=True, check=False)


SINK = """
from pulsetrain.diagnostics.transfers import Sink
print(Sink("10.213.9.11", "e1").port, flush=True)
input()
"""


@pytest.mark.integration
def test_with_two_ports_in_one_network_the_one_that_is_asked_for_is_measured(two_wires):
    tag, space = two_wires
    command = ["ip", "netns", "exec", space, sys.executable, "-c", SINK]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as there:
        port = int(there.stdout.readline())
        found = send("10.213.9.11", port, seconds=0.5, source="10.213.9.2", device=f"{tag}1")
        other = send("10.213.9.11", port, seconds=0.2, source="10.213.9.1", device=f"{tag}0", timeout_s=0.5)
        there.stdin.close()
    assert 10e6 < found.bits_per_s < 24e6
    assert (found.error, found.unmeasured) == ("", "")
    assert other.unmeasured  # nobody listens at that end of the other wire
