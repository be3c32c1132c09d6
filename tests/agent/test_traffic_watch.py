"""The traffic of a node: gauges for the hub, and a close look at a port that is suspicious."""

import json

import numpy as np
import pytest

from pulsetrain.agent.traffic_watch import TrafficWatch
from pulsetrain.collectors.machine.samples import metrics

S = 10**9


class Site:
    """A watch whose samplings happen at once; `row` is what they see."""

    def __init__(self, row=None, listed=()):
        self.sampled, self.row, self.second, self.total = [], row or {"samples": 3}, 0, {}
        self.watch = TrafficWatch("n0", self.sample, lambda work: work(), listed=listed)

    def sample(self, device):
        self.sampled.append(device)
        if isinstance(self.row, Exception):
            raise self.row
        return self.row

    def run(self, seconds, **rates):
        """So many seconds in which devices move these bytes a second, half each way."""
        for _ in range(seconds):
            self.second += 1
            samples = []
            for device, rate in rates.items():
                self.total[device] = self.total.get(device, 0.0) + rate
                family = "nic" if device.startswith("eth") else "rdma"
                half = self.total[device] / 2
                samples += [(device, f"{family}_{way}_bytes", half) for way in ("transmit", "receive")]
            self.watch.note(metrics("n0", samples, self.second * S), self.second * S)
        return self

    def events(self):
        return [json.loads(row["detail"]) for batch in self.watch.take() for row in batch.to_rows()]


def test_nothing_is_known_at_first_and_nothing_is_sampled_while_all_is_well():
    site = Site()
    assert site.run(20, mlx5=1e9).watch.gauges == {}
    site.run(200, mlx5=1e9)
    assert site.watch.gauges == {"traffic_bytes_per_s": pytest.approx(1e9), "traffic_stopped_s": 0.0}
    assert (site.sampled, site.events()) == ([], [])


def test_a_stop_of_all_ports_is_a_gauge_and_one_close_look():
    site = Site().run(120, mlx5=1e9).run(60, mlx5=0.0)
    assert site.watch.gauges["traffic_stopped_s"] == pytest.approx(60, abs=5)
    (event,) = site.events()
    assert (event["why"], event["samples"]) == ("stop", 3)
    site.run(20, mlx5=1e9)
    assert site.watch.gauges["traffic_stopped_s"] == 0.0


def test_one_port_that_stops_is_no_stop_of_the_node():
    site = Site().run(120, a=1e9, b=1e9).run(40, a=0.0, b=1e9)
    assert site.watch.gauges["traffic_stopped_s"] == 0.0
    assert set(site.sampled) == {"a"}


def test_two_ports_that_stop_at_once_are_looked_at_one_after_the_other():
    site, started = Site(), []
    site.watch = TrafficWatch("n0", site.sample, started.append)
    site.run(120, a=1e9, b=1e9).run(60, a=0.0, b=0.0)
    (first,) = started
    first()
    site.run(1, a=0.0, b=0.0)
    started[1]()
    site.run(60, a=0.0, b=0.0)
    assert sorted(site.sampled) == ["a", "b"]
    assert [event["why"] for event in site.events()] == ["stop", "stop"]
    assert len(started) == 2


def test_a_port_that_recovers_before_its_turn_is_not_looked_at():
    site, started = Site(), []
    site.watch = TrafficWatch("n0", site.sample, started.append)
    site.run(120, a=1e9, b=1e9).run(60, a=0.0, b=0.0).run(60, a=0.0, b=1e9)
    started[0]()
    site.run(60, a=0.0, b=1e9)
    assert len(started) == 1


def test_a_drop_is_looked_at_again_only_after_minutes():
    site = Site().run(200, mlx5=1e9).run(40, mlx5=2e8)
    assert [e["why"] for e in site.events()] == ["drop"]


def test_interfaces_count_only_where_there_is_no_rdma_port_and_they_carry_much():
    assert Site().run(120, eth0=1e9, mlx5=5e8).watch.gauges["traffic_bytes_per_s"] == pytest.approx(5e8)
    assert Site().run(120, eth0=1e9).watch.gauges["traffic_bytes_per_s"] == pytest.approx(1e9)
    quiet = Site().run(120, eth0=1e4).run(60, eth0=0.0)
    assert (quiet.watch.gauges, quiet.sampled) == ({}, [])


def test_a_stop_is_told_in_the_second_in_which_it_is_long_enough():
    site = Site().run(123, mlx5=1e9).run(9, mlx5=0.0)
    assert site.watch.gauges["traffic_stopped_s"] == 0.0
    assert site.run(1, mlx5=0.0).watch.gauges["traffic_stopped_s"] == pytest.approx(10)


def test_listed_ports_are_the_jobs_whatever_else_there_is():
    site = Site(listed=("eth1",)).run(120, mlx5=1e9, eth0=1e9, eth1=1e5)
    assert site.watch.gauges["traffic_bytes_per_s"] == pytest.approx(1e5)
    site.run(15, mlx5=1e9, eth0=1e9, eth1=0.0)
    assert site.watch.gauges["traffic_stopped_s"] > 0


def test_a_listed_port_that_carries_next_to_nothing_is_not_used():
    assert Site(listed=("eth1",)).run(120, eth0=1e9, eth1=1e3).watch.gauges == {}


def test_a_port_that_cannot_be_sampled_costs_nothing_else():
    site = Site(OSError("gone")).run(120, mlx5=1e9).run(60, mlx5=0.0)
    assert site.sampled == ["mlx5"]
    assert site.events() == []
    assert site.watch.gauges["traffic_stopped_s"] > 0


def test_other_samples_pass_by():
    watch = TrafficWatch("n0", lambda device: None)
    watch.note(metrics("n0", [("", "host_cpu_ratio", 0.5)], S), S)
    watch.note(metrics("n0", [], S), S)
    assert watch.gauges == {}


def test_judging_costs_little():
    import time

    site = Site().run(599, mlx5=1e9)
    began = time.thread_time()
    site.run(5, mlx5=1e9)
    assert time.thread_time() - began < 0.1
    assert np.isfinite(site.watch.gauges["traffic_bytes_per_s"])


def test_a_stop_that_lasts_longer_than_the_past_that_is_kept_is_told_all_the_time():
    site = Site().run(600, mlx5=1e9).run(1200, mlx5=0.0)
    assert site.watch.gauges["traffic_stopped_s"] == pytest.approx(1200, abs=5)
    site.run(30, mlx5=1e9)
    assert site.watch.gauges == {"traffic_bytes_per_s": pytest.approx(1e9), "traffic_stopped_s": 0.0}
