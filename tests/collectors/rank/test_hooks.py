"""Every process group is hooked, under the name that records use for it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

from pulsetrain.collectors.rank import hooks
from pulsetrain.collectors.rank.collectives import Tracker
from pulsetrain.collectors.rank.handle import Handle
from pulsetrain.collectors.rank.hooks import group_name
from pulsetrain.collectors.rank.ring import RingWriter, create_ring
from pulsetrain.collectors.reading.ring_reader import RingReader

SCRIPT = """
import os, torch, torch.distributed as dist
from pulsetrain.collectors.rank import hooks
from pulsetrain.collectors.rank.handle import Handle
from pulsetrain.collectors.rank.ring import RingWriter, create_ring
from pulsetrain.collectors.reading.ring_reader import RingReader
fd = create_ring(256)
handle, reader = Handle(RingWriter(fd)), RingReader(fd)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # before the hooks
hooks.install(handle)
later = dist.new_group([0], group_desc="late")                                # after them
dist.all_reduce(torch.ones(3))
dist.all_reduce(torch.ones(5), group=later)
names = reader.names
rows = reader.drain()[0]
spans = sorted((names[s["group"]].split(":")[0], names[s["name"]], int(s["bytes"])) for s in rows)
assert spans == [("late", "all_reduce", 20), ("world", "all_reduce", 12)], spans
assert reader.status().errors == 0
"""


AGAIN = (
    SCRIPT.split("later = ")[0]
    + """
from torch.distributed import distributed_c10d as c10d
for _ in range(300):
    group = dist.new_group([0])
    dist.all_reduce(torch.ones(1), group=group)
    dist.destroy_process_group(group)
dist.all_reduce(torch.ones(1))
kept = [(cell.name, cell.enqueued) for cell in reader.status().groups]
assert len(kept) == 2 and ("world", 1) in kept, kept     # a group that is gone leaves with the next one
assert reader.position().complete
dist.destroy_process_group()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
assert not reader.status().groups, reader.status().groups
dist.all_reduce(torch.ones(1))
assert [(c.name, c.enqueued) for c in reader.status().groups] == [("world", 1)]
world = c10d._get_default_group()
more = {"backend_name": "gloo", "store": dist.HashStore(), "group_name": "9", "backend_config": ""}
c10d._register_pg_in_world(pg=world, **more)  # as `shrink_group` does
assert reader.status().errors == 0
"""
)


@pytest.mark.parametrize(
    ("name", "description", "recorded"),
    [("3", "mesh_tp", "mesh_tp:3"), ("0", "default_pg", "world"), ("5", "undefined", "5"), ("5", "", "5")],
)
def test_a_group_is_called_by_its_unique_name(name, description, recorded):
    assert group_name(name, description) == recorded


def test_the_start_of_a_batch_is_watched_as_its_end_is(watched, monkeypatch):
    wrapped = {}
    monkeypatch.setattr(hooks, "_wrap", lambda owner, name, watched: wrapped.setdefault(name, watched))
    tracker = Tracker(watched.handle.state)
    hooks._hook_waits(tracker)
    assert wrapped["_start_coalescing"] == tracker.watched_start_of_batch
    assert wrapped["_end_coalescing"] == tracker.watched_end_of_batch


def in_world_of_two(rank, position, ranks, path):
    """A rank of a job of so many makes a world with another one, in which it has this position."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks))
    fd = create_ring(256)
    handle, reader = Handle(RingWriter(fd)), RingReader(fd)
    hooks.install(handle)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=position, world_size=2)
    dist.all_reduce(torch.ones(3))
    if position == 0:
        dist.send(torch.ones(1), 1)
    else:
        dist.recv(torch.ones(1), 0)
    (cell,) = reader.status().groups
    named = f"world seen by rank {rank}"
    assert (cell.name, tuple(cell.members), cell.enqueued) == (named, (rank,), 1)
    assert all(int(span["peer"]) < 0 for span in reader.drain()[0])  # its number in the job is not known
    assert reader.status().errors == 0
    dist.destroy_process_group()


@pytest.mark.integration
@pytest.mark.parametrize(
    ("world", "ranks"), [((4, 5), 8), ((0, 2), 4)], ids=["the second half", "the even ranks"]
)
def test_of_a_world_that_numbers_its_ranks_anew_only_the_own_rank_is_known(world, ranks, tmp_path):
    """Two trainings in one launch: torch's ranks 0 and 1 are not those of the job. Rank 0 may seem to be."""
    context = torch.multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=in_world_of_two, args=(rank, position, ranks, tmp_path / "store"))
        for position, rank in enumerate(world)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=60)
    assert [process.exitcode for process in processes] == [0, 0]


@pytest.mark.integration
@pytest.mark.parametrize("script", [SCRIPT, AGAIN], ids=["before and after the hooks", "again and again"])
def test_groups_are_recorded_that_are_made(script):
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
