"""Real jobs whose ranks meet at a store beside the hub. The node of rank 0 is lost, and so is the store."""

import psutil
import pytest

from pulsetrain.protocol.client import find_hub
from tests.agent.real_processes import TRAIN, until, with_environment
from tests.hub.test_real_job import Site

pytestmark = [pytest.mark.paired, pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

HALF_MET = """
import os, pathlib, sys, time
here, rank = pathlib.Path(sys.argv[2]), os.environ["RANK"]
(here / f"rank-{rank}-{os.environ['TORCHELASTIC_RESTART_COUNT']}").write_text(os.environ["MASTER_PORT"])
if rank == "0" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    time.sleep(600)  # the others wait for it at the store
"""


class Hosted(Site):
    """A hub, two nodes and a standby. A job in `half_met` waits in its rendezvous for rank 0."""

    def __init__(self, folder, *, half_met):
        super().__init__(folder)
        self.env |= {"PULSETRAIN_HUB_RENDEZVOUS": "hub"}
        self.script.write_text((HALF_MET if half_met else "") + TRAIN)
        self.start_hub()
        for name, more in (("a", ()), ("b", ()), ("c", ("--standby",))):
            self.nodes.append(
                self.spawn(
                    *("agent", "--job", "j", "--node", name, "--nnodes", "2", "--nproc-per-node", "1"),
                    *(*more, str(self.script), "100000", str(folder)),
                )
            )

    def process(self, title):
        """The process of this site that shows this title."""
        found = [psutil.Process(pid) for pid in with_environment("SITE_MARK", self.mark)]
        return next((process for process in found if title in " ".join(process.cmdline())), None)

    def stores(self):
        """The process that hosts the stores, and the ports at which it listens."""
        process = self.process("rendezvous stores")
        found = process.net_connections("tcp") if process is not None else []
        return process, {c.laddr.port for c in found if c.status == psutil.CONN_LISTEN}

    def close(self):
        process, _ = self.stores()
        super().close()
        if process is not None:  # it would wait two minutes for ranks
            process.kill()


@pytest.fixture
def make(tmp_path):
    sites = []

    def make(**how):
        sites.append(Hosted(tmp_path, **how))
        return sites[-1]

    yield make
    for site in sites:
        site.close()


def test_the_node_of_rank_0_is_killed_while_others_wait_at_the_store_and_the_job_goes_on(make, tmp_path):
    site = make(half_met=True)
    assert until(lambda: (tmp_path / "rank-0-0").exists() and (tmp_path / "rank-1-0").exists(), 90)
    process, ports = site.stores()
    assert int((tmp_path / "rank-1-0").read_text()) in ports
    assert until(lambda: len(site.ask()["nodes"]) == 3, 60)  # the standby is there
    site.nodes[0].kill()
    site.reach(5, 90)
    job = site.ask()
    assert (job["attempt"], job["state"]) == (1, "running")
    assert process.is_running()
    assert int((tmp_path / "rank-0-1").read_text()) in site.stores()[1]


def test_a_job_trains_on_when_the_process_of_the_store_is_killed_and_the_next_attempt_gets_a_new_one(make):
    site = make(half_met=False)
    site.reach(5, 90)
    process, _ = site.stores()
    process.kill()
    step = site.ask()["step"]
    site.reach(step + 100, 60)
    assert site.ask()["attempt"] == 0
    site.process("rank 1 of job j").kill()
    assert until(lambda: site.ask()["attempt"] == 1 and site.ask()["state"] == "running", 60)
    site.reach(5)
    assert site.stores()[0] not in (None, process)


def test_a_job_trains_on_when_the_hub_is_killed_and_its_store_stays(make):
    site = make(half_met=False)
    site.reach(5, 90)
    process, ports = site.stores()
    port = int(find_hub(environ=site.env).url.rpartition(":")[2])
    site.hub.kill()
    site.hub.wait(10)
    site.start_hub(port)
    site.reach(100, 60)
    assert site.ask()["attempt"] == 0
    assert site.stores() == (process, ports)
