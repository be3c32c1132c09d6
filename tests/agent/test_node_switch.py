import pytest

from pulsetrain.agent import node_switch
from pulsetrain.agent.config import AgentConfig
from pulsetrain.core.errors import Unavailable

LEAF = "network.topology.nvidia.com/leaf"


@pytest.fixture
def site(tmp_path):
    """A file for node a, labels with another switch."""
    (tmp_path / "topology.conf").write_text("SwitchName=s3 Nodes=a\n")
    (tmp_path / "labels").write_text(f'{LEAF}="leaf-7"\nexample.com/rack="r1"\n')
    return tmp_path


def find(node, **config):
    return node_switch.find(node, "192.0.2.1", AgentConfig(lldp=False, **config), {})


def test_the_sites_file_goes_before_labels_and_knows_its_own_nodes_alone(site):
    both = {"topology": str(site / "topology.conf"), "labels_file": str(site / "labels")}
    assert (find("a", **both), find("b", **both)) == ("s3", "leaf-7")
    assert find("b", switch_label="example.com/rack", labels_file=str(site / "labels")) == "r1"
    assert find("a") == ""


def test_files_labels_and_lldp_are_asked_in_this_order():
    def names(config):
        return [name for name, _ in node_switch.sources("a", "192.0.2.1", config, {})]

    assert names(AgentConfig()) == ["file", "kubernetes", "lldp"]
    assert names(AgentConfig(lldp=False)) == ["file", "kubernetes"]


def test_a_source_that_fails_does_not_keep_the_next_one_from_being_asked():
    def fail():
        raise Unavailable("lldpctl: no answer in 2 s")

    def never():
        pytest.fail("it was asked though another knew")

    assert node_switch.first([("x", fail), ("y", lambda: ""), ("z", lambda: "s3"), ("w", never)]) == "s3"
    assert node_switch.first([("x", fail)]) == ""
