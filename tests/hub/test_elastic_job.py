"""A real job of --nnodes 1:2: a node is killed without a standby, and comes back."""

import json
import re
import time
from collections import Counter

import pytest

from tests.agent.real_processes import until
from tests.hub.test_moved_job import Moved
from tests.repository import ROOT

pytestmark = [pytest.mark.paired, pytest.mark.integration, pytest.mark.timeout(600)]

SAMPLES, BATCH, EPOCHS = 8000, 20, 2
SOON_S = 10.0


class Elastic(Moved):
    """A hub, and nodes of one rank each that run the example."""

    def start(self, *names):
        for name in names:
            self.nodes.append(
                self.spawn(
                    *("run", "--job", "j", "--node", name, "--nnodes", "1:2", "--nproc-per-node", "1"),
                    *("--log-dir", str(self.folder / name), str(ROOT / "examples" / "train_elastic.py")),
                    *("--samples", str(SAMPLES), "--batch", str(BATCH), "--epochs", str(EPOCHS)),
                    *("--microbatch", "6", "--pause", "0.05", "--record", str(self.folder / "ids")),
                )
            )
        return self.nodes[-1]

    def kill(self, agent):
        """Kill a node's agent. Its ranks end with it."""
        agent.kill()
        agent.wait(60)
        self.nodes.remove(agent)

    def trains_on(self, ranks):
        """Whether the job runs with so many ranks and has done a step since."""
        job = self.ask() or {}
        return (job.get("state"), job.get("world_size")) == ("running", ranks) and not self.recovering(job)

    @staticmethod
    def recovering(job):
        return job["verdict"]["state"] in ("recovering", "starting")

    def seconds_until(self, ranks):
        began = time.monotonic()
        assert until(lambda: self.trains_on(ranks), 90), self.ask()
        return time.monotonic() - began

    def connected(self, name):
        return any(n["node"] == name and n["connected"] for n in (self.ask() or {}).get("nodes", ()))

    def samples_used(self):
        """How often each sample of each epoch was used by the attempt that did its step last."""
        last, ids = {}, {}
        for file in (self.folder / "ids").glob("*.jsonl"):
            attempt = int(re.match(r"attempt-(\d+)-", file.name)[1])
            for line in file.read_text().splitlines():
                row = json.loads(line)
                step = row["step"]
                if attempt > last.get(step, -1):
                    last[step], ids[step] = attempt, []
                if attempt == last[step]:
                    ids[step] += [(row["epoch"], index) for index in row["ids"]]
        return Counter(sample for of_step in ids.values() for sample in of_step)

    def finishes(self):
        for node in self.nodes:
            assert node.wait(timeout=240) == 0
        said = "".join(p.read_text() for p in self.folder.rglob("*.out"))
        assert len(set(re.findall(r"weights (\w{64})", said))) == 1
        once = {(epoch, index): 1 for epoch in range(EPOCHS) for index in range(SAMPLES)}
        assert self.samples_used() == Counter(once)


@pytest.fixture
def site(tmp_path):
    site = Elastic(tmp_path / "site")
    yield site
    site.close()


def test_a_job_that_loses_a_node_trains_on_and_grows_when_it_is_back(site):
    site.start("a")
    lost = site.start("b")
    site.reach(20)
    site.kill(lost)
    assert site.seconds_until(1) < SOON_S
    [shrunk] = (event for event in site.events("shrink"))
    assert (shrunk["from"], shrunk["to"], shrunk["left"]) == (2, 1, ["b"])
    site.start("b")
    assert until(lambda: site.connected("b"), 60)
    assert site.seconds_until(2) < SOON_S
    assert until(lambda: len(site.events("grow")) == 1)
    recovery = site.recoveries()[-1]
    assert (recovery["cause"], recovery["resumed_by"]) == ("grow", "checkpointer")
    assert recovery["lost_steps"] <= 2
    site.finishes()


@pytest.mark.long
def test_a_node_that_is_killed_while_the_job_grows_leaves_a_running_job(site):
    site.start("a")
    lost = site.start("b")
    site.reach(20)
    site.kill(lost)
    site.seconds_until(1)
    lost = site.start("b")
    assert until(lambda: (site.ask() or {}).get("world_size") == 2, 90)
    site.kill(lost)
    site.seconds_until(1)
    site.start("b")
    site.seconds_until(2)
    site.finishes()


@pytest.mark.long
def test_the_first_node_can_be_the_one_that_is_lost(site):
    lost = site.start("a")
    site.start("b")
    site.reach(20)
    site.kill(lost)
    assert site.seconds_until(1) < SOON_S
    assert until(lambda: any(n["node"] == "b" and n["node_rank"] == 0 for n in site.ask()["nodes"]))
    site.finishes()
