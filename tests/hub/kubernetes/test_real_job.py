"""A real hub, the real operator and real agents, over the emulator: a job of two nodes and a standby.

A node is evicted, another one is lost, and in the end all pods are told to end and are made anew.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections import Counter

import pytest
import yaml

from pulsetrain.core.errors import PulsetrainError
from pulsetrain.protocol.client import HubClient, find_hub
from tests.agent.real_processes import until, with_environment
from tests.hub.kubernetes.emulator import GROUPS, over
from tests.hub.kubernetes.jobs import node, pulsetrain_job
from tests.hub.kubernetes.kubelets import Kubelets
from tests.hub.kubernetes.server import PATH
from tests.hub.test_moved_job import SCRIPT
from tests.repository import ROOT

pytestmark = [pytest.mark.paired, pytest.mark.integration, pytest.mark.timeout(600)]

NODES = ("n1", "n2", "n3", "n4", "n5")
HEALED_S = 15.0
STOP = """
    stop = torch.tensor(float(os.path.exists("stop")))
    dist.all_reduce(stop)
    if stop > 0:
        break
    time.sleep(0.02)
"""
TRAIN = SCRIPT.replace("\n    time.sleep(0.02)\n", STOP)


class Site:
    """The processes around one job, and what they say."""

    def __init__(self, server, folder):
        self.cluster, self.folder, self.mark = server.emulator, folder, str(folder)
        self.env = os.environ | {
            "PULSETRAIN_DATA": str(folder / "hub"),
            "PULSETRAIN_KUBERNETES_API": server.url,
            "PULSETRAIN_KUBERNETES_NAMESPACE": "train",
            "PULSETRAIN_SCHEDULER_KIND": "kubernetes",
            "SITE_MARK": self.mark,
        }
        self.processes = []

    def spawn(self, *args):
        with (self.folder / f"{args[0]}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "pulsetrain.cli", *args], env=self.env, stdout=log, stderr=log
            )
        self.processes.append(process)

    def start(self):
        self.spawn("serve", "--data", str(self.folder / "hub"), "--port", "0", "--no-dashboard")
        assert until(lambda: (self.folder / "hub/hub.json").exists(), 120), self.why()
        address = find_hub(environ=self.env)
        self.env["PULSETRAIN_TOKEN"] = address.token
        self.spawn("operator")
        return address

    def close(self):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait(60)

    def hub(self):
        return HubClient(find_hub(environ=self.env), timeout_s=5.0)

    def ask(self):
        with contextlib.suppress(PulsetrainError):
            return next(iter(self.hub().status()["jobs"]), {})
        return {}

    def nodes(self, state):
        return sorted(n["node"] for n in self.ask().get("nodes", ()) if n["state"] == state)

    def ready(self):
        """Two nodes train, and one stands by that could take over."""
        nodes = self.ask().get("nodes", ())
        spare = [n["node"] for n in nodes if n["state"] == "standby" and not n["cordon"]]
        return len(self.nodes("active")) == 2 and len(spare) == 1

    def status(self):
        return self.cluster.get("pulsetrainjobs", "train", "gpt").get("status", {})

    def pods(self):
        return [p for p in self.cluster.all("pods") if not over(p)]

    def logs(self):
        return {path.name: path.read_text()[-1500:] for path in sorted(self.folder.glob("*.log"))}

    def steps(self):
        """How often rank 0 has told of a step, in all its pods."""
        said = "".join(path.read_text() for path in self.folder.glob("gpt-*.log"))
        return Counter(int(step) for step in re.findall(r"at step (\d+)", said))

    def why(self):
        return self.ask(), self.status(), self.logs()


@pytest.fixture
def site(server, tmp_path, request):
    for name in getattr(request, "param", NODES):
        server.emulator.create("nodes", "", node(name))
    site = Site(server, tmp_path)
    (tmp_path / "train.py").write_text(TRAIN)
    with Kubelets(server.emulator, tmp_path, SITE_MARK=site.mark) as kubelets:
        site.kubelets = kubelets
        yield site
        site.close()
    assert until(lambda: not with_environment("SITE_MARK", site.mark))


def submit(site, address, **spec):
    container = {
        "name": "agent", "image": "pulsetrain", "env": [{"name": "PULSETRAIN_TOKEN", "value": address.token}],
    }  # fmt: skip
    job = pulsetrain_job(
        hub=address.url,
        nprocPerNode="1",
        agentArgs=[f"--checkpoints={site.folder / 'checkpoints'}"],
        script=[str(site.folder / "train.py"), "100000"],
        template={"spec": {"containers": [container]}},
        **spec,
    )
    site.cluster.create("pulsetrainjobs", "train", job)


def test_a_job_outlives_evicted_and_lost_nodes_and_goes_on_after_all_its_pods_ended(server, site):
    submit(site, site.start())
    assert until(lambda: site.ask().get("step", -1) > 120 and site.ready(), 240), site.why()
    assert until(lambda: site.status().get("phase") == "Running", 30), site.why()
    evict(site)
    lose(site)
    end_and_go_on(site)
    (site.folder / "stop").touch()
    assert until(lambda: site.status()["phase"] == "Finished", 120), site.why()
    assert until(
        lambda: not [p for p in site.pods() if p["spec"].get("nodeName") in site.nodes("active")], 60
    )
    assert asked(server) <= allowed()


@pytest.mark.parametrize("site", [("n1", "n2")], indirect=True)
def test_a_job_without_a_spare_machine_goes_on_where_its_agent_ended(site):
    submit(site, site.start(), standbys=0)
    assert until(lambda: site.ask().get("step", -1) > 60, 240), site.why()
    os.killpg(site.kubelets.processes[site.kubelets.on("n2")].pid, signal.SIGKILL)
    assert until(lambda: len(site.ask().get("recoveries", ())) == 1, 120), site.why()
    assert until(lambda: site.nodes("active") == ["n1", "n2"], 60), site.why()
    newer = [site.kubelets.on("n1"), site.kubelets.on("n2")]
    assert until(lambda: sorted(p["metadata"]["name"] for p in site.pods()) == sorted(newer), 30), site.why()
    (site.folder / "stop").touch()
    assert until(lambda: site.status()["phase"] == "Finished", 120), site.why()


def evict(site):
    """The node is cordoned with the reason, its pod ends, and another pod stands by."""
    gone = max(site.nodes("active"))
    pod = site.kubelets.on(gone)
    site.hub().evict(gone, "fan failed", drain=True)
    assert until(lambda: site.cluster.get("nodes", "", gone)["spec"].get("unschedulable"), 30), site.why()
    reason = site.cluster.get("nodes", "", gone)["metadata"]["annotations"]["pulsetrain.io/reason"]
    assert "fan failed" in reason
    assert until(lambda: pod not in [p["metadata"]["name"] for p in site.pods()], 60), site.why()
    heals(site, 1, gone)
    assert gone not in {p["spec"].get("nodeName") for p in site.pods()}


def lose(site):
    """The job trains on before the cluster knows that the machine is dead."""
    gone = max(site.nodes("active"))
    site.kubelets.lose(gone)
    heals(site, 2, gone)
    assert site.kubelets.on(gone)  # the pod still seems to run


def heals(site, count, gone):
    assert until(lambda: len(site.ask().get("recoveries", ())) == count, 120), site.why()
    recovery = site.ask()["recoveries"][-1]
    assert recovery["node"] == gone
    assert recovery["total_ns"] < HEALED_S * 1e9, recovery
    print(f"trained on after {recovery['total_ns'] / 1e9:.1f} s")
    assert until(site.ready, 120), site.why()
    assert gone not in site.nodes("active")


def end_and_go_on(site):
    """All pods get SIGTERM. Their agents keep the newest step, with which new pods begin."""
    newest, pods = site.ask()["step"], {p["metadata"]["uid"] for p in site.pods()}
    site.cluster.patch("pulsetrainjobs", "train", "gpt", {"spec": {"suspend": True}})
    ghosts = {p["metadata"]["uid"] for p in site.pods() if p["spec"]["nodeName"] in site.kubelets.lost}
    assert until(lambda: {p["metadata"]["uid"] for p in site.pods()} <= ghosts, 90), site.why()
    assert pods > ghosts
    assert site.status()["phase"] == "Suspended"
    before = site.steps()
    site.cluster.patch("pulsetrainjobs", "train", "gpt", {"spec": {"suspend": False}})
    assert until(lambda: site.ask().get("step", -1) > newest + 40, 150), site.why()
    assert min(site.steps() - before) > newest - 100  # saved every 50 steps


VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def asked(server):
    """What hub and operator have asked for, as (verb, group, resource)."""
    found = set()
    for method, path, _ in server.requests:
        parts = PATH.fullmatch(path)
        read = "get" if parts["name"] else "list"
        part = f"/{parts['part']}" if parts["part"] else ""
        group = GROUPS.get(parts["kind"], "v1").rpartition("/")[0]
        found.add((VERBS.get(method, read), group, parts["kind"] + part))
    return found


def allowed():
    """What the files of deploy/ allow them."""
    rules = []
    for role in yaml.safe_load_all((ROOT / "deploy/kubernetes/rbac.yaml").read_text()):
        if role["kind"].endswith("Role") and role["metadata"]["name"] != "pulsetrain-operator":
            rules += role["rules"]
    return {
        (v, g, r)
        for rule in rules
        for v in rule["verbs"]
        for g in rule["apiGroups"]
        for r in rule["resources"]
    }
