"""The program of a real job is updated: with its next restart, at a saved step, and back where it fails."""

import json
import os
import signal

import pytest

from pulsetrain.protocol.client import HubClient, find_hub
from pulsetrain.stream.store.clickhouse import open_store
from tests.agent.real_processes import until
from tests.hub.test_real_job import Site, opened

pytestmark = [pytest.mark.paired, pytest.mark.integration, pytest.mark.timeout(600)]

STEPS = "100000"
SCRIPT = """
import os, sys, time
import torch, torch.distributed as dist
import pulsetrain

dist.init_process_group("gloo")
pulse = pulsetrain.init()
model = torch.nn.Linear(4, 4)
checkpointer = pulsetrain.Checkpointer({"model": model}, every=5)
done = checkpointer.restore()
print("runs", sys.argv[2], os.environ.get("UPDATED", "-"), os.getpid(), flush=True)
for step in range(0 if done is None else done + 1, int(sys.argv[1])):
    with pulse.phase("forward"):
        dist.all_reduce(torch.ones(1))
    checkpointer.save(step)
    pulse.step()
    time.sleep(0.02)
"""


class Updated(Site):
    """A hub and one node of two ranks."""

    def __init__(self, folder):
        super().__init__(folder)
        self.script.write_text(SCRIPT)
        self.broken = folder / "broken.py"
        self.broken.write_text("raise RuntimeError('a bad idea')\n")

    def start_node(self):
        self.nodes.append(
            self.spawn(
                *("run", "--job", "j", "--node", "a", "--nnodes", "1", "--nproc-per-node", "2"),
                *("--log-dir", str(self.folder / "a"), str(self.script), STEPS, "first"),
            )
        )

    def update(self, *arguments):
        assert self.spawn("update", "j", "--reason", "a test", *arguments).wait(60) == 0

    def update_is(self, number, state):
        update = (self.ask() or {}).get("update") or {}
        return (update.get("number"), update.get("state")) == (number, state)

    def end_a_rank(self):
        """As the kernel does where memory is short."""
        os.kill(int(self._first_lines()[-1][3]), signal.SIGKILL)

    def said(self):
        """Argument and variable that rank 0 of each attempt printed, in order."""
        return [words[1:3] for words in self._first_lines()]

    def _first_lines(self):
        texts = [log.read_text() for log in sorted((self.folder / "a").rglob("attempt_*/rank_0.out"))]
        return [text.split() for text in texts if text]

    def alert(self):
        """State of the alert on the update."""
        alerts = HubClient(find_hub(environ=self.env)).alerts()
        return next((alert["state"] for alert in alerts if alert["kind"] == "update_rolled_back"), None)

    def events(self, kind):
        """Details of the stored events of a kind."""
        address = find_hub(environ=self.env)
        store = open_store(address.url, token=address.token)
        try:
            rows = store.query("SELECT detail FROM events WHERE kind = {kind:String}", {"kind": kind})
            return [json.loads(row["detail"]) for row in rows.to_pylist()]
        finally:
            store.close()


@pytest.fixture
def site(tmp_path):
    with opened(Updated(tmp_path)) as site:
        yield site


def test_an_update_outlives_the_hub_comes_with_a_restart_and_a_broken_one_goes_again(site):
    site.start_node()
    site.reach(20)
    site.update("--env", "UPDATED=yes", "--", str(site.script), STEPS, "second")
    assert until(lambda: site.update_is(1, "waiting"))
    port = int(find_hub(environ=site.env).url.rpartition(":")[2])
    site.hub.kill()
    site.hub.wait()
    site.start_hub(port)
    assert until(lambda: site.update_is(1, "waiting")), site.ask()
    assert until(lambda: site.ask().get("state") == "running")
    assert site.ask()["attempt"] == 0

    site.end_a_rank()
    assert until(lambda: site.update_is(1, "in_force"), 90), site.ask()
    assert site.said() == [["first", "-"], ["second", "yes"]]
    assert until(lambda: site.events("update_applied"))
    [applied] = site.events("update_applied")
    assert (applied["merged_into"], applied["environment"]) == ("crash", ["UPDATED"])

    site.update("--now", "--", str(site.broken))
    assert until(lambda: site.update_is(2, "rolled_back"), 120), site.ask()
    assert until(lambda: len(site.ask()["recoveries"]) == 2, 90), site.ask()
    row = site.ask()
    assert row["state"] == "running"
    assert row["recoveries"][-1]["lost_steps"] == 0  # it was stopped at a saved step
    assert "a bad idea" in row["update"]["why"]
    assert row["update"]["in_force"]["number"] == 1
    assert until(lambda: site.said()[-1] == ["second", "yes"])
    assert until(lambda: site.alert() == "firing")
    assert until(lambda: site.events("update_rolled_back"))
    assert len(site.events("update_rolled_back")[0]["failed_attempts"]) == 2
