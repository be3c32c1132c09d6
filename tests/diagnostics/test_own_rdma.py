"""From one RDMA port of a machine to the next one, with transfers that are made up."""

import pytest

from pulsetrain.agent.commands import OWN_PORTS_S
from pulsetrain.diagnostics import perftest, rdma_transfers
from pulsetrain.diagnostics.compare import slow_checks
from pulsetrain.diagnostics.own_rdma import checks
from pulsetrain.diagnostics.perftest import Ended


def ports(count, rate=4e11):
    return [
        {"name": f"mlx5_{i}/1", "end": {"device": f"mlx5_{i}", "port": 1}, "bits_per_s": rate}
        for i in range(count)
    ]


def sending(rate=lambda sender, receiver: 3.9e11, failure=""):
    return lambda a, b, *, seconds: Ended(bits_per_s=rate(a.device, b.device), failure=failure)


@pytest.mark.parametrize(("count", "ways"), [(0, 0), (1, 0), (2, 2), (3, 3), (20, 8)])
def test_each_port_sends_to_the_next_one(count, ways):
    found = checks(ports(count), 0.5, sending())
    assert len(found) == ways
    assert all(check.ok for check in found)


def test_a_slow_way_fails_no_node_and_is_compared_with_the_same_way_on_others():
    """It may cross links between switches that are made for less than all ports together."""
    slow = sending(lambda a, b: 1.2e11 if a == "mlx5_1" else 3.9e11)
    reports = {
        node: checks(ports(3), 0.5, slow if node == "n1" else sending()) for node in ("n0", "n1", "n2")
    }
    assert all(check.ok for found in reports.values() for check in found)
    assert reports["n1"][1].detail == "RDMA, 30% of the slower port's own rate"
    rows = {node: [check.row() for check in found] for node, found in reports.items()}
    assert slow_checks(rows) == {"n1": ["port_mlx5_1/1_to_mlx5_2/1"]}


def test_ports_that_do_not_reach_each_other_are_not_measurable_and_have_not_failed():
    found = checks(ports(2), 0.5, sending(failure="ib_write_bw: Completion with error"))
    assert {(c.ok, c.detail) for c in found} == {(True, "not measurable: ib_write_bw: Completion with error")}


def test_without_a_rate_of_the_ports_none_is_told_beside_it():
    found = checks(ports(2, 0.0), 0.5, sending(lambda a, b: 1.0))
    assert [(c.ok, c.detail) for c in found] == [(True, "RDMA")] * 2


def test_ports_that_do_not_reach_each_other_take_no_longer_than_the_agent_waits():
    passed_s = 0.0

    def send(a, b, *, seconds):
        nonlocal passed_s
        passed_s += rdma_transfers.LISTEN_S + perftest.whole_seconds(seconds) + perftest.SETUP_S
        return Ended(failure="ib_write_bw: no end in 7 s")

    found = checks(ports(8), 0.3, send, now_s=lambda: passed_s)
    assert passed_s <= OWN_PORTS_S
    assert len(found) == 8
    assert all(check.ok and check.detail.startswith("not measurable: ") for check in found)
    assert "no time was left" in found[-1].detail
