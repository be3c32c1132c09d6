"""The world of a launch, as far as an agent was told it."""

from pulsetrain.agent.world_part import UNKNOWN, world_of
from pulsetrain.protocol.messages import Start, WorldNode


def start(ranks, world_nodes=0):
    world = tuple(WorldNode(node=f"n{r}", node_rank=r, address="h", peer_port=1, nproc=4) for r in ranks)
    return Start(
        id=1,
        job="j",
        attempt=0,
        node_rank=1,
        world=world,
        store_address="h",
        store_port=1,
        world_nodes=world_nodes,
    )


def test_a_whole_world_is_as_it_was_told():
    command = start(range(3))
    assert world_of(command) == command.world
    assert command.node_count == 3


def test_nodes_that_were_not_told_have_their_ranks_and_no_name():
    command = start((0, 1, 5), world_nodes=6)
    world = world_of(command)
    assert [node.node for node in world] == ["n0", "n1", UNKNOWN, UNKNOWN, UNKNOWN, "n5"]
    assert [rank for node in world for rank in node.ranks] == list(range(24))
    assert command.node_count == 6
