"""Single NVLinks through NVIDIA's binding and a C library of our own: which has errors, what each carries."""

import pytest

from pulsetrain.collectors.machine.gpu import GpuSampler
from tests.nvml.library import TestDriver

pytest.importorskip("pynvml")

S = 10**9


@pytest.fixture
def driver(tmp_path, monkeypatch):
    driver = TestDriver(tmp_path / "state")
    driver.bind(monkeypatch)
    return driver


def links(sampler, second):
    """What a sample has of single links: values by device and name."""
    rows = sampler.sample(second * S).to_rows()
    return {(r["device"], r["name"]): r["value"] for r in rows if "/" in r["device"]}


def errors(found):
    return {key: value for key, value in found.items() if not key[1].endswith("_bytes")}


@pytest.mark.parametrize(
    ("value", "metric"),
    [
        ("nvlink_replays", "nvlink_replays_total"),
        ("nvlink_recoveries", "nvlink_recoveries_total"),
        ("nvlink_crc_flit", "nvlink_crc_flit_errors_total"),
        ("nvlink_crc_data", "nvlink_crc_data_errors_total"),
        ("nvlink5_receive_errors", "nvlink5_receive_errors_total"),
        ("nvlink5_integrity", "nvlink5_integrity_errors_total"),
        ("nvlink5_recoveries", "nvlink5_recoveries_total"),
    ],
)
def test_the_link_whose_counter_rose_has_a_sample(driver, value, metric):
    sampler = GpuSampler()
    assert set(errors(links(sampler, 1)).values()) == {0.0}  # all links, from which to count
    assert links(sampler, 2) == {}
    driver.set(0, **{value: 5}, nvlink_bad=17)
    assert links(sampler, 3) == {("GPU-00/nvlink17", metric): 5.0}
    assert links(sampler, 4) == {}


def test_what_each_link_carries_is_told_twice_a_minute(driver):
    sampler = GpuSampler()
    for second in (1, 31):
        found = links(sampler, second)
        assert found["GPU-00/nvlink0", "nvlink_transmit_bytes"] == 1024.0
        assert found["GPU-00/nvlink17", "nvlink_receive_bytes"] == 1024.0
    assert links(sampler, 32) == {}


def test_a_card_that_cannot_tell_single_links_is_asked_once(driver, monkeypatch):
    import pynvml

    asked = []

    def absent(handle, link, counter):
        asked.append(link)
        raise pynvml.NVMLError_NotSupported

    monkeypatch.setattr(pynvml, "nvmlDeviceGetNvLinkErrorCounter", absent)
    sampler = GpuSampler()
    for second in range(3):
        driver.set(0, nvlink_replays=second)
        assert not [key for key in links(sampler, second) if key[1] == "nvlink_replays_total"]
    assert asked == [0] * 4
    assert sampler.failed_reads == 0


def test_a_lost_card_and_an_older_binding_have_no_links_and_all_else_goes_on(driver, monkeypatch):
    import pynvml

    sampler = GpuSampler()
    driver.lose(0)
    assert links(sampler, 1) == {}
    driver.set(0, lost=0)
    monkeypatch.delattr(pynvml, "nvmlDeviceGetNvLinkErrorCounter")
    found = sampler.sample(2 * S).to_rows()
    assert {"gpu_power_watts", "nvlink5_recoveries_total", "nvlink_transmit_bytes"} <= {
        r["name"] for r in found
    }
    assert "nvlink_replays_total" not in {r["name"] for r in found}
