"""A rank of a world of another size goes on from any rank's copy."""

import numpy as np
import pytest

from pulsetrain.checkpoint.memory.arena import ArenaReader
from pulsetrain.checkpoint.resized_restore import ANOTHERS, restorer_for
from pulsetrain.checkpoint.restoring import Restorer
from pulsetrain.core.errors import CheckpointError
from tests.checkpoint.cluster import Cluster
from tests.checkpoint.trainers import content, wait_until

pytestmark = pytest.mark.integration

SAME = {"w": np.arange(3000.0)}


@pytest.fixture
def cluster():
    made = []

    def make(*args, **kwargs):
        made.append(Cluster(*args, **kwargs))
        return made[-1]

    yield make
    for one in made:
        one.close()


def world_of(fd, rank, step):
    return ArenaReader(fd).find(rank, step).world


def test_the_rank_that_is_left_gets_a_new_number_and_the_state_of_its_old_one(cluster):
    c = cluster(2)
    c.save(5, replicated=True, tensors=SAME)
    expected = content(c.fds[1], 1, 5)
    c.set_world(["n1"], 1)
    fd = c.attach("n1", 0)
    c.services["n1"].load(0, 5, "memory", 0)
    assert content(fd, 0, 5) == expected
    assert world_of(fd, 0, 5) == ANOTHERS
    assert [(h.rank, h.world) for h in c.services["n1"].held() if h.tier == "memory"] == [(0, -1), (1, 2)]


def test_a_rank_that_has_saved_the_step_itself_keeps_its_own_copy(cluster):
    c = cluster(2)
    c.save(5, replicated=True, tensors=SAME)
    c.set_world(["n0"], 1)
    c.services["n0"].load(0, 5, "memory", 0)
    assert world_of(c.fds[0], 0, 5) == 2


def test_a_node_that_joins_gets_it_out_of_a_peers_arena(cluster):
    c = cluster(1)
    c.save(5, replicated=True, tensors=SAME)
    c.start("z")
    c.set_world(["n0", "z"], 1)
    fd = c.attach("z", 1)
    c.services["z"].load(1, 5, "peer:n0", 0)
    assert content(fd, 1, 5) == content(c.fds[0], 0, 5)


def test_a_replica_of_a_lost_rank_is_enough(cluster):
    c = cluster(2, share_equal=False)
    c.save(5, replicated=True, tensors=SAME)
    expected = content(c.fds[1], 1, 5)
    wait_until(lambda: c.holds("n0", 1, 5, "peer"))
    ArenaReader(c.fds[0]).forget_after(-1)
    c.set_world(["n0"], 1)
    c.services["n0"].load(0, 5, "memory", 0)
    assert content(c.fds[0], 0, 5) == expected


def test_storage_gives_it_where_no_memory_has_it(cluster, tmp_path):
    c = cluster(2, storage=str(tmp_path))
    c.save(5, replicated=True, durable=True, tensors=SAME)
    wait_until(lambda: c.holds("n0", 1, 5, "storage"))
    expected = content(c.fds[0], 0, 5)
    c.start("z")
    c.set_world(["z"], 1)
    fd = c.attach("z", 0)
    c.services["z"].load(0, 5, "storage", 0)
    assert content(fd, 0, 5) == expected


def test_what_is_a_part_of_the_state_is_given_to_nobody_else(cluster):
    c = cluster(2)
    c.save(5)
    c.set_world(["n1"], 1)
    c.attach("n1", 0)
    with pytest.raises(CheckpointError, match="no rank here has it"):
        c.services["n1"].load(0, 5, "memory", 0)


def test_without_an_attempt_each_rank_gets_its_own():
    assert type(restorer_for(None, None, here=None, attempt=-1)) is Restorer
