"""The emulator and our client against kubectl: what one writes, the other reads."""

import json
import os
import shutil
import subprocess

import pytest

from pulsetrain.hub.kubernetes.objects import CONFIG_MAPS, NODES, PODS
from tests.hub.kubernetes.test_api import config_map, pod

NONE = "no kubectl here: apt install kubernetes-client"
pytestmark = [pytest.mark.integration, pytest.mark.skipif(shutil.which("kubectl") is None, reason=NONE)]


@pytest.fixture
def kubectl(server, tmp_path):
    def run(*words):
        done = subprocess.run(
            ["kubectl", f"--server={server.url}", "--namespace=train", f"--cache-dir={tmp_path}", *words],
            env=os.environ | {"HOME": str(tmp_path), "KUBECONFIG": str(tmp_path / "none")},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_what_kubectl_writes_is_read_here_and_the_other_way_round(api, kubectl, tmp_path):
    file = tmp_path / "theirs.json"
    file.write_text(json.dumps(config_map("theirs", a="1")))
    kubectl("create", "--validate=false", "-f", str(file))
    assert api.get(CONFIG_MAPS, "theirs")["data"] == {"a": "1"}
    api.create(CONFIG_MAPS, config_map("ours", b="2"))
    assert json.loads(kubectl("get", "configmap", "ours", "-o", "json"))["data"] == {"b": "2"}
    kubectl("delete", "configmap", "ours")
    assert api.get(CONFIG_MAPS, "ours") is None


def test_kubectl_lists_by_the_same_selectors(api, kubectl):
    for name, job in (("a", "one"), ("b", "two")):
        api.create(PODS, pod(name, job=job))
    assert kubectl("get", "pods", "-l", "job=two", "-o", "name").split() == ["pod/b"]


def test_a_node_that_kubectl_cordons_is_cordoned(api, cluster, kubectl):
    cluster.create("nodes", "", {"metadata": {"name": "n1"}, "spec": {}})
    kubectl("patch", "node", "n1", "--type=merge", "-p", '{"spec": {"unschedulable": true}}')
    assert api.get(NODES, "n1")["spec"]["unschedulable"] is True
