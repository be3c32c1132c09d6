"""Network interfaces: files, the real ioctl, and what an interface does not have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.collectors.machine.nic import DRIVER_PERIOD_NS, NicSampler, driver_statistics
from pulsetrain.records.counters import counters, every_counter

NAMES = {
    "rx_prio0_pause": 3, "rx_prio3_pause": 40, "tx_prio3_pause": 7, "rx_prio3_pause_duration": 9_000,
    "link_down_events_phy": 2, "tx_pause_storm_error_events": 1, "rx_something_new": 5,
}  # fmt: skip


@pytest.fixture
def machine(tmp_path):
    device = tmp_path / "eth0"
    (device / "statistics").mkdir(parents=True)
    (device / "device").mkdir()
    (tmp_path / "lo" / "statistics").mkdir(parents=True)
    for name, text in {
        "statistics/tx_bytes": "1000", "statistics/rx_bytes": "18446744073709551615",
        "statistics/rx_crc_errors": "4", "statistics/tx_dropped": "rubbish", "carrier_down_count": "6",
        "operstate": "up", "speed": "400000",
    }.items():  # fmt: skip
        (device / name).write_text(text + "\n")
    return tmp_path


def found(batch):
    return {(r["device"], r["name"]): r["value"] for r in batch.to_rows()}


def test_files_and_statistics_are_read_with_their_units(machine):
    asked = []

    def driver(device):
        asked.append(device)
        return NAMES

    sampler = NicSampler(machine, node="n", driver=driver)
    seen = found(sampler.sample(DRIVER_PERIOD_NS))
    assert {device for device, _ in seen} == {"eth0"}  # lo has no hardware
    of = {name: value for (_, name), value in seen.items()}
    assert of["nic_receive_pause_total"] == 43.0  # all priorities, and not their durations
    assert (of["nic_link_downed_total"], of["nic_link_down_events_total"]) == (6.0, 2.0)
    assert (of["nic_port_state"], of["nic_link_rate_bits_per_s"]) == (1.0, 4e11)
    assert of["nic_receive_bytes"] == 2.0**64
    assert "nic_transmit_drops_total" not in of  # rubbish is no zero
    sampler.sample(DRIVER_PERIOD_NS + 1)
    sampler.sample(2 * DRIVER_PERIOD_NS)
    assert asked == ["eth0", "eth0"]


def test_a_driver_without_statistics_is_asked_once_and_a_machine_without_hardware_is_blind(machine, tmp_path):
    asked = []

    def refusing(device):
        asked.append(device)
        raise OSError(95, "Operation not supported")

    sampler = NicSampler(machine, driver=refusing)
    for i in range(1, 4):
        assert found(sampler.sample(i * DRIVER_PERIOD_NS))["eth0", "nic_transmit_bytes"] == 1000.0
    assert asked == ["eth0"]
    assert "no network hardware" in NicSampler(tmp_path / "nowhere").blind


def test_the_real_ioctl_answers_or_refuses():
    sampler = NicSampler()
    if sampler.blind:
        pytest.skip(sampler.blind)
    for device in {r["device"] for r in sampler.sample(DRIVER_PERIOD_NS).to_rows()}:
        try:
            told = driver_statistics(device)
        except OSError:
            continue
        assert all(name and value >= 0 for name, value in told.items())
    with pytest.raises(OSError, match="No such device"):
        driver_statistics("no-such-card")


def test_narrow_counters_wrap_and_resets_count_from_zero():
    flaps = counters("nic")["nic_link_downed_total"]
    assert flaps.increase(2.0**32 - 2, 3.0) == 5.0
    assert flaps.increase(7.0, 1.0) == 1.0
    assert flaps.increase(2.0**32 - 2, 3.0, rebooted=True) == 3.0
    sent = counters("nic")["nic_transmit_bytes"]
    assert sent.increase(1e15, 10.0) == 10.0
    assert not flaps.saturated(2.0**32 - 1)


@given(st.sampled_from(sorted(every_counter())), st.integers(0, 2**62), st.integers(0, 2**62))
def test_an_increase_is_never_negative_whatever_the_counter(name, before, after):
    counter = every_counter()[name]
    grown = counter.increase(float(before), float(after))
    assert grown is None or grown >= 0
