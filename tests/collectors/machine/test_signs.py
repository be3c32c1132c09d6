"""Signs of a machine from its samples: what is seen, how often, and for how long it is told."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsetrain.collectors.machine.gpu_owners import GpuOwners
from pulsetrain.collectors.machine.samples import metrics
from pulsetrain.collectors.machine.signs import KEPT_NS, MOST_SIGNS, SignTracker

S = 1_000_000_000


class Machine:
    """A tracker that gets one sample a second."""

    def __init__(self):
        self.now_s = self.clock_s = 1000
        self.tracker = SignTracker(clock_s=lambda: self.clock_s)

    def sample(self, seconds=1, device="GPU-1", **values):
        for _ in range(seconds):
            self.now_s += 1
            self.clock_s = self.now_s
            rows = [(device, name, float(value)) for name, value in {"gpu_lost": 0, **values}.items()]
            self.tracker.observe(metrics("n", rows, self.now_s * S))

    def signs(self, after_s=0):
        self.clock_s = self.now_s + after_s
        return {sign.kind: sign for sign in self.tracker.read(self.clock_s * S)}


def test_a_healthy_machine_has_no_sign():
    machine = Machine()
    machine.sample(
        5, gpu_ecc_uncorrected_total=7, gpu_pcie_width=8, gpu_pcie_width_max=8, nic_link_downed_total=3
    )
    assert machine.signs() == {}


def test_a_counter_that_rises_is_told_with_how_often_and_when():
    machine = Machine()
    machine.sample(gpu_ecc_uncorrected_total=7)
    machine.sample(gpu_ecc_uncorrected_total=9)
    machine.sample(gpu_ecc_uncorrected_total=0)  # the driver was loaded anew
    machine.sample(gpu_ecc_uncorrected_total=1)
    sign = machine.signs()["ecc_uncorrected"]
    assert (sign.count, sign.times_ns, sign.device) == (3, (1002 * S, 1002 * S, 1004 * S), "GPU-1")
    assert "ecc_uncorrected" in machine.signs(after_s=KEPT_NS // S - 1)
    assert machine.signs(after_s=KEPT_NS // S + 60).keys() <= {"gpu_silent"}


def test_a_burst_of_nvlink_errors_is_one_sample_with_errors():
    machine = Machine()
    for total in (0, 9, 9, 12):
        machine.sample(gpu_nvlink_crc_flit_errors_total=total, gpu_nvlink_replays_total=total)
    sign = machine.signs()["nvlink_errors"]
    assert (sign.count, sign.times_ns) == (24, (1002 * S, 1004 * S))


def test_errors_of_single_nvlinks_name_the_links_and_do_not_count_again():
    machine = Machine()

    def second(total, **links):
        rows = [("GPU-1", "gpu_lost", 0.0), ("GPU-1", "gpu_nvlink_replays_total", float(total))]
        rows += [(f"GPU-1/nvlink{n[1:]}", "nvlink_replays_total", float(v)) for n, v in links.items()]
        machine.now_s += 1
        machine.tracker.observe(metrics("n", rows, machine.now_s * S))

    second(7, l0=7, l1=0, l12=0)  # of long ago
    second(10, l12=3)
    assert (machine.signs()["nvlink_errors"].text, machine.signs()["nvlink_errors"].count) == ("12", 3)
    second(11, l1=1)
    sign = machine.signs()["nvlink_errors"]
    assert (sign.text, sign.count, sign.device) == ("1, 12", 4, "GPU-1")
    machine.now_s += KEPT_NS // S + 60
    assert "nvlink_errors" not in machine.signs()
    second(12, l0=8)
    assert machine.signs()["nvlink_errors"].text == "0"


def test_links_of_another_jobs_gpu_are_nothing():
    tracker = SignTracker(GpuOwners(foreign=frozenset({"GPU-1"})))
    for value in (0.0, 5.0):
        rows = [
            ("GPU-1", "gpu_nvlink_replays_total", value),
            ("GPU-1/nvlink3", "nvlink_replays_total", value),
        ]
        tracker.observe(metrics("n", rows, int(value + 1) * S))
    assert tracker.read(7 * S) == ()


def test_a_throttle_reason_lasts_until_it_is_gone_for_a_while():
    machine = Machine()
    machine.sample(4, gpu_clock_event_reasons=0x40)
    machine.sample(2, gpu_clock_event_reasons=0x1)
    machine.sample(4, gpu_clock_event_reasons=0x40)
    sign = machine.signs()["throttle_hardware_thermal"]
    assert (sign.last_ns - sign.first_ns) / S == 9
    machine.sample(6, gpu_clock_event_reasons=0x1)
    assert machine.signs() == {}


def test_a_bus_that_was_wider_is_another_sign_than_one_that_never_was():
    machine = Machine()
    busy = {"gpu_pcie_width_max": 16, "gpu_utilization_ratio": 0.9}
    machine.sample(4, gpu_pcie_width=8, **busy)
    assert {*machine.signs()} == {"pcie_width_low"}
    machine.sample(gpu_pcie_width=16, **busy)
    machine.sample(6, gpu_pcie_width=8, **busy)
    assert {*machine.signs()} == {"pcie_width_drop"}
    assert machine.signs()["pcie_width_drop"].value == 8


def test_an_idle_gpu_may_slow_its_bus_down_and_narrow_it():
    machine = Machine()
    machine.sample(gpu_pcie_width=16, gpu_pcie_width_max=16, gpu_utilization_ratio=0.9)
    machine.sample(9, gpu_pcie_width=4, gpu_pcie_width_max=16, gpu_utilization_ratio=0.0)
    assert machine.signs() == {}
    machine.sample(gpu_pcie_generation=1, gpu_pcie_generation_max=5, gpu_utilization_ratio=0.0)
    assert machine.signs() == {}
    machine.sample(4, gpu_pcie_generation=1, gpu_pcie_generation_max=5, gpu_utilization_ratio=0.9)
    assert {*machine.signs()} == {"pcie_speed_drop"}


def test_corrected_errors_are_told_by_their_rate():
    machine = Machine()
    for second in range(13):
        machine.sample(gpu_ecc_corrected_total=second * 2000)
    assert machine.signs()["ecc_corrected"].value == 2000


def test_a_lost_gpu_stays_lost():
    machine = Machine()
    machine.sample(gpu_lost=1)
    machine.sample(10)
    assert "gpu_lost" in machine.signs(after_s=10)


def test_a_driver_that_does_not_answer_is_a_sign():
    machine = Machine()
    machine.sample()
    assert machine.signs(after_s=10) == {}
    for after_s in range(20, 70, 10):
        machine.signs(after_s=after_s)
    assert machine.signs(after_s=70)["gpu_silent"].value == 70


@pytest.mark.parametrize("heartbeat_s", [1, 10])
def test_a_driver_is_not_silent_while_the_agent_is_paused(heartbeat_s):
    machine = Machine()
    for _ in range(3):
        machine.sample(heartbeat_s)
        machine.signs()
    assert machine.signs(after_s=600) == {}
    for after_s in range(600, 640, heartbeat_s):
        silent = machine.signs(after_s=after_s)
    assert {*silent} == {"gpu_silent"}


def test_a_driver_is_silent_however_rarely_the_agent_reports():
    machine = Machine()
    machine.sample()
    for after_s in (0, 60, 120):
        silent = machine.signs(after_s=after_s)
    assert {*silent} == {"gpu_silent"}


def test_an_xid_that_two_sources_tell_counts_once():
    tracker = SignTracker()
    tracker.happened("xid", "0000:18:00", 5 * S, code=94)
    tracker.happened("xid", "0000:18:00", 6 * S, code=94, text="NVRM: Xid (PCI:0000:18:00): 94, pid=1")
    (sign,) = tracker.read(7 * S)
    assert (sign.count, sign.text) == (1, "NVRM: Xid (PCI:0000:18:00): 94, pid=1")
    tracker.happened("xid", "0000:18:00", 20 * S, code=94)
    (sign,) = tracker.read(21 * S)
    assert (sign.count, sign.times_ns) == (2, (5 * S, 20 * S))


@pytest.mark.parametrize("drift_s", [0, 1, 30, -30])
def test_xids_that_two_sources_tell_count_once_each_however_the_kernels_clock_drifts(drift_s):
    tracker, line = SignTracker(), "NVRM: Xid (PCI:0000:18:00): 94, pid=1"
    for at_s in (100, 700):
        tracker.happened("xid", "0000:18:00", at_s * S, code=94)
        tracker.happened("xid", "0000:18:00", (at_s + drift_s) * S, code=94, text=line)
    (sign,) = tracker.read(800 * S)
    assert (sign.count, sign.times_ns, sign.text) == (2, (100 * S, 700 * S), line)


def test_xids_of_which_one_source_misses_some_are_counted_by_the_other():
    tracker = SignTracker()
    for at_s in (1, 2, 3):
        tracker.happened("xid", "0000:18:00", at_s * S, code=94, text="NVRM: Xid (PCI:0000:18:00): 94, pid=1")
    tracker.happened("xid", "0000:18:00", 3 * S, code=94)
    (sign,) = tracker.read(4 * S)
    assert sign.count == 3


@pytest.mark.parametrize(("apart_h", "counted"), [(0.5, 3), (5, 3), (11.9, 3), (12.1, 2), (25, 1)])
def test_the_third_in_a_day_is_known_as_such_though_the_others_are_no_longer_told(apart_h, counted):
    tracker, apart_ns = SignTracker(), int(apart_h * KEPT_NS)
    for number in range(1, 4):
        for minute in range(60):  # a heartbeat reads the signs all the time
            tracker.read(number * apart_ns - apart_ns + minute * apart_ns // 60)
        tracker.happened("ecc_uncorrected", "GPU-1", number * apart_ns)
    (sign,) = tracker.read(3 * apart_ns)
    assert (sign.count, len(sign.times_ns)) == (counted, counted)


def test_what_happened_more_than_a_day_ago_takes_no_memory():
    tracker = SignTracker()
    for number in range(50):
        tracker.happened("block_io_error", f"sd{number}", number * KEPT_NS)
        tracker.read(number * KEPT_NS)
    assert len(tracker._earlier) <= 25


@pytest.mark.parametrize(("metric", "up"), [("nic_port_state", 1), ("rdma_port_state", 4)])
def test_a_port_that_was_never_up_does_not_go_down(metric, up):
    counter = metric.replace("port_state", "link_downed_total")
    machine = Machine()
    for total in (3, 4, 5):
        machine.sample(device="port", **{metric: 0, counter: total})
    assert machine.signs() == {}
    machine.sample(device="port", **{metric: up, counter: 5})
    machine.sample(device="port", **{metric: 0, counter: 6})
    assert machine.signs()["port_down"].count == 1


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=12))
def test_what_is_counted_is_never_more_than_the_counter_rose(totals):
    machine = Machine()
    for total in totals:
        machine.sample(rdma_link_downed_total=total)
    sign = machine.signs().get("port_down")
    rose = sum(max(0, b - a) for a, b in itertools.pairwise(totals))
    assert (sign.count if sign else 0) == rose


def test_a_storm_of_signs_does_not_fill_the_heartbeat():
    tracker = SignTracker()
    for disk in range(300):
        tracker.happened("block_io_error", f"sd{disk}", disk * S)
    signs = tracker.read(300 * S)
    assert len(signs) == MOST_SIGNS
    assert signs[0].device == "sd299"


@pytest.mark.parametrize("seen", ["1000", "1100", "10"])
def test_a_reason_that_comes_and_goes_with_the_load_is_no_state(seen):
    machine = Machine()
    for bit in seen * 40:
        machine.sample(gpu_clock_event_reasons=0x8 * int(bit))
    assert machine.signs() == {}


def test_a_port_is_not_blamed_for_what_it_did_while_the_machine_slept():
    machine = Machine()
    machine.sample(device="port", nic_port_state=1, nic_link_downed_total=3)
    machine.now_s += 3600
    machine.sample(device="port", nic_port_state=1, nic_link_downed_total=5)
    assert "port_down" not in machine.signs()
    machine.sample(device="port", nic_port_state=0, nic_link_downed_total=6)
    assert machine.signs()["port_down"].count == 1


def test_two_downs_of_one_burst_are_one_event_and_a_later_one_is_another():
    machine = Machine()
    for total, seconds in ((3, 1), (5, 1), (6, 9), (7, 1)):
        machine.sample(seconds, device="port", nic_port_state=1, nic_link_downed_total=total)
    sign = machine.signs()["port_down"]
    assert (sign.count, len(sign.times_ns)) == (4, 2)


def test_what_others_gpus_do_is_not_told():
    tracker = SignTracker(GpuOwners(foreign=frozenset({"GPU-2", "0000:18:00"})))
    tracker.happened("xid", "0000:18:00", S, code=79)
    tracker.observe(metrics("n", [("GPU-2", "gpu_lost", 1.0), ("GPU-1", "gpu_lost", 0.0)], S))
    assert tracker.read(2 * S) == ()


def test_a_line_that_says_less_does_not_replace_one_that_says_fatal():
    tracker = SignTracker()
    for text, grave in (("149, Nonfatal", False), ("149, Fatal", True), ("149, Nonfatal", False)):
        tracker.happened("xid", "0000:18:00", S, code=149, text=text, grave=grave)
    (sign,) = tracker.read(2 * S)
    assert sign.text == "149, Fatal"


def test_a_clock_that_is_set_forward_silences_no_driver():
    machine = Machine()
    machine.sample()
    assert machine.tracker.read((machine.now_s + 3600) * S) == ()


def test_a_link_that_was_lost_is_told_for_ten_minutes_and_counts_when_it_is_lost_again():
    machine = Machine()
    machine.sample(device="eth0", nic_link_downed_total=0)
    machine.sample(device="eth0", nic_link_downed_total=1)
    machine.sample(6, device="eth0", nic_link_downed_total=1)
    machine.sample(device="eth0", nic_link_downed_total=2)
    assert "port_down" in machine.signs(after_s=590)
    assert "port_down" not in machine.signs(after_s=50 * 60)
    machine.tracker.happened("port_down", "eth0", (machine.now_s + 51 * 60) * S)
    assert len(machine.signs(after_s=51 * 60)["port_down"].times_ns) == 3


def test_a_pause_is_no_time_in_which_a_gpu_was_slowed_down():
    machine = Machine()
    machine.sample(5, gpu_clock_event_reasons=0x40)
    machine.now_s += 3600
    machine.sample(gpu_clock_event_reasons=0x40)
    assert machine.signs() == {}
    machine.sample(4, gpu_clock_event_reasons=0x40)
    sign = machine.signs()["throttle_hardware_thermal"]
    assert (sign.last_ns - sign.first_ns) / S == 4


@pytest.mark.parametrize("narrow", ["1001", "10001", "0101", "1000000001"])
def test_a_bus_that_is_narrow_in_single_samples_is_not_in_trouble(narrow):
    """A job that computes in bursts is busy while its bus still wakes."""
    machine = Machine()
    machine.sample(2, gpu_pcie_width=16, gpu_pcie_width_max=16, gpu_utilization_ratio=0.9)
    for bit in narrow * 3:
        width = 8 if bit == "1" else 16
        machine.sample(gpu_pcie_width=width, gpu_pcie_width_max=16, gpu_utilization_ratio=0.9)
    assert machine.signs() == {}


def test_signs_of_before_it_was_known_whose_gpus_they_are_of_are_looked_at_again():
    tracker = SignTracker(GpuOwners(doubtful=True))
    for device in ("0000:18:00", "0000:19:00"):
        tracker.happened("xid", device, S, code=79)
    assert [sign.shared for sign in tracker.read(S)] == [True, True]
    tracker.set_owners(GpuOwners(own=frozenset({"0000:18:00"}), foreign=frozenset({"0000:19:00"})))
    assert [(sign.device, sign.shared) for sign in tracker.read(S)] == [("0000:18:00", False)]
