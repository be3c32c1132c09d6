import pytest

from pulsetrain.agent import node_labels
from pulsetrain.core.errors import ConfigError, Unavailable
from tests.protocol.fake_hub import fake_hub

LEAF = "network.topology.nvidia.com/leaf"
NODE = {"kind": "Node", "metadata": {"name": "n1", "labels": {LEAF: "s3", "kubernetes.io/os": "linux"}}}


def api(url):
    return {"PULSETRAIN_KUBERNETES_API": url}


@pytest.mark.parametrize(
    ("labels", "switch"),
    [
        ({LEAF: "s3", "network.topology.nvidia.com/spine": "s9"}, "s3"),
        ({"fabric.topograph.run/tier-0": "s1", "fabric.topograph.run/tier-1": "s9"}, "s1"),
        ({f"topology.k8s.aws/network-node-layer-{n}": f"nn-{n}" for n in (1, 2, 3)}, "nn-3"),
        ({f"topology.k8s.aws/network-node-layer-{n}": f"nn-{n}" for n in (1, 2, 3, 4)}, "nn-4"),
        ({"cloud.google.com/gce-topology-block": "b", "cloud.google.com/gce-topology-subblock": "r"}, "r"),
        ({"topology.kubernetes.io/zone": "eu-1a", "topology.kubernetes.io/region": "eu-1"}, ""),
        ({LEAF: ""}, ""),
        ({}, ""),
    ],
)
def test_the_label_next_to_the_node_names_the_switch(labels, switch):
    assert node_labels.switch_of(labels) == switch


def test_a_label_of_the_sites_own_is_the_only_one_that_counts():
    labels = {LEAF: "s3", "example.com/rack": "r7"}
    assert node_labels.switch_of(labels, "example.com/rack") == "r7"
    assert node_labels.switch_of({LEAF: "s3"}, "example.com/rack") == ""


def test_labels_are_read_as_a_downward_api_volume_writes_them(tmp_path):
    file = tmp_path / "annotations"
    file.write_text(f'{LEAF}="s3"\nexample.com/note="two\\nlines \\"quoted\\""\nno line of it\nodd="\\x41"\n')
    labels = node_labels.of_file(file)
    assert (labels[LEAF], labels["example.com/note"]) == ("s3", 'two\nlines "quoted"')
    assert labels["odd"] == "\\x41"
    with pytest.raises(ConfigError, match=r"labels_file .*none: No such file"):
        node_labels.of_file(tmp_path / "none")


def test_the_api_is_asked_for_the_node_itself(tmp_path):
    with fake_hub((200, NODE)) as hub:
        assert node_labels.of_api("n1", api(hub.url), tmp_path)[LEAF] == "s3"
        assert [(a.method, a.path) for a in hub.asked] == [("GET", "/api/v1/nodes/n1")]


def test_outside_of_a_cluster_nobody_is_asked(tmp_path):
    assert node_labels.of_api("n1", {}, tmp_path) == {}
    assert node_labels.of_api("n1", {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path) == {}  # no token there


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ((403, {"kind": "Status"}), "status 403: its service account may not get nodes"),
        ((404, {"kind": "Status"}), "status 404: --node is the name of no node"),
        ((200, b"<html>"), "the answer is no node"),
        ((200, {"metadata": []}), "the answer is no node"),
    ],
)
def test_an_api_that_does_not_tell_is_one_line(tmp_path, answer, why):
    with fake_hub(answer) as hub, pytest.raises(Unavailable, match=why):
        node_labels.of_api("n1", api(hub.url), tmp_path)


def test_an_api_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(Unavailable, match=r"Kubernetes http://127\.0\.0\.1:9: "):
        node_labels.of_api("n1", api("http://127.0.0.1:9"), tmp_path, limit_s=1.0)
