"""Real jobs on two devices: premium comes, basic stops at a saved step, goes on later, and ends the same."""

import contextlib
import json
import re

import pytest

from pulsetrain.core.errors import PulsetrainError
from pulsetrain.protocol.client import HubClient, find_hub
from pulsetrain.stream.store.clickhouse import open_store
from tests.agent.real_processes import until
from tests.hub.test_moved_job import SCRIPT
from tests.hub.test_real_job import Site

pytestmark = [pytest.mark.paired, pytest.mark.integration, pytest.mark.timeout(600)]

STEPS, SHORT = 700, 150


class Pooled(Site):
    """A hub whose pool has two devices on this machine."""

    def __init__(self, folder, pool):
        folder.mkdir()
        super().__init__(folder)
        self.env |= {f"PULSETRAIN_POOL_{key.upper()}": value for key, value in pool.items()}
        self.script.write_text(SCRIPT)
        self.start_hub()

    def run(self, job, tier, steps):
        process = self.spawn(
            *("run", "--job", job, "--tier", tier, "--node", job, "--nproc-per-node", "1"),
            *("--log-dir", str(self.folder / job), str(self.script), str(steps)),
        )
        self.nodes.append(process)
        return process

    def status(self):
        with contextlib.suppress(PulsetrainError):
            return HubClient(find_hub(environ=self.env), timeout_s=2.0).status()
        return {"jobs": [], "pool": None}

    def job(self, name):
        return next((job for job in self.status()["jobs"] if job["job"] == name), {})

    def is_in(self, name, state, step=-1):
        job = self.job(name)
        return job.get("state") == state and job["step"] >= step

    def weights(self, job):
        said = "".join(path.read_text() for path in (self.folder / job).rglob("*.out"))
        return re.findall(r"weights 0 (\w{64})", said)

    def events(self, kind, job):
        address = find_hub(environ=self.env)
        store = open_store(address.url, token=address.token)
        try:
            sql = "SELECT detail FROM events WHERE kind = {kind:String} AND job = {job:String} ORDER BY ts"
            return [json.loads(r["detail"]) for r in store.query(sql, {"kind": kind, "job": job}).to_pylist()]
        finally:
            store.close()


@pytest.fixture
def site(tmp_path):
    pool = {"devices_per_machine": "2", "tick_s": "1", "reserve_ratio": "0"}
    site = Pooled(tmp_path / "site", pool)
    yield site
    site.close()


@pytest.fixture
def undisturbed(tmp_path):
    site = Pooled(tmp_path / "undisturbed", {})
    assert site.run("b", "basic", STEPS).wait(180) == 0
    weights = site.weights("b")
    site.close()
    assert len(weights) == 1
    return weights


def test_basic_makes_room_for_premium_and_ends_with_the_same_parameters(undisturbed, site):
    standard = site.run("s", "standard", STEPS)
    basic = site.run("b", "basic", STEPS)
    assert until(lambda: site.is_in("b", "running", 20) and site.is_in("s", "running", 1), 90)
    premium = site.run("p", "premium", SHORT)
    assert until(lambda: site.is_in("b", "preempted"), 90)
    assert until(lambda: site.is_in("p", "running", 1), 90)
    pool = site.status()["pool"]
    assert sum(machine["used"] for machine in pool["machines"].values()) == 2
    assert {row["job"]: row["promised"] for row in pool["jobs"]} == {"s": True, "b": False, "p": True}
    assert [premium.wait(180), basic.wait(180), standard.wait(180)] == [0, 0, 0]
    assert site.weights("b") == undisturbed
    told = [event for event in site.events("preempted", "b") if event["step"] >= 0]
    assert [event["reason"] for event in told] == ["premium job p needs devices"]
    assert told[0]["lost_steps"] <= 2
    done = [event["what"] for event in site.events("pool_action", "b")]
    assert done == ["start", "preempt", "start"]
    assert [event["what"] for event in site.events("pool_action", "s")] == ["start"]
