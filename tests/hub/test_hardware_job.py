"""A running job loses a GPU: the node is replaced, and the parameters are those of an undisturbed run.

Hub, agents and ranks are real processes. The GPUs are those of a C library of our own, which the agents load
as they would load NVIDIA's. The ranks train on processors.
"""

import subprocess
import sys
import time

import pytest

from pulsetrain.protocol.client import HubClient, find_hub
from tests.agent.real_processes import until
from tests.hub.test_real_job import Site, opened
from tests.nvml.library import TestDriver
from tests.repository import ROOT

pytest.importorskip("pynvml")
pytestmark = [pytest.mark.alone, pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

STEPS = 1200
SCRIPT = ROOT / "examples" / "train_gpt.py"
SHAPE = ("--tp", "1", "--pp", "1", "--dp", "2", "--steps", str(STEPS), "--batch", "8", "--seq", "32")
SIZE = ("--layers", "1", "--dim", "32", "--heads", "2")
POLICY_DONE_S = 10.0


class Machines(Site):
    """A hub, two nodes that train, and standbys. Each has a driver of its own."""

    def __init__(self, folder):
        super().__init__(folder)
        self.drivers, self.agents = {}, {}

    def start(self, name, *verb):
        driver = self.drivers[name] = TestDriver(self.folder / f"driver-{name}", prefix=name)
        args = ["--job", "j", "--node", name, "--nnodes", "2", "--nproc-per-node", "1", *verb]
        out = ("--params-hash-out", str(self.folder / "hash"))
        command = ["run", *args, str(SCRIPT), *SHAPE, *SIZE, *out]
        if "--standby" in verb:
            command = ["agent", *args, str(SCRIPT), *SHAPE, *SIZE, *out]
        environ, self.env = self.env, self.env | driver.environ
        self.agents[name] = self.spawn(*command)
        self.env = environ
        self.nodes.append(self.agents[name])

    def rows(self):
        return {row["node"]: row for row in HubClient(find_hub(environ=self.env)).nodes()}

    def world(self):
        return sorted(name for name, row in self.rows().items() if row["state"] == "active")


@pytest.fixture
def site(tmp_path):
    with opened(Machines(tmp_path)) as site:
        yield site


def undisturbed(folder):
    """The hash of a run of the same shape under torchrun."""
    out = folder / "undisturbed"
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run(
        [*run, str(SCRIPT), *SHAPE, *SIZE, "--params-hash-out", str(out)],
        check=True,
        capture_output=True,
        timeout=200,
    )
    return out.read_text()


def replaced(site, node, world, strike):
    """Strike a node, and wait until `world` trains without it. Returns the seconds until then."""
    began_s = time.monotonic()
    strike(site.drivers[node])
    assert until(lambda: site.world() == world, POLICY_DONE_S), site.rows()
    took_s = time.monotonic() - began_s
    assert until(lambda: node in [r["node"] for r in site.ask().get("recoveries", ())], 60), site.ask()
    assert site.agents[node].wait(timeout=30) == 1
    return took_s


def lose(driver):
    driver.raise_event(0, 79)
    driver.lose(0)


def test_machines_in_trouble_are_replaced_and_sick_standbys_are_never_promoted(site, tmp_path):
    """Xid 79 evicts at once, lanes of the bus that are gone evict at a step."""
    nodes = (("a",), ("b",), ("x", "--standby"), ("y", "--standby"), ("z", "--standby"))
    for name, *verb in nodes:
        site.start(name, *verb)
    site.reach(10)
    gpus = site.rows()["b"]["gpus"]
    assert [(gpu["uuid"], gpu["serial"]) for gpu in gpus] == [("GPU-b0", "165023000")]

    site.drivers["x"].raise_event(0, 79)
    assert until(lambda: "Xid 79" in site.rows()["x"]["cordon"], POLICY_DONE_S), site.rows()["x"]
    assert site.world() == ["a", "b"]

    first_s = replaced(site, "b", ["a", "y"], lose)
    second_s = replaced(site, "a", ["y", "z"], lambda driver: driver.set(0, pcie_width=8))
    print(f"policy done {first_s:.2f} s after the Xid, {second_s:.2f} s after the lanes were gone")

    assert [site.agents[name].wait(timeout=200) for name in ("y", "z")] == [0, 0]
    recoveries = [(r["cause"], r["node"], r["actor"]) for r in site.ask()["recoveries"]]
    assert recoveries == [("gpu_fault", "b", "controller"), ("pcie_degraded", "a", "controller")]
    assert {name: row["state"] for name, row in site.rows().items() if name in "abx"} == {
        "a": "evicted", "b": "evicted", "x": "left",
    }  # fmt: skip
    assert (tmp_path / "hash").read_text() == undisturbed(tmp_path)
