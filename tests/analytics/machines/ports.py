"""Fleets of RDMA ports and network interfaces, as rows of `metrics`."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pulsetrain.analytics.machines import network, network_ports
from pulsetrain.analytics.verdict import findings

S = 1_000_000_000
T0 = 1_790_000_000 * S


def find(table, **options):
    """`network.find` over the ports of a table of `metrics`."""
    return network.find(network_ports.ports(table), **options)


class Fleet:
    """Ports that each carry `per_s` bytes a second in steps of 2 s, sampled every second."""

    def __init__(self, count=8, seconds=120, per_s=1e9, seed=0):
        rng = np.random.default_rng(seed)
        self.times = T0 + np.arange(seconds) * S
        self.moved = {i: per_s * (1 + 0.02 * rng.standard_normal(seconds)) for i in range(count)}
        self.extra = {i: {} for i in range(count)}
        for i in range(count):
            self.extra[i]["rdma_port_state"] = np.full(seconds, 4.0)
            self.extra[i]["rdma_transmit_wait_ticks"] = np.cumsum(rng.poisson(50, seconds)).astype(float)
        self.names = {i: (f"n{i // 2}", f"mlx5_{i % 2}/1") for i in range(count)}

    def table(self, order=None):
        rows = []
        for i, moved in self.moved.items():
            node, device = self.names[i]
            series = {"rdma_transmit_bytes": np.cumsum(moved), **self.extra[i]}
            for name, values in series.items():
                rows += [
                    (node, device, name, int(t), float(v)) for t, v in zip(self.times, values, strict=True)
                ]
        if order is not None:
            order.shuffle(rows)
        columns = list(zip(*rows, strict=True))
        return pa.table(
            {
                "node": list(columns[0]),
                "device": list(columns[1]),
                "name": list(columns[2]),
                "ts": pa.array(columns[3], pa.timestamp("ns", "UTC")),
                "value": list(columns[4]),
            }
        )

    @property
    def steps(self):
        return [int(t) for t in self.times[::2]]

    def reported(self, **more):
        verdicts = find(self.table(), now_ns=int(self.times[-1]), job="j", steps_ns=self.steps, **more)
        return {(f.kind, f.subject, f.severity) for f in findings(verdicts)}


def nics(count=6, seconds=120, seed=0):
    """Network interfaces instead of RDMA ports: traffic, state and pauses, all well."""
    fleet = Fleet(count, seconds, per_s=1e8, seed=seed)
    rng = np.random.default_rng(seed + 1)
    for i in range(count):
        fleet.names[i] = (f"n{i}", "eth0")
        fleet.extra[i] = {
            "nic_port_state": np.ones(seconds),
            "nic_receive_bytes": np.cumsum(fleet.moved[i]),
            "nic_receive_pause_total": np.cumsum(rng.poisson(20, seconds)).astype(float),
            "nic_link_downed_total": np.full(seconds, 9.0),
        }
        fleet.moved[i] = np.zeros(seconds)
    return fleet


def nic_table(fleet, order=None):
    table = fleet.table(order) if order else fleet.table()
    keep = [not n.startswith("rdma_") for n in table["name"].to_pylist()]
    return table.filter(pa.array(keep))


def nic_reported(fleet):
    return {(f.kind, f.subject, f.severity) for f in findings(find(nic_table(fleet), now_ns=T0, job="j"))}


def nic_trouble(seed=0):
    fleet = nics(seed=seed)
    fleet.extra[1]["nic_link_downed_total"] = 9.0 + np.arange(120) // 30
    fleet.extra[3]["nic_physical_symbol_errors_total"] = 5.0 * np.arange(120)
    return fleet
