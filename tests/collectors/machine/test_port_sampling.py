"""One port every millisecond: bursts, gaps, shares, congestion, and real bursts on a shaped link."""

import os
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsetrain.collectors.machine.port_sampling import Port, Samples, ports, sample, summary

MS = 10**6


def samples(moved, *, widths_ms=None):
    """Samples from the bytes that each millisecond moves."""
    widths = np.full(len(moved), MS) if widths_ms is None else (np.array(widths_ms) * MS).astype(np.int64)
    times = np.concatenate(([0], np.cumsum(widths)))
    sent = np.concatenate(([0], np.cumsum(np.array(moved, np.int64))))
    return Samples(times_ns=times, transmit=sent, receive=np.zeros_like(sent))


def port(limit=None):
    return Port(device="eth0", transmit=os.devnull, receive=os.devnull, limit_bits_per_s=limit)


def test_a_burst_of_five_milliseconds_in_a_quiet_second_is_seen():
    moved = [0] * 500 + [10_000] * 5 + [0] * 495
    row = summary(port(), samples(moved))["transmit"]
    assert (row["bursts"], row["longest_burst_ms"], row["longest_gap_ms"]) == (1, 5.0, 500.0)
    assert row["peak_bits_per_s"] == 80e6
    assert row["busy_share"] == 0.005


def test_the_share_of_the_limit_tells_whether_transfers_reach_it():
    full, half = samples([100_000] * 50), samples([50_000] * 50)
    assert summary(port(8e8), full)["transmit"]["at_limit_share"] == 1.0
    below = summary(port(8e8), half)["transmit"]
    assert (below["at_limit_share"], below["peak_share"]) == (0.0, 0.5)
    assert below["histogram"] == [0, 0, 0, 0, 0, 50, 0, 0, 0, 0]
    assert summary(port(), half)["transmit"]["at_limit_share"] is None


@settings(max_examples=40)
@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=60), st.integers(2, 9))
def test_all_milliseconds_are_counted_and_a_faster_link_changes_only_rates(moved, factor):
    row = summary(port(), samples(moved))["transmit"]
    assert row["idle"] + sum(row["histogram"]) == len(moved)
    assert row["bytes"] == sum(moved)
    faster = summary(port(), samples([factor * m for m in moved]))["transmit"]
    same = ("idle", "histogram", "bursts", "longest_burst_ms", "longest_gap_ms", "busy_share")
    assert [faster[k] for k in same] == [row[k] for k in same]


def test_nothing_sampled_and_nothing_moved_are_rows_too():
    nothing = np.empty(0, np.int64)
    empty = summary(port(), Samples(times_ns=nothing, transmit=nothing, receive=nothing))
    assert (empty["samples"], empty["transmit"]["median_burst_ms"]) == (0, None)
    still = summary(port(), samples([0, 0, 0]))["transmit"]
    assert (still["idle"], still["bursts"], still["peak_bits_per_s"]) == (3, 0, 0.0)


def tree(tmp_path):
    """An interface with hardware, one without, and an RDMA port."""
    for name, files in {
        "eth0/device/x": "", "eth0/statistics/tx_bytes": "7", "eth0/statistics/rx_bytes": "9",
        "eth0/speed": "25000",
        "veth0/statistics/tx_bytes": "1", "veth0/statistics/rx_bytes": "2", "veth0/speed": "-1",
    }.items():  # fmt: skip
        path = tmp_path / "net" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(files)
    for name, text in {
        "counters/port_xmit_data": "100", "counters/port_rcv_data": "50", "rate": "400 Gb/sec (4X NDR)",
        "hw_counters/np_ecn_marked_roce_packets": "5",
    }.items():  # fmt: skip
        path = tmp_path / "ib" / "mlx5_0" / "ports" / "1" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "net", tmp_path / "ib"


def test_ports_are_those_with_hardware_and_any_that_is_asked_for(tmp_path):
    found = {p.device: p for p in ports(*tree(tmp_path))}
    assert set(found) == {"mlx5_0/1", "eth0"}
    assert found["mlx5_0/1"].limit_bits_per_s == 400e9
    assert found["eth0"].limit_bits_per_s == 25e9
    (virtual,) = ports(*tree(tmp_path), devices=("veth0",))
    assert (virtual.device, virtual.limit_bits_per_s) == ("veth0", None)


class Clock:
    """Time that passes only when somebody sleeps. Each sleep runs `then`."""

    def __init__(self, then=lambda: None):
        self.ns, self.then = 10**12, then

    def __call__(self):
        return self.ns

    def sleep(self, seconds):
        self.ns += max(1, round(seconds * 1e9))
        self.then()


def test_rdma_counters_are_words_of_four_bytes_and_marks_that_grew_are_told(tmp_path):
    (rdma,) = ports(*tree(tmp_path), devices=("mlx5_0/1",))
    clock = Clock(lambda: rdma.others["rdma_ecn_marked_packets_total"].write_text("25"))
    (taken,) = sample([rdma], seconds=0.005, monotonic_ns=clock, sleep=clock.sleep)
    assert (taken.times_ns.size, taken.transmit.tolist(), taken.receive.tolist()) == (5, [400] * 5, [200] * 5)
    assert taken.grown == {"rdma_ecn_marked_packets_total": 20}


def test_a_sample_that_was_held_up_is_left_out(tmp_path):
    (eth0,) = ports(*tree(tmp_path), devices=("eth0",))
    clock = Clock()
    calls = iter(range(1000))
    held = lambda: clock.ns + (5 * MS if next(calls) == 5 else 0)  # noqa: E731 - one line, one moment
    (taken,) = sample([eth0], seconds=0.01, monotonic_ns=held, sleep=clock.sleep)
    assert taken.times_ns.size < 10


def test_ports_that_are_sampled_together_share_the_time(tmp_path):
    clock = Clock()
    together = sample(ports(*tree(tmp_path)), seconds=0.005, monotonic_ns=clock, sleep=clock.sleep)
    assert [s.transmit[0] for s in together] == [400, 7]
    assert [s.receive[0] for s in together] == [200, 9]


def test_a_port_that_is_gone_is_an_error(tmp_path):
    gone = Port(device="x", transmit=tmp_path / "none", receive=tmp_path / "none")
    with pytest.raises(OSError, match="none"):
        sample([gone])


def allowed():
    """Whether network namespaces and traffic control may be used here."""
    if os.geteuid() or not shutil.which("tc") or not shutil.which("ip"):
        return False
    made = subprocess.run(["ip", "netns", "add", "pt-probe"], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "del", "pt-probe"], capture_output=True, check=False)
    return made.returncode == 0


@pytest.fixture
def shaped():
    """A veth of 200 Mbit/s into a network namespace: its name, and the namespace."""
    if not allowed():
        pytest.skip("needs root, ip and tc")
    name, space = f"ptv{os.getpid() % 10000}", f"pt-burst-{os.getpid()}"
    commands = [
        f"ip netns add {space}",
        f"ip link add {name} type veth peer name eth0 netns {space}",
        f"ip addr add 10.213.7.1/24 dev {name}",
        f"ip link set {name} up",
        f"ip -n {space} addr add 10.213.7.2/24 dev eth0",
        f"ip -n {space} link set eth0 up",
        f"tc qdisc add dev {name} root tbf rate 200mbit burst 16kb latency 400ms",
    ]
    try:
        for command in commands:
            subprocess.run(command.split(), check=True, capture_output=True)
        yield name, space
    finally:
        subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", name], capture_output=True, check=False)


SEND = """
import socket, time
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(4):
    time.sleep(0.25)
    for _ in range(90):  # 125 kB: 5 ms at 200 Mbit/s
        out.sendto(bytes(1347), ("10.213.7.2", 9))
"""


@pytest.mark.integration
def test_bursts_of_five_milliseconds_in_a_shaped_link_are_seen_and_cost_little(shaped):
    name, _ = shaped
    (veth,) = ports(devices=(name,))
    sender = subprocess.Popen([sys.executable, "-c", SEND])
    (taken,) = sample([veth], seconds=2.0)
    assert sender.wait(20) == 0
    row = summary(veth, taken)
    sent = row["transmit"]
    assert sent["bursts"] >= 4
    assert 3 <= sent["median_burst_ms"] <= 12
    assert sent["longest_gap_ms"] > 150
    assert sent["peak_bits_per_s"] > 120e6
    assert row["cpu_share"] < 0.08  # most of it is to wake up: docs/commands/traffic.md


def test_nothing_runs_while_nobody_asks(tmp_path):
    began = time.thread_time()
    ports(*tree(tmp_path))
    assert time.thread_time() - began < 0.1
