"""Real agents measure their links: good ones name nobody, a port that the kernel slows down is named."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pulsetrain import faults
from pulsetrain.diagnostics.link_search import ROUNDS_BOUND
from pulsetrain.faults import links
from tests.agent.real_processes import until, with_environment
from tests.hub.test_real_job import Site

pytestmark = [pytest.mark.alone, pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

STARTUP = Path(faults.__file__).parent / "startup"
LIMIT_MBIT = "200"  # of each transfer, so that busy processors reach it too
SLOW_BITS_PER_S = 4e7
NODES = "abcd"


class Network(Site):
    """A hub and four nodes of one rank each. The port of `b` can be slowed down."""

    def __init__(self, folder):
        super().__init__(folder)
        self.fault = folder / "fault"

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
    site = Network(tmp_path)
    site.start_hub()
    yield site
    site.close()
    assert until(lambda: not with_environment("SITE_MARK", site.mark))


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
    assert answer["rounds"] <= ROUNDS_BOUND

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
