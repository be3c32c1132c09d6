"""Which memory nodes are not next to a port, from a tree of /sys."""

import psutil
import pytest

from pulsetrain.diagnostics.memory_nodes import other_memory_nodes, parse_cpus


@pytest.fixture
def sys_root(tmp_path):
    def make(nodes, near=None):
        for number, cpus in nodes.items():
            folder = tmp_path / "devices" / "system" / "node" / f"node{number}"
            folder.mkdir(parents=True)
            (folder / "cpulist").write_text(cpus + "\n")
        if near is not None:
            for name in psutil.net_if_addrs():
                device = tmp_path / "class" / "net" / name / "device"
                device.mkdir(parents=True)
                (device / "numa_node").write_text(f"{near}\n")
        return tmp_path

    return make


def test_a_machine_with_one_memory_node_has_no_other(sys_root):
    assert other_memory_nodes("127.0.0.1", sys_root({0: "0-3"})) == {}


def test_the_node_next_to_the_port_is_left_out(sys_root):
    root = sys_root({0: "0-1", 1: "2-3", 10: "8,10"}, near=1)
    assert other_memory_nodes("127.0.0.1", root) == {0: (0, 1), 10: (8, 10)}


@pytest.mark.parametrize("address", ["127.0.0.1", "192.0.2.1"])
def test_where_the_near_node_is_not_known_all_are_measured(sys_root, address):
    root = sys_root({0: "0", 1: "1"}, near=-1)
    assert other_memory_nodes(address, root) == {0: (0,), 1: (1,)}


def test_memory_without_processors_and_what_cannot_be_read_are_left_out(sys_root):
    root = sys_root({0: "0", 1: "1", 2: "", 3: "none"}, near=0)
    (root / "devices" / "system" / "node" / "node4").mkdir()
    assert other_memory_nodes("127.0.0.1", root) == {1: (1,)}
    assert other_memory_nodes("127.0.0.1", root / "nowhere") == {}


def test_a_list_of_processors_that_is_none_is_refused():
    with pytest.raises(ValueError, match="invalid"):
        parse_cpus("0-x")
