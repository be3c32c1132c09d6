"""Which ends of RDMA transfers a node has, or why it has none."""

import os

import pytest

from pulsetrain.agent import rdma_ends as module
from pulsetrain.agent.rdma_ends import RdmaEnds, rdma_ends
from pulsetrain.diagnostics.perftest import RdmaEnd


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with two memory nodes and one port next to node 0. Two processors may be used."""
    port = tmp_path / "class" / "infiniband" / "mlx5_0" / "ports" / "1"
    port.mkdir(parents=True)
    (port / "link_layer").write_text("InfiniBand\n")
    (port / "state").write_text("4: ACTIVE\n")
    (port.parent.parent / "device").mkdir()
    (port.parent.parent / "device" / "numa_node").write_text("0\n")
    for node, cpus in enumerate(("0-1", "2-3")):
        folder = tmp_path / "devices" / "system" / "node" / f"node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpus}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 2})
    monkeypatch.setattr(module.shutil, "which", lambda tool: f"/usr/bin/{tool}")
    return tmp_path


def test_a_port_has_an_end_for_each_memory_node(machine):
    near, far = (RdmaEnd(device="mlx5_0", port=1, cpus=cpus) for cpus in ((1,), (2,)))
    assert rdma_ends("10.0.0.1", machine) == RdmaEnds(
        ends={"mlx5_0/1": {"": near, "1": far}}, active=frozenset({"mlx5_0/1"})
    )


def test_memory_whose_processors_are_not_ours_is_left_out(machine, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1})
    assert list(rdma_ends("10.0.0.1", machine).ends["mlx5_0/1"]) == [""]


def test_a_node_says_why_it_has_none(machine, monkeypatch, tmp_path):
    assert rdma_ends("fd00::1", machine).why_not == "ib_write_bw needs an IPv4 address"
    monkeypatch.setattr(module.shutil, "which", lambda tool: None)
    assert rdma_ends("10.0.0.1", machine).why_not == "ib_write_bw (perftest) is not installed"
    assert rdma_ends("10.0.0.1", tmp_path / "none").why_not == "it has no RDMA port"
