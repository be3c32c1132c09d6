"""Shards of DTensors: what this rank holds, where it lies, and back again. One process stands for a mesh."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from pulsetrain.checkpoint.sharding import local, position, sharded_like


@pytest.fixture
def sharded(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,))
    yield distribute_tensor(torch.arange(12.0).view(4, 3), mesh, [Shard(0)])
    dist.destroy_process_group()


def test_a_whole_tensor_is_its_own_part_and_has_no_position():
    tensor = torch.ones(2, 3)
    assert local(tensor) is tensor
    assert position(tensor) == ((), ())


def test_the_part_of_a_shard_shares_its_memory(sharded):
    part = local(sharded)
    assert not isinstance(part, DTensor)
    part[0, 0] = 99
    assert float(sharded.to_local()[0, 0]) == 99


def test_a_shard_says_where_it_begins_in_the_whole(sharded):
    assert position(sharded) == ((0, 0), (4, 3))


def test_a_part_becomes_a_shard_like_its_parameter(sharded):
    part = torch.full((4, 3), 2.0)
    again = sharded_like(sharded, part)
    assert again.placements == sharded.placements
    assert again.shape == sharded.shape
    assert torch.equal(local(again), part)
