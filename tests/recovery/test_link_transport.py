"""RDMA or TCP: what the nodes of a job have in common."""

from pulsetrain.recovery.link_transport import OpenPorts, Transport, port, transport


def opened(*up, down=(), why_not=""):
    ports = {name: {"active": name in up, "memories": ["1"]} for name in (*up, *down)}
    return OpenPorts.of({"port": 1, "rdma": {"port": 7, "ports": ports, "why_not": why_not}})


def test_ports_that_all_nodes_have_are_measured():
    nodes = {name: opened("mlx5_0/1", "mlx5_1/1") for name in "abc"} | {"d": opened("mlx5_1/1")}
    assert transport(nodes) == Transport(rails=("mlx5_1/1",))
    assert transport(nodes).name == "rdma"


def test_a_port_that_is_down_on_one_node_is_measured_and_one_that_is_nowhere_up_is_not():
    nodes = {name: opened("mlx5_0/1", down=["mlx5_1/1"]) for name in "abc"}
    nodes["d"] = opened(down=["mlx5_0/1", "mlx5_1/1"])
    assert transport(nodes).rails == ("mlx5_0/1",)


def test_one_node_without_rdma_makes_all_use_tcp_and_is_named():
    nodes = {name: opened("mlx5_0/1") for name in "abc"}
    nodes |= {name: opened(why_not="ib_write_bw (perftest) is not installed") for name in "de"}
    assert transport(nodes) == Transport(why_tcp="d: ib_write_bw (perftest) is not installed (and 1 more)")
    assert transport(nodes).name == "tcp"


def test_nodes_with_nothing_in_common_use_tcp():
    nodes = {name: opened(f"mlx5_{name}/1") for name in "abc"}
    assert "of the same name" in transport(nodes).why_tcp


def test_an_agent_of_an_older_version_knows_no_rdma():
    old = OpenPorts.of({"port": 5, "memory_ports": {"1": 6}})
    assert (old.tcp_port, old.memory_ports) == (5, {"1": 6})
    assert transport({"a": old}).why_tcp == "a: its agent knows no RDMA"


def test_the_memory_behind_a_port_is_that_of_its_rail():
    node = OpenPorts(tcp_port=1, memory_ports={"0": 2}, rdma={"mlx5_0/1": ("1", "2")})
    assert port("a", "net", "s", node).memories == ("0",)
    assert port("a", "mlx5_0/1", "s", node).memories == ("1", "2")
