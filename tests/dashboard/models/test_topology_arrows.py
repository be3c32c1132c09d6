"""The chosen rank in the chart: its ring, its peers, and heads that point where data goes."""

import pytest

from pulsetrain.dashboard.models.attribution import attribute
from pulsetrain.dashboard.models.charts import LIGHT
from pulsetrain.dashboard.models.topology import figure, points
from pulsetrain.dashboard.models.topology_arrows import add_chosen, arrow
from pulsetrain.dashboard.models.topology_rank import Peer


def point(rank, tp, pp, dp):
    row = {
        "attempt": 1, "rank": rank, "local_rank": 0, "node": "n0", "ip": "", "switch": "", "tp": tp, "pp": pp,
        "dp": dp, "cp": 0, "ep": 0,
    }  # fmt: skip
    (found,) = points([row], [], attribute([]), now_ns=0)
    return found


ME = point(9, 1, 1, 1)
PEERS = [
    Peer(rank=3, link="pp", flow="in", node="n0", place=(1, 0, 1)),
    Peer(rank=15, link="pp", flow="out", node="n1", place=(1, 2, 1)),
    Peer(rank=8, link="tp", flow="both", node="n1", place=(0, 1, 1)),
    Peer(rank=15, link="transfer", flow="out", node="n1", place=(1, 2, 1)),
    Peer(rank=77, link="transfer", flow="out"),
]


def drawn(peers=PEERS, shown=(9, 8)):
    chart = figure([ME], set(), LIGHT)
    before = len(chart.data)
    add_chosen(chart, ME, peers, shown, LIGHT)
    return chart.data[before:]


def test_each_kind_of_link_is_one_entry_and_neighbours_outside_of_the_slice_are_ringed():
    *links, ring, chosen = drawn()
    assert [trace.name for trace in links] == [
        "tensor parallel: both ways", "pipeline: activations", "send or recv that was seen",
    ]  # fmt: skip
    assert sorted(ring.ids) == ["15", "3", "8"]
    assert (list(chosen.ids), chosen.name) == (["9"], "rank 9, chosen")


def test_peers_outside_of_the_slice_to_which_nothing_flows_do_not_widen_the_chart():
    assert sorted(drawn(shown=(9,))[-2].ids) == ["15", "3"]


def test_a_rank_without_peers_is_ringed_alone():
    (chosen,) = drawn([])
    assert (chosen.x, chosen.y, chosen.z) == ((1,), (1,), (1,))


@pytest.mark.parametrize(("flow", "towards"), [("out", 2.0), ("in", 1.0)])
def test_a_head_points_where_the_data_goes(flow, towards):
    line = arrow((1.0, 1.0, 1.0), Peer(rank=15, link="pp", flow=flow, place=(1, 2, 1)), (1.0, 3.0, 1.0))
    assert line[:3] == [(1.0, 1.0, 1.0), (1.0, 2.0, 1.0), None]
    barb, tip, _, other, *_ = line[3:]
    assert abs(tip[1] - towards) < abs(barb[1] - towards)
    assert barb[1] == other[1]
    assert (barb[0], barb[2]) != (other[0], other[2])


def test_a_line_both_ways_has_no_head():
    assert len(arrow((1.0, 1.0, 1.0), PEERS[2], (1.0, 1.0, 1.0))) == 3


def test_every_point_of_the_chart_has_its_rank_as_id():
    chart = figure([ME, point(3, 1, 0, 1)], set(), LIGHT)
    assert {id_ for trace in chart.data for id_ in trace.ids or ()} == {"9", "3"}
