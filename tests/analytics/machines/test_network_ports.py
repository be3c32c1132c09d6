"""Samples of ports as series, and sampled traffic beside the line rate."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from pulsetrain.analytics.machines.network_ports import ports, share_of_line_rate, totals
from pulsetrain.collectors.machine.port_sampling import Port as SampledPort
from pulsetrain.collectors.machine.port_sampling import Samples, summary
from tests.analytics.machines.ports import T0, Fleet, S, nic_table, nics


def sampled(limit):
    """A port that sends 25 MB in each millisecond, half of 400 Gb/s, and is looked at for 10 ms."""
    port = SampledPort(device="mlx5_0/1", transmit=None, receive=None, limit_bits_per_s=limit)
    sent = np.arange(11, dtype=np.int64) * 25 * 10**6
    taken = Samples(times_ns=np.arange(11, dtype=np.int64) * 10**6, transmit=sent, receive=sent * 0)
    return summary(port, taken)


def test_sampled_traffic_is_put_beside_the_line_rate():
    sent, received = share_of_line_rate(sampled(400e9))
    assert (sent["direction"], sent["line_bits_per_s"], sent["samples"]) == ("transmit", 400e9, 11)
    assert (sent["mean_share"], sent["peak_share"], received["mean_share"]) == (0.5, 0.5, 0.0)
    assert (sent["mean_bits_per_s"], sent["covered_share"]) == (200e9, 1.0)
    assert share_of_line_rate(sampled(None))[0]["mean_share"] is None


def test_what_was_not_sampled_has_no_traffic():
    assert share_of_line_rate({**sampled(400e9), "samples": 1}) == []


def port_of(name, values):
    """The one port with these samples, a second apart."""
    table = pa.table(
        {
            "node": ["n1"] * len(values),
            "device": ["mlx5_0/1"] * len(values),
            "name": [name] * len(values),
            "ts": pa.array([T0 + i * S for i in range(len(values))], pa.timestamp("ns", "UTC")),
            "value": values,
        }
    )
    (port,) = ports(table)
    return port


def test_a_counter_that_begins_again_counted_nothing_unknown():
    port = port_of("rdma_transmit_bytes", [100.0, 150.0, 20.0, 30.0])
    times, increases = port.increases("rdma_transmit_bytes")
    assert times.tolist() == [T0 + S, T0 + 2 * S, T0 + 3 * S]
    assert increases[0] == 50
    assert increases[2] == 10
    assert port.total("rdma_transmit_bytes") >= 60
    assert port.seconds("rdma_transmit_bytes") == 3


def test_what_was_not_sampled_is_not_known():
    port = port_of("rdma_port_state", [4.0])
    assert np.isnan(port.total("rdma_transmit_bytes"))
    assert port.seconds("rdma_transmit_bytes") == port.seconds("rdma_port_state") == 0
    assert np.isnan(port.downs())


def test_what_all_ports_counted_is_what_each_counted():
    fleet = Fleet(count=5)
    fleet.moved[2][:] = 0
    fleet.extra[3]["rdma_symbol_errors_total"] = np.arange(120.0)
    known = ports(fleet.table())
    for metric in ("rdma_transmit_bytes", "rdma_symbol_errors_total", "rdma_receive_bytes"):
        np.testing.assert_allclose(totals(known, metric), [port.total(metric) for port in known])


def test_ports_and_interfaces_tell_by_other_metrics_whether_they_are_up():
    (port, *_) = ports(Fleet(count=1).table())
    (interface,) = ports(nic_table(nics(count=1)))
    assert (port.family, port.state, port.up) == ("rdma", "rdma_port_state", 4.0)
    assert (interface.family, interface.state, interface.up) == ("nic", "nic_port_state", 1.0)
    assert (port.name, interface.name) == ("n0/mlx5_0/1", "n0/eth0")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None])
def test_samples_that_are_no_numbers_and_metrics_of_no_port_are_left_out(value):
    table = Fleet(count=1, seconds=3).table()
    odd = {"node": ["n0"] * 2, "device": ["x"] * 2, "name": ["rdma_port_state", "cpu_ratio"]}
    rows = pa.table({**odd, "ts": table["ts"][:2], "value": pa.array([value, 1.0], pa.float64())})
    assert [port.name for port in ports(pa.concat_tables([table, rows]))] == ["n0/mlx5_0/1"]
