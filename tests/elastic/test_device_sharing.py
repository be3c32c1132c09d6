"""Which ranks share a device: only replicas of one shard, and as evenly as that allows."""

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.core.errors import UsageError
from pulsetrain.elastic.device_sharing import devices_of_nodes, least_devices, place


def mesh(tp, pp, dp):
    """Coordinates in torch's usual order: tensor ranks next to each other, pipeline stages outermost."""
    ranks = itertools.product(range(pp), range(dp), range(tp))
    return {rank: {"tp": t, "pp": p, "dp": d} for rank, (p, d, t) in enumerate(ranks)}


def test_replicas_of_a_plain_data_parallel_job_are_spread_evenly():
    placed = place(range(8), 3, mesh(1, 1, 8))
    assert sorted(Counter(placed.values()).values()) == [2, 3, 3]


def test_the_papers_rule_only_replicas_of_one_shard_share_a_device():
    where = mesh(2, 2, 2)
    placed = place(range(8), 4, where)
    for device in range(4):
        here = [where[rank] for rank in placed if placed[rank] == device]
        assert len({(at["tp"], at["pp"]) for at in here}) == 1
        assert sorted(at["dp"] for at in here) == [0, 1]


def test_fewer_devices_than_shards_are_refused_with_what_is_allowed():
    with pytest.raises(UsageError, match=r"devices = 3: 8 ranks of a node hold 4 different shards.*4 to 8"):
        place(range(8), 3, mesh(2, 2, 2))
    assert least_devices(range(8), mesh(2, 2, 2)) == 4


def test_without_a_mesh_all_ranks_count_as_replicas():
    assert set(place(range(8), 1, {}).values()) == {0}
    known = mesh(2, 1, 4)
    known.pop(5)
    assert set(place(range(8), 1, known).values()) == {0}


def test_no_device_is_refused():
    with pytest.raises(UsageError, match="allowed: 1 to 4"):
        place(range(4), 0, {})


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 5), st.data())
def test_any_mesh_is_placed_as_evenly_as_whole_shards_allow(tp, pp, dp, data):
    where, ranks = mesh(tp, pp, dp), tp * pp * dp
    devices = data.draw(st.integers(tp * pp, ranks))
    placed = place(range(ranks), devices, where)
    assert placed.keys() == set(range(ranks))
    assert set(placed.values()) == set(range(devices))
    for device in range(devices):
        assert len({(where[r]["tp"], where[r]["pp"]) for r in placed if placed[r] == device}) == 1
    fewest, most = min(Counter(placed.values()).values()), max(Counter(placed.values()).values())
    assert most == -(-dp // (devices // (tp * pp)))
    assert fewest >= 1


@given(st.integers(0, 500), st.integers(1, 50))
def test_devices_of_a_job_are_dealt_to_its_nodes(devices, nodes):
    dealt = devices_of_nodes(devices, nodes)
    assert sum(dealt) == devices
    assert max(dealt) - min(dealt) <= 1
