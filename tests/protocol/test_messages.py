"""What one side of the control connection encodes, the other decodes."""

from __future__ import annotations

import pytest

from pulsetrain.core.errors import CorruptData
from pulsetrain.protocol.messages import Heartbeat, Leaving, Start, WorldNode, decode, encode


def world_node(node_rank: int, nproc: int = 4) -> WorldNode:
    return WorldNode(node=f"n{node_rank}", node_rank=node_rank, address="h", peer_port=1, nproc=nproc)


def test_the_nodes_of_a_world_share_its_ranks_without_gaps():
    world = [world_node(node_rank) for node_rank in range(3)]
    assert [rank for node in world for rank in node.ranks] == list(range(12))


def test_nested_messages_come_back_equal():
    start = Start(
        id=3,
        job="gpt",
        attempt=1,
        node_rank=1,
        world=(world_node(0), world_node(1)),
        store_address="h",
        store_port=9,
        sources={"4": "memory"},
    )
    assert decode(encode(start)) == start


def test_an_agent_says_why_it_leaves():
    leaving = Leaving(node="n0", reason="ended by SIGINT", signal="SIGINT")
    assert decode(encode(leaving)) == leaving


def test_a_field_that_only_a_newer_peer_knows_is_ignored():
    text = encode(Heartbeat(node="a", seq=1, ts_ns=2, job="j", attempt=0))
    assert decode(text.replace('"seq":1', '"seq":1,"colour":"red"')) == decode(text)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"type": "Nonsense"}', '{"type": "Leaving", "reason": 1}'])
def test_what_is_no_message_is_refused(text):
    with pytest.raises(CorruptData, match="not a control message"):
        decode(text)
