"""Every process group is hooked, under the name that records use for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pulsetrain.collectors.rank import hooks
from pulsetrain.collectors.rank.collectives import Tracker
from pulsetrain.collectors.rank.hooks import group_name

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


@pytest.mark.integration
def test_groups_made_before_and_after_the_hooks_are_recorded():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
