"""One port every millisecond: bursts, gaps, shares, congestion, and real bursts on a shaped link."""

import os
import random
import shutil
import subprocess
import sys
import time
from dataclasses import replace

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
    """Time that passes only when somebody sleeps. To wake up costs `wake_ns` of a core, and runs `then`."""

    def __init__(self, then=lambda: None, *, wake_ns=0):
        self.ns, self.then, self.wake_ns, self.cpu_ns = 10**12, then, wake_ns, 0
        self.begun_ns = self.ns

    def __call__(self):
        return self.ns

    def sleep(self, seconds):
        self.ns += max(1, round(seconds * 1e9))
        self.cpu_ns += self.wake_ns
        self.then()

    @property
    def passed_s(self):
        return (self.ns - self.begun_ns) / 1e9

    @property
    def cpu_ratio(self):
        return self.cpu_ns / (self.ns - self.begun_ns)

    def sample(self, ports, seed=0, **options):
        return sample(
            ports, monotonic_ns=self, sleep=self.sleep, cpu_ns=lambda: self.cpu_ns,
            chance=random.Random(seed), **options,
        )  # fmt: skip


def test_rdma_counters_are_words_of_four_bytes_and_marks_that_grew_are_told(tmp_path):
    (rdma,) = ports(*tree(tmp_path), devices=("mlx5_0/1",))
    clock = Clock(lambda: rdma.others["rdma_ecn_marked_packets_total"].write_text("25"))
    (taken,) = clock.sample([rdma], seconds=0.005)
    assert (taken.times_ns.size, taken.transmit.tolist(), taken.receive.tolist()) == (5, [400] * 5, [200] * 5)
    assert taken.grown == {"rdma_ecn_marked_packets_total": 20}


def test_a_sample_that_was_held_up_is_left_out(tmp_path):
    (eth0,) = ports(*tree(tmp_path), devices=("eth0",))
    clock = Clock()
    calls = iter(range(1000))
    held = lambda: clock.ns + (5 * MS if next(calls) == 5 else 0)  # noqa: E731 - one line, one moment
    (taken,) = sample([eth0], seconds=0.01, budget_ratio=1, monotonic_ns=held, sleep=clock.sleep)
    assert taken.times_ns.size < 10


def test_ports_that_are_sampled_together_share_the_time(tmp_path):
    clock = Clock()
    together = clock.sample(ports(*tree(tmp_path)), seconds=0.005)
    assert [s.transmit[0] for s in together] == [400, 7]
    assert [s.receive[0] for s in together] == [200, 9]


def test_a_port_that_is_gone_is_an_error(tmp_path):
    gone = Port(device="x", transmit=tmp_path / "none", receive=tmp_path / "none")
    with pytest.raises(OSError, match="none"):
        sample([gone])


@pytest.fixture
def eth0(tmp_path):
    (found,) = ports(*tree(tmp_path), devices=("eth0",))
    return found


@pytest.mark.parametrize("seed", range(5))
def test_where_waking_up_is_above_the_budget_it_pauses_and_sees_as_many_milliseconds(eth0, seed):
    clock = Clock(wake_ns=23_000)
    (taken,) = clock.sample([eth0], seed, seconds=2.0)
    assert clock.cpu_ratio <= 0.01
    assert 3.5 < clock.passed_s <= 6.0
    assert taken.times_ns.size == pytest.approx(2000, abs=50)
    row = summary(eth0, taken)
    assert 0.35 < row["covered_share"] < 0.55
    assert row["period_ms"] == 1.0
    assert row["cpu_share"] <= 0.01


def test_where_waking_up_is_cheap_or_several_ports_share_it_nothing_is_left_out(eth0):
    for clock, together in ((Clock(wake_ns=8_000), [eth0]), (Clock(wake_ns=32_000), [eth0] * 4)):
        taken = clock.sample(together, seconds=1.0)
        assert (taken[0].times_ns.size, taken[0].pauses, clock.passed_s) == (1000, (), 1.0)
        assert summary(eth0, taken[0])["covered_share"] == 1.0


def test_it_never_takes_longer_than_three_times_however_dear_it_is(eth0):
    clock = Clock(wake_ns=400_000)
    (taken,) = clock.sample([eth0], seconds=1.0)
    assert clock.passed_s <= 3.01
    assert clock.cpu_ratio <= 0.01
    assert taken.times_ns.size > 20


@pytest.mark.parametrize("seed", range(5))
def test_the_budget_holds_where_samples_become_dearer_meanwhile(eth0, seed):
    clock = Clock(wake_ns=10_000)
    clock.then = lambda: setattr(clock, "wake_ns", 10_000 if clock.passed_s < 1 else 200_000)
    clock.sample([eth0], seed, seconds=2.0)
    assert clock.cpu_ratio <= 0.01


def test_a_budget_of_a_whole_core_never_pauses(eth0):
    clock = Clock(wake_ns=400_000)
    (taken,) = clock.sample([eth0], seconds=1.0, budget_ratio=1)
    assert (taken.times_ns.size, taken.pauses) == (1000, ())


@pytest.mark.parametrize("step_ms", [100, 250, 500, 1000])
def test_a_burst_of_five_milliseconds_that_each_step_has_is_seen_beside_pauses(eth0, step_ms):
    clock = Clock(wake_ns=25_000)

    def send():
        now_ms = (clock.ns - clock.begun_ns) // MS
        steps, within = divmod(now_ms, step_ms)
        eth0.transmit.write_text(str(25_000 * (5 * steps + min(within, 5))))

    clock.then = send
    (taken,) = clock.sample([eth0], seconds=5.0)
    sent = summary(eth0, taken)["transmit"]
    assert sent["bursts"] >= 2
    assert sent["longest_burst_ms"] == 5.0
    assert sent["peak_bits_per_s"] == 200e6


def test_bursts_gaps_and_rates_end_at_a_pause_and_bytes_do_not():
    taken = samples([0, 0, 9, 9, 9_000_000, 9, 9, 0, 0], widths_ms=[1, 1, 1, 1, 1000, 1, 1, 1, 1])
    row = summary(port(), replace(taken, pauses=(4,)))
    sent = row["transmit"]
    assert (sent["bursts"], sent["longest_burst_ms"], sent["longest_gap_ms"]) == (2, 2.0, 2.0)
    assert (sent["peak_bits_per_s"], sent["bytes"], sent["busy_share"]) == (72e3, 9_000_036, 0.5)
    assert row["covered_share"] == pytest.approx(8 / 1008, abs=1e-4)


def test_a_gap_on_both_sides_of_a_pause_is_two():
    taken = replace(samples([9, 0, 0, 0, 0, 9]), pauses=(2,))
    assert summary(port(), taken)["transmit"]["longest_gap_ms"] == 2.0


def test_a_pause_after_the_last_sample_is_none():
    row = summary(port(), replace(samples([9, 9]), pauses=(2,)))
    assert (row["covered_share"], row["transmit"]["bursts"]) == (1.0, 1)


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
for _ in range(20):
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
    sender.kill()
    sender.wait()
    row = summary(veth, taken)
    sent = row["transmit"]
    assert sent["bursts"] >= 2
    assert 3 <= sent["median_burst_ms"] <= 12
    assert sent["longest_gap_ms"] > 150
    assert sent["peak_bits_per_s"] > 120e6
    assert row["cpu_share"] <= 0.01


def test_nothing_runs_while_nobody_asks(tmp_path):
    began = time.thread_time()
    ports(*tree(tmp_path))
    assert time.thread_time() - began < 0.1
