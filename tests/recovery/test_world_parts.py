"""What each agent is told of a large world at a launch."""

import asyncio
from dataclasses import replace

import pytest

from pulsetrain.protocol.messages import Reply, Start, WorldNode, encode
from pulsetrain.recovery.launch import launch
from pulsetrain.recovery.transitions import Event
from pulsetrain.recovery.world_parts import NEAR, NEEDS_WORLD, WHOLE_UP_TO, WorldParts
from tests.recovery.test_actions import FakeNode, job_of


def nodes(count):
    return [
        WorldNode(node=f"n{r}", node_rank=r, address="10.0.0.1", peer_port=1, nproc=8) for r in range(count)
    ]


def agent(name="n0", *, takes=True, needs=False):
    node = FakeNode(name)
    node.hello = replace(node.hello, takes_world_part=takes)
    node.needs_world = needs
    return node


def told(count, place, sources=(), **options):
    parts = WorldParts(nodes(count))
    return parts.of(agent(**options), parts.whole[place], sources)


@pytest.mark.parametrize(
    ("count", "options"),
    [(WHOLE_UP_TO, {}), (1000, {"takes": False}), (1000, {"needs": True})],
)
def test_small_worlds_old_agents_and_those_that_asked_are_told_all(count, options):
    assert len(told(count, 5, **options)) == count


@pytest.mark.parametrize("place", [0, 1, 500, 999])
def test_a_node_of_a_large_world_is_told_its_neighbours_around_the_ring(place):
    ranks = {node.node_rank for node in told(1000, place)}
    assert ranks == {(place + distance) % 1000 for distance in range(-NEAR, NEAR + 1)}


def test_a_node_is_told_where_its_ranks_restore_from():
    names = {node.node for node in told(1000, 0, ["memory", "storage", "peer:n500", "peer:gone"])}
    assert "n500" in names
    assert len(names) == 2 * NEAR + 2


def test_bytes_of_a_launch_do_not_grow_with_the_number_of_nodes():
    def size(count):
        start = Start(
            id=1,
            job="j",
            attempt=0,
            node_rank=70,
            world=told(count, 70),
            world_nodes=count,
            store_address="h",
            store_port=1,
        )
        return len(encode(start))

    assert size(100_000) < size(100) * 1.2


class Asking(FakeNode):
    """Cannot do with a part of the world."""

    def __init__(self, name):
        super().__init__(name)
        self.hello = replace(self.hello, takes_world_part=True)

    async def ask(self, command, timeout_s):
        self.commands.append(command)
        part = isinstance(command, Start) and command.world_nodes > 0
        return Reply(id=command.id, node=self.name, data={NEEDS_WORLD: True} if part else {"port": 1})


def test_a_node_that_needs_the_world_is_told_it_in_the_same_attempt_and_at_once_from_then_on():
    count = WHOLE_UP_TO + 1
    asking = Asking("n00")
    job = job_of(asking, *(agent(f"n{r:02}") for r in range(1, count)), nnodes=count)
    starts = lambda: [c for c in asking.commands if isinstance(c, Start)]  # noqa: E731
    assert asyncio.run(launch(job)) is Event.STARTED
    assert [(c.attempt, len(c.world), c.world_nodes) for c in starts()] == [
        (1, 2 * NEAR + 1, count),
        (1, count, 0),
    ]
    assert len({c.id for c in starts()}) == 2
    asyncio.run(launch(job))
    assert [len(c.world) for c in starts()[2:]] == [count]
