"""All that is drawn of a timeline."""

from __future__ import annotations

from pulsetrain.analytics.slowness.clocks import Clock
from pulsetrain.dashboard.models.attribution import Attribution
from pulsetrain.dashboard.models.timeline.node_clocks import NodeClocks
from tests.dashboard.models.timeline.rows import drawing, row, transfer


def test_ranks_wear_the_state_that_findings_give_them_or_their_node():
    blame = Attribution(ranks={1: "culprit"}, nodes={"n2": "slow"}, victims=frozenset({3, 9}))
    rows = (row(rank=0), row(rank=1), row(rank=2, node="n2"), row(rank=3))
    assert drawing(*rows, blame=blame).states == {1: "culprit", 2: "slow", 3: "victim"}


def test_a_category_of_the_users_own_is_other():
    found = drawing(row(phase="evaluate", category="mine"), row(5))
    assert sorted(found.kinds) == [("evaluate", "other"), ("forward", "compute")]
    assert found.kinds[found.kind[0]] == ("evaluate", "other")


def test_the_order_of_lanes_follows_the_aligned_times():
    late = Clock(at_ns=0.0, offset_ns=100.0, drift=0.0, error_ns=4.0)
    clocks = NodeClocks(clocks={"n0": Clock(at_ns=0.0, offset_ns=0.0, drift=0.0, error_ns=0.0), "n1": late})
    found = drawing(
        transfer("send", 0, 1, start=10),
        transfer("recv", 1, 0, start=95, length=20, node="n1"),
        clocks=clocks,
    )
    assert found.origin_ns == -5
    assert found.clock_errors_ns == {"n0": 0, "n1": 4}
    assert found.arrows.send.tolist() == [0]


def test_one_node_needs_no_comparison_of_clocks():
    assert drawing(row(), row(rank=1)).clock_errors_ns == {"n0": 0}


def test_what_was_left_out_is_counted():
    assert drawing(row(spans_in_all=41)).left_out == 40


def test_ranks_at_fault_and_ranks_on_a_faulty_machine_come_first():
    blame = Attribution(ranks={3: "slow"}, parts={"n2": ("n2/mlx5_0/1",)})
    rows = (row(rank=0), row(rank=1), row(rank=2, node="n2"), row(rank=3))
    found = drawing(*rows, blame=blame)
    assert [lane.rank for lane in found.lanes.lanes] == [2, 3, 0, 1]
    assert found.states == {2: "part", 3: "slow"}
