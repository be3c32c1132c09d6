"""Real agents measure their links: good ones name nobody, a port that the kernel slows down is named."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pulsetrain import faults
from pulsetrain.diagnostics.link_search import MOST_ROUNDS
from pulsetrain.faults import links
from pulsetrain.protocol.client import HubClient, find_hub
from pulsetrain.stream.store.clickhouse import open_store
from tests.agent.real_processes import until
from tests.hub.test_real_job import Site, opened

pytestmark = [pytest.mark.alone, pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

STARTUP = Path(faults.__file__).parent / "startup"
LIMIT_MBIT = "200"  # of each transfer, so that busy processors reach it too
SLOW_BITS_PER_S = 4e7
NODES = "abcd"


RULES = """
[[rule]]
name = "retransmits"
pattern = "retransmit storm"
kind = "slow_link"
"""
SCRIPT = """
import os, sys, time
import torch.distributed as dist
import pulsetrain

dist.init_process_group("gloo")
pulse = pulsetrain.init()
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
for step in range(int(sys.argv[1])):
    if first and step % 20 == 5 and dist.get_rank() == 1:
        print("net: retransmit storm", flush=True)
    if first and dist.get_rank() == 0 and os.path.exists(sys.argv[2]):
        os._exit(1)
    with pulse.phase("forward"):
        time.sleep(0.05)
    dist.barrier()
    pulse.step()
dist.destroy_process_group()
"""


class Network(Site):
    """A hub and four nodes of one rank each. The port of `b` can be slowed down."""

    def __init__(self, folder):
        super().__init__(folder)
        self.fault = folder / "fault"
        self.env["PULSETRAIN_CONTROLLER_LINK_CHECK_MBIT"] = LIMIT_MBIT

    def start_suspected(self, steps):
        """Three nodes and a standby, on addresses of their own. A rule suspects the links of `b`."""
        (self.folder / "rules.toml").write_text(RULES)
        self.script.write_text(SCRIPT)
        own = self.env | {"PULSETRAIN_AGENT_LOG_RULES": str(self.folder / "rules.toml")}
        for number, name in enumerate("abcx"):
            slow = {"PYTHONPATH": str(STARTUP), links.ENVIRONMENT: str(self.fault)} if name == "b" else {}
            self.env = own | slow
            verb = ("agent", "--standby") if name == "x" else ("run",)
            where = ("--address", f"127.0.0.{number + 2}", "--log-dir", str(self.folder / name))
            job = ("--job", "j", "--node", name, "--nnodes", "3", "--nproc-per-node", "1")
            self.nodes.append(
                self.spawn(*verb, *job, *where, str(self.script), str(steps), str(self.folder / "crash"))
            )
        self.env = own

    def events(self, *kinds):
        """Stored events of some kinds."""
        address = find_hub(environ=self.env)
        store = open_store(address.url, token=address.token)
        try:
            rows = store.query("SELECT kind, node, detail FROM events ORDER BY ts").to_pylist()
        finally:
            store.close()
        return [row for row in rows if row["kind"] in kinds]

    def client(self):
        return HubClient(find_hub(environ=self.env))

    def start(self, steps):
        own = self.env
        for name in NODES:
            self.env = own | {"PYTHONPATH": str(STARTUP), links.ENVIRONMENT: str(self.fault)}
            if name != "b":
                self.env = own
            self.nodes.append(
                self.spawn(
                    *("run", "--job", "j", "--node", name, "--nnodes", str(len(NODES))),
                    *("--nproc-per-node", "1", "--log-dir", str(self.folder / name)),
                    *(str(self.script), str(steps)),
                )
            )
        self.env = own

    def diagnose(self, *more):
        command = [sys.executable, "-m", "pulsetrain.cli", "diagnose", "--links", "j", "--json", *more]
        done = subprocess.run(command, env=self.env, capture_output=True, timeout=120, check=False)
        return done.returncode, json.loads(done.stdout or "{}"), done.stderr.decode()


@pytest.fixture
def site(tmp_path):
    with opened(Network(tmp_path)) as site:
        yield site


def test_real_agents_name_the_slow_port_and_nobody_where_links_are_good(site):
    site.start(100_000)
    site.reach(5)

    status, answer, errors = site.diagnose("--limit-mbit", LIMIT_MBIT)
    assert (status, answer.get("named"), answer.get("silent")) == (0, [], {}), (answer, errors)
    assert answer["nodes"] == list(NODES)

    links.slow_down(site.fault, SLOW_BITS_PER_S)
    status, answer, errors = site.diagnose("--limit-mbit", LIMIT_MBIT)
    assert status == 1, (answer, errors)
    assert [(c["kind"], c["name"], c["broken"]) for c in answer["named"]] == [("port", "b/net", False)]
    assert answer["rounds"] <= MOST_ROUNDS

    links.slow_down(site.fault, 0)
    status, answer, errors = site.diagnose("--limit-mbit", LIMIT_MBIT)
    assert [(c["name"], c["broken"]) for c in answer["named"]] == [("b/net", True)], (answer, errors)

    site.fault.unlink()
    _, answer, _ = site.diagnose("--limit-mbit", LIMIT_MBIT)
    assert answer["state"] == "healthy", answer
    assert site.ask()["attempt"] == 0  # the job has trained on

    missing = subprocess.run(
        [sys.executable, "-m", "pulsetrain.cli", "diagnose", "--links", "none"],
        env=site.env,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (missing.returncode, b"no job 'none' runs here; jobs here: j" in missing.stderr) == (2, True)


def test_a_suspected_node_whose_port_is_slow_is_replaced_at_the_next_stop(site):
    links.slow_down(site.fault, SLOW_BITS_PER_S)
    site.start_suspected(1500)
    site.reach(5)
    assert until(lambda: any(a["kind"] == "slow_link" for a in site.client().alerts()), 60)
    assert site.ask()["attempt"] == 0  # nobody stops a job for it

    assert until(lambda: any(r["node"] == "x" and not r["cordon"] for r in site.client().nodes()), 60)

    (site.folder / "crash").touch()
    assert until(lambda: site.nodes[1].poll() is not None, 60), site.events(
        "link_check", "link_check_skipped"
    )
    assert site.nodes[1].wait() == 1, site.events("link_check", "link_check_skipped")
    rows = {row["node"]: row for row in site.client().nodes()}
    assert rows["b"]["reason"].startswith("links: port b/net: out:"), rows
    assert until(lambda: site.ask().get("recoveries"), 60)
    assert [node.wait(120) for node in (site.nodes[0], *site.nodes[2:])] == [0, 0, 0]
