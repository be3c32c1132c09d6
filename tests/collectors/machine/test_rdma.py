"""RDMA ports as they are read: a recorded machine, units, and files that cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsetrain.collectors.machine.rdma import RdmaSampler, describe
from pulsetrain.records.counters import counters, numbered, rate_bits_per_s
from tests.repository import DATA

TREE = DATA / "rdma-h100" / "class-infiniband"
recorded = pytest.mark.skipif(not TREE.is_dir(), reason=f"no recordings in {DATA}")


def values(batch):
    return {(r["device"], r["name"]): r["value"] for r in batch.to_rows()}


def tree(root, **files):
    """A port whose files are as given; `counters__x` is counters/x."""
    port = root / "mlx5_0" / "ports" / "1"
    given = {"state": "4: ACTIVE\n", "counters__port_xmit_data": "100\n", **files}
    for name, text in given.items():
        path = port / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return port


@recorded
def test_a_recorded_machine_is_read_in_the_right_units():
    sampler = RdmaSampler(TREE, node="n1")
    found = values(sampler.sample(7))
    devices = {device for device, _ in found}
    assert len(devices) == 9
    raw = int((TREE / "mlx5_0/ports/1/counters/port_xmit_data").read_text())
    assert found["mlx5_0/1", "rdma_transmit_bytes"] == raw * 4
    assert found["mlx5_0/1", "rdma_link_rate_bits_per_s"] == 400e9
    assert found["mlx5_bond_0/1", "rdma_link_rate_bits_per_s"] == 200e9
    assert {found[d, "rdma_port_state"] for d in devices} == {4.0}
    assert (found["mlx5_0/1", "rdma_link_layer"], found["mlx5_bond_0/1", "rdma_link_layer"]) == (1.0, 2.0)
    assert sampler.blind == ""
    assert not any("lifespan" in name for _, name in found)


@recorded
def test_a_counter_at_its_end_is_told_from_one_that_counts():
    ports = {p["device"]: p for p in describe(TREE)}
    assert ports["mlx5_1/1"]["counters"]["rdma_link_downed_total"] == {
        "value": 255,
        "unit": "events",
        "saturated": True,
    }
    assert not ports["mlx5_0/1"]["counters"]["rdma_link_downed_total"]["saturated"]
    assert ports["mlx5_0/1"]["counters"]["rdma_buffer_overrun_errors_total"]["saturated"]
    assert ports["mlx5_0/1"]["firmware"] == "28.41.1000"


@recorded
def test_every_recorded_counter_file_is_known():
    known = {(c.folder, c.file) for c in counters().values()}
    for folder in ("counters", "hw_counters"):
        for path in TREE.glob(f"*/ports/*/{folder}/*"):
            assert (folder, path.name) in known or path.name == "lifespan"


def test_a_card_that_counts_in_other_files_has_the_same_metrics(tmp_path):
    """As EFA and Broadcom's: bytes, where the files of others count words of four."""
    port = tree(tmp_path, hw_counters__tx_bytes="7000\n", hw_counters__rx_bytes="5000\n")
    (port / "counters" / "port_xmit_data").unlink()
    found = values(RdmaSampler(tmp_path).sample(1))
    assert found["mlx5_0/1", "rdma_transmit_bytes"] == 7000.0
    assert found["mlx5_0/1", "rdma_receive_bytes"] == 5000.0


def test_of_two_files_of_a_metric_the_usual_one_counts(tmp_path):
    tree(tmp_path, hw_counters__tx_bytes="7000\n")
    batch = RdmaSampler(tmp_path).sample(1)
    found = [row["value"] for row in batch.to_rows() if row["name"] == "rdma_transmit_bytes"]
    assert found == [400.0]


def test_a_missing_failed_or_absurd_file_is_no_sample(tmp_path):
    port = tree(
        tmp_path,
        counters__port_rcv_data="N/A (no PMA)\n",
        counters__symbol_error="",
        counters__link_downed="-1",
        counters__port_xmit_wait="²",
        counters__port_rcv_packets="18446744073709551615",
        counters__port_xmit_packets="9223372036854775794",
        rate="unknown\n",
        state="what",
    )
    (port / "counters" / "port_rcv_errors").mkdir()
    sampler = RdmaSampler(tmp_path)
    assert values(sampler.sample(1)) == {("mlx5_0/1", "rdma_transmit_bytes"): 400.0}
    assert sampler.unreadable == ("mlx5_0/ports/1/counters/port_rcv_data",)


def test_a_file_that_cannot_be_read_is_not_read_again(tmp_path, monkeypatch):
    port = tree(tmp_path)
    restricted = port / "counters" / "port_xmit_data"
    reads = []
    plain = Path.read_text

    def einval(path, *args, **kwargs):
        if path == restricted:
            reads.append(path)
            raise OSError(22, "Invalid argument")
        return plain(path, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", einval)
    sampler = RdmaSampler(tmp_path)
    for _ in range(3):
        assert values(sampler.sample(1)) == {("mlx5_0/1", "rdma_port_state"): 4.0}
    assert len(reads) == 1
    assert sampler.unreadable == ("mlx5_0/ports/1/counters/port_xmit_data",)


def test_a_machine_without_rdma_is_blind(tmp_path):
    assert "no port" in RdmaSampler(tmp_path / "none").blind
    assert RdmaSampler(tmp_path / "none").sample(1).num_rows == 0


def test_increases_know_width_saturation_and_reset():
    table = counters()
    downs, data = table["rdma_link_downed_total"], table["rdma_transmit_bytes"]
    assert downs.increase(3, 5) == 2
    assert downs.increase(254, 255) is None
    assert downs.increase(200, 4) == 4
    assert downs.increase(200, 200, rebooted=True) == 200
    assert data.increase(float("nan"), 4.0) is None
    assert data.saturated(4.0 * (2**32 - 1))
    assert not data.saturated(4.0 * 2**40)


def test_state_and_rate_files_are_parsed():
    assert rate_bits_per_s("2.5 Gb/sec (1X SDR)") == 2.5e9
    assert rate_bits_per_s("") is None
    assert numbered("5: LinkUp") == (5, "LinkUp")
    assert numbered("LinkUp") is None
