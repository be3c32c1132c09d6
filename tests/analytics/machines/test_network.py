"""What ports' counters say, on fleets of ports that are made here."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsetrain.analytics.machines.network import down_throughout
from pulsetrain.analytics.machines.network_ports import ports
from pulsetrain.analytics.verdict import Healthy, Inconclusive, findings
from tests.analytics.machines.ports import T0, Fleet, find, nic_reported, nic_table, nic_trouble, nics


def test_a_clean_fleet_has_no_finding():
    for seed in range(10):
        fleet = Fleet(seed=seed)
        (verdict,) = find(fleet.table(), now_ns=T0, job="j", steps_ns=fleet.steps)
        assert isinstance(verdict, Healthy)
        assert verdict.numbers["ports"] == 8


def test_traffic_that_dropped_names_the_port():
    fleet = Fleet()
    fleet.moved[3][80:] *= 0.2
    assert fleet.reported() == {("traffic_drop", "n1/mlx5_1/1", "warning")}


def test_traffic_that_ended_names_the_port():
    fleet = Fleet()
    fleet.moved[3][80:] = 0
    assert fleet.reported() == {("traffic_stop", "n1/mlx5_1/1", "critical")}


def test_traffic_that_fluctuates_is_told_from_a_drop_and_a_stop():
    fleet = Fleet()
    fleet.moved[3][80:] *= np.where(np.arange(40) // 4 % 2, 0.3, 1.5)
    assert fleet.reported() == {("traffic_fluctuation", "n1/mlx5_1/1", "warning")}


def test_a_job_that_changes_its_pace_fluctuates_nowhere():
    fleet = Fleet()
    for moved in fleet.moved.values():
        moved[80:] *= np.where(np.arange(40) // 4 % 2, 0.3, 1.5)
    assert fleet.reported() == set()


def test_traffic_that_ended_everywhere_is_no_ports_fault():
    fleet = Fleet()
    for moved in fleet.moved.values():
        moved[80:] = 0
    assert fleet.reported() == {("traffic_stop", "j", "info")}


def pausing(busy=(), also_at=()):
    """A job that pauses at second 80, and before that `also_at`. The ports in `busy` carry on."""
    fleet = Fleet()
    for i, moved in fleet.moved.items():
        for begin, end in (*also_at, (80, 120)):
            moved[begin:end] *= i in busy
    return fleet


def of_pause(fleet):
    steps = [t for t in fleet.steps if t <= fleet.times[80]]
    verdicts = find(fleet.table(), now_ns=T0, job="j", steps_ns=steps)
    return {(f.kind, f.subject, f.severity) for f in findings(verdicts)}


@pytest.mark.parametrize("busy", [(), (3,), (0, 1, 2, 4, 5, 6, 7)], ids=["none", "one", "all but one"])
def test_while_no_step_ends_no_port_is_blamed_for_a_pause(busy):
    assert of_pause(pausing(busy)) == {("traffic_stop", "j", "info")}


def test_a_pause_as_long_as_one_before_is_none():
    assert of_pause(pausing(busy=(3,), also_at=[(30, 50)])) == set()


def test_a_port_that_only_saves_now_and_then_or_carries_next_to_nothing_has_not_stopped():
    fleet = Fleet()
    fleet.moved[3][:] = 0
    fleet.moved[3][20:30] = 1e9
    fleet.moved[5] *= 1e-4
    fleet.moved[5][80:] = 0
    assert not {kind for kind, _, _ in fleet.reported()} & {"traffic_stop"}


def test_a_slower_job_carries_as_much_in_each_step():
    fleet = Fleet(seconds=240)
    for moved in fleet.moved.values():
        moved[120:] *= 0.25
    steps = [*fleet.times[:120:2], *fleet.times[120::8]]
    verdicts = find(fleet.table(), now_ns=T0, job="j", steps_ns=[int(t) for t in steps])
    assert findings(verdicts) == []


def test_a_card_that_was_reset_dropped_nothing():
    fleet = Fleet()
    table = fleet.table()
    values = table["value"].to_pylist()
    rows = zip(table["device"].to_pylist(), table["node"].to_pylist(), table["name"].to_pylist(), strict=True)
    hit = [i for i, row in enumerate(rows) if row == ("mlx5_1/1", "n1", "rdma_transmit_bytes")]
    base = values[hit[60]]
    for i in hit[60:]:
        values[i] -= base
    again = table.set_column(4, "value", pa.array(values))
    assert findings(find(again, now_ns=T0, job="j", steps_ns=fleet.steps)) == []


@pytest.mark.parametrize(("downs", "severity"), [(1, "info"), (3, "warning"), (9, "warning")])
def test_a_link_that_goes_down_again_and_again_flaps(downs, severity):
    fleet = Fleet()
    fleet.extra[2]["rdma_link_downed_total"] = np.minimum(np.arange(120) // 10, downs).astype(float)
    assert fleet.reported() == {("link_flap", "n1/mlx5_0/1", severity)}


def test_flaps_are_seen_in_the_state_where_the_counter_is_at_its_end():
    fleet = Fleet()
    fleet.extra[2]["rdma_link_downed_total"] = np.full(120, 255.0)
    fleet.extra[2]["rdma_port_state"][[20, 50, 80]] = 1.0
    assert fleet.reported() == {("link_flap", "n1/mlx5_0/1", "warning")}
    (verdict,) = findings(find(fleet.table(), now_ns=T0, steps_ns=fleet.steps))
    assert verdict.evidence["counter_blind"]


def test_a_port_that_stays_down_is_down_and_one_that_never_was_up_is_not_plugged_in():
    fleet = Fleet()
    fleet.extra[2]["rdma_port_state"][80:] = 1.0
    fleet.extra[5]["rdma_port_state"][:] = 1.0
    found = fleet.reported()
    assert ("port_down", "n1/mlx5_0/1", "critical") in found
    assert not any(subject == "n2/mlx5_1/1" for _, subject, _ in found)


def test_congestion_is_compared_by_byte_over_the_fleet():
    fleet = Fleet()
    fleet.extra[6]["rdma_transmit_wait_ticks"] = fleet.extra[6]["rdma_transmit_wait_ticks"] * 20
    assert fleet.reported() == {("congestion", "n3/mlx5_0/1", "warning")}


def test_errors_on_a_link_are_counted_by_the_minute():
    fleet = Fleet()
    fleet.extra[1]["rdma_symbol_errors_total"] = np.arange(120) * 2.0
    assert fleet.reported() == {("link_errors", "n0/mlx5_1/1", "warning")}


@given(shares=st.lists(st.floats(0.0, 0.4), min_size=2, max_size=3, unique=True))
@settings(max_examples=8)
def test_a_worse_drop_is_never_milder(shares):
    def confidence(share):
        fleet = Fleet()
        fleet.moved[3][80:] *= share
        (verdict,) = findings(find(fleet.table(), now_ns=T0, job="j", steps_ns=fleet.steps))
        return ({"warning": 1, "critical": 2}[verdict.severity], verdict.confidence)

    rated = [confidence(s) for s in sorted(shares, reverse=True)]
    assert [r[0] for r in rated] == sorted(r[0] for r in rated)


def test_nothing_or_next_to_nothing_is_blind_or_quiet():
    empty = Fleet().table().slice(0, 0)
    (verdict,) = find(empty, now_ns=T0)
    assert isinstance(verdict, Inconclusive)
    assert verdict.blind
    one = Fleet(count=1, seconds=2)
    assert findings(find(one.table(), now_ns=T0)) == []
    doubled = pa.concat_tables([one.table(), one.table()])
    assert ports(doubled)[0].total("rdma_transmit_bytes") == ports(one.table())[0].total(
        "rdma_transmit_bytes"
    )


def test_missing_samples_are_no_drop():
    fleet = Fleet()
    fleet.extra[3]["rdma_symbol_errors_total"] = np.full(120, np.nan)
    table = fleet.table()
    keep = [
        not (n == "n1" and d == "mlx5_1/1" and i % 3)
        for i, (n, d) in enumerate(zip(table["node"].to_pylist(), table["device"].to_pylist(), strict=True))
    ]
    assert findings(find(table.filter(pa.array(keep)), now_ns=T0, steps_ns=fleet.steps)) == []


def test_interfaces_that_are_well_have_no_finding_and_their_traffic_is_not_judged():
    fleet = nics()
    fleet.extra[2]["nic_receive_bytes"][60:] = fleet.extra[2]["nic_receive_bytes"][60]
    assert nic_reported(fleet) == set()


def test_an_interface_that_flaps_errs_or_is_down_is_named():
    fleet = nics()
    fleet.extra[1]["nic_link_downed_total"] = 9.0 + np.arange(120) // 30
    fleet.extra[3]["nic_physical_symbol_errors_total"] = 5.0 * np.arange(120)
    fleet.extra[4]["nic_port_state"][70:] = 0.0
    assert nic_reported(fleet) == {
        ("link_flap", "n1/eth0", "warning"),
        ("link_errors", "n3/eth0", "warning"),
        ("link_flap", "n4/eth0", "info"),
        ("port_down", "n4/eth0", "critical"),
    }


def test_a_pause_storm_stands_out_against_the_fleet():
    fleet = nics()
    fleet.extra[5]["nic_receive_pause_total"] *= 60
    assert nic_reported(fleet) == {("congestion", "n5/eth0", "warning")}


@pytest.mark.parametrize("order", [random.Random(i) for i in range(3)], ids=range(3))
def test_the_order_and_copies_of_rows_of_interfaces_change_nothing(order):
    straight = find(nic_table(nic_trouble()), now_ns=T0, job="j")
    mixed = nic_table(nic_trouble(), order)
    assert len(straight) == 2
    assert find(mixed, now_ns=T0, job="j") == straight
    assert find(pa.concat_tables([mixed, mixed]), now_ns=T0, job="j") == straight


@pytest.mark.parametrize("names", [("other", "ens3f0np0"), ("zz-9", "bond0"), ("", "eth0")])
def test_renaming_interfaces_renames_the_answer(names):
    fleet = nic_trouble()
    fleet.names[1] = names
    subject = "/".join(n for n in names if n)
    assert nic_reported(fleet) == {("link_flap", subject, "warning"), ("link_errors", "n3/eth0", "warning")}


def test_an_interface_that_errs_more_is_never_judged_milder():
    def judged(per_second):
        fleet = nics()
        fleet.extra[3]["nic_physical_symbol_errors_total"] = per_second * np.arange(120)
        (found,) = findings(find(nic_table(fleet), now_ns=T0, job="j"))
        return ({"info": 0, "warning": 1, "critical": 2}[found.severity], found.confidence)

    rated = [judged(n) for n in (1.0, 5.0, 50.0, 5000.0)]
    assert rated == sorted(rated)


def test_one_interface_gaps_and_nonsense_are_a_verdict():
    alone = nics(count=1)
    assert nic_reported(alone) == set()
    fleet = nic_trouble()
    fleet.extra[1]["nic_link_downed_total"][::3] = np.nan
    fleet.extra[2]["nic_receive_bytes"][:] = np.inf
    fleet.extra[4]["nic_receive_pause_total"][:] = np.nan
    assert {(kind, subject) for kind, subject, _ in nic_reported(fleet)} == {
        ("link_flap", "n1/eth0"),
        ("link_errors", "n3/eth0"),
    }
    (verdict,) = find(nic_table(fleet).slice(0, 0), now_ns=T0)
    assert isinstance(verdict, Inconclusive)
    assert verdict.blind


def test_a_port_that_is_down_in_every_sample_is_down_if_it_was_up_before_and_else_not_plugged_in():
    times = pa.array([T0 + i * 10**9 for i in range(5)], pa.timestamp("ns", "UTC"))
    rows = {"node": ["n1"] * 5, "device": ["eth0"] * 5, "name": ["nic_port_state"] * 5}
    table = pa.table({**rows, "ts": times, "value": [0.0] * 5})
    assert down_throughout(ports(table)) == ["n1/eth0"]
    assert findings(find(table, now_ns=T0)) == []
    (down,) = findings(find(table, now_ns=T0, was_up_ns={"n1/eth0": T0 - 3600 * 10**9}))
    assert (down.kind, down.summary) == ("port_down", "n1/eth0 is down for 3604 s")
