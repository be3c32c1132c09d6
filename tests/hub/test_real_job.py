"""A real hub, real agents, a real job: the hub is killed or stands still, and training does not notice."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest

from pulsetrain.core.errors import PulsetrainError
from pulsetrain.protocol.client import HubClient, find_hub
from pulsetrain.stream.store.clickhouse import open_store
from tests.agent.real_processes import TRAIN, until, with_environment

pytestmark = [pytest.mark.alone, pytest.mark.integration, pytest.mark.timeout(600)]

STEPS = 400


class Site:
    """A hub on a folder and two nodes of one rank each."""

    def __init__(self, folder):
        self.folder = folder
        self.mark = f"{folder}"
        self.env = os.environ | {"PULSETRAIN_DATA": str(folder / "hub"), "SITE_MARK": self.mark}
        self.script = folder / "train.py"
        self.script.write_text(TRAIN)
        self.log = (folder / "log").open("ab")
        self.hub, self.nodes = None, []

    def spawn(self, *args):
        return subprocess.Popen(
            [sys.executable, "-m", "pulsetrain.cli", *args],
            env=self.env,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
        )

    def start_hub(self, port=0):
        self.hub = self.spawn(
            "serve", "--data", str(self.folder / "hub"), "--port", str(port), "--no-dashboard"
        )
        assert until(lambda: self.ask() is not None, 90), (self.folder / "log").read_text()[-2000:]

    def ask(self):
        """The hub's first job, {} where there is none yet, None where the hub does not answer."""
        with contextlib.suppress(PulsetrainError):
            return next(iter(HubClient(find_hub(environ=self.env), timeout_s=2.0).status()["jobs"]), {})
        return None

    def start_nodes(self, steps=STEPS):
        for name in ("a", "b"):
            self.nodes.append(
                self.spawn(
                    *("run", "--job", "j", "--node", name, "--nnodes", "2", "--nproc-per-node", "1"),
                    *("--log-dir", str(self.folder / name), str(self.script), str(steps)),
                )
            )

    def reach(self, step, seconds=120):
        assert until(lambda: (self.ask() or {}).get("step", -1) >= step, seconds), self.ask()

    def stored_steps(self):
        address = find_hub(environ=self.env)
        store = open_store(address.url, token=address.token)
        try:
            return Counter(
                (r["rank"], r["step"]) for r in store.query("SELECT rank, step FROM steps").to_pylist()
            )
        finally:
            store.close()

    def close(self):
        for process in (*self.nodes, self.hub):
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in (*self.nodes, self.hub):
            if process is not None:
                process.wait(timeout=60)
        self.log.close()


@contextlib.contextmanager
def opened(site):
    """A site whose hub runs. In the end no process of it is left."""
    try:
        site.start_hub()
        yield site
    finally:
        site.close()
    assert until(lambda: not with_environment("SITE_MARK", site.mark))


@pytest.fixture
def site(tmp_path):
    with opened(Site(tmp_path)) as site:
        yield site


def finished(site):
    assert [node.wait(timeout=180) for node in site.nodes] == [0, 0]
    expected = Counter({(rank, step): 1 for rank in range(2) for step in range(STEPS)})
    assert until(lambda: site.stored_steps() == expected, 60), expected - site.stored_steps()


def test_a_hub_killed_and_restarted_loses_no_row_and_restarts_nothing(site):
    site.start_nodes()
    site.reach(20)
    port = int(find_hub(environ=site.env).url.rpartition(":")[2])
    site.hub.kill()
    site.hub.wait()
    time.sleep(3)
    site.start_hub(port)
    site.reach(100)
    assert site.ask()["attempt"] == 0
    finished(site)


def test_a_hub_that_stands_still_accuses_nobody_when_it_goes_on(site):
    site.start_nodes()
    site.reach(20)
    site.hub.send_signal(signal.SIGSTOP)
    time.sleep(5)
    site.hub.send_signal(signal.SIGCONT)
    site.reach(100)
    assert site.ask()["attempt"] == 0
    finished(site)
