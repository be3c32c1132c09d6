"""A small simulated fleet against a real hub: who is planted is named, and who is evicted is replaced."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys

import pytest

from pulsetrain.core.errors import PulsetrainError
from pulsetrain.protocol.client import HubClient, find_hub
from pulsetrain.stream.queries import views
from pulsetrain.stream.store.clickhouse import open_store
from tests.agent.real_processes import until

JOB = "simulated-live"
PATIENCE_S = 120


class Site:
    """A hub on a folder, and a fleet that feeds it."""

    def __init__(self, folder, stack):
        self.folder, self.stack = folder, stack
        self.env = os.environ | {"PULSETRAIN_DATA": str(folder / "hub")}
        self.log = stack.enter_context((folder / "log").open("ab"))
        self.spawn("serve", "--data", str(folder / "hub"), "--port", "0", "--no-dashboard")
        assert until(lambda: (folder / "hub" / "hub.json").exists(), PATIENCE_S), self.said()
        self.address = find_hub(environ=self.env)
        self.client = HubClient(self.address, timeout_s=20.0)

    def said(self):
        return (self.folder / "log").read_text()[-3000:]

    def spawn(self, *words, **options):
        child = subprocess.Popen(
            [sys.executable, "-m", "pulsetrain.cli", *words],
            env=self.env, stdout=options.get("stdout", self.log), stderr=self.log, start_new_session=True,
        )  # fmt: skip

        def end():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()

        self.stack.callback(end)
        return child

    def feed(self, plan):
        """A fleet of four nodes of two ranks and one standby, with a plan in TOML."""
        path = self.folder / "plan.toml"
        path.write_text(plan)
        shape = ("--nodes", "4", "--ranks-per-node", "2", "--standbys", "1", "--step-s", "0.5")
        reports = self.stack.enter_context((self.folder / "reports").open("wb"))
        return self.spawn(
            *(
                "simulate",
                "fleet-live",
                *shape,
                "--plan",
                str(path),
                "--relaunch-s",
                "1",
                "--say-s",
                "1",
                "--json",
            ),
            stdout=reports,
        )

    def job(self):
        """The job as the hub sees it, {} where it has none yet."""
        with contextlib.suppress(PulsetrainError):
            return next((j for j in self.client.status()["jobs"] if j["job"] == JOB), {})
        return {}

    def found(self):
        """Every finding so far: kind and subject."""
        return {(f["kind"], f["subject"]) for f in self.job().get("findings", ())}


@pytest.fixture
def site(tmp_path):
    with contextlib.ExitStack() as stack:
        yield Site(tmp_path, stack)


@pytest.mark.integration
@pytest.mark.slow
def test_a_planted_slow_rank_is_named_and_nobody_else(site):
    fleet = site.feed('[[fault]]\nkind = "slow_rank"\nat_s = 2\nrank = 5\nfactor = 1.6\n')
    assert until(lambda: ("straggler", "5") in site.found(), PATIENCE_S), site.said()
    about_ranks = {subject for kind, subject in site.found() if kind in ("straggler", "fail_slow")}
    assert about_ranks == {"5"}
    job = site.job()
    assert job["instrumentation"]["source"] == "simulated"
    assert all(node["node"].startswith("sim-") for node in job["nodes"])
    fleet.send_signal(signal.SIGTERM)
    assert fleet.wait(60) == 130
    reports = [json.loads(line) for line in (site.folder / "reports").read_text().splitlines()]
    assert reports[-1]["interrupted"]
    assert reports[-1]["dropped_rows"] == 0
    assert any(report["hub"]["state"] for report in reports[:-1])
    store = open_store(site.address.url, token=site.address.token)
    with contextlib.closing(store):
        kinds = {row["kind"] for row in views.events(store, JOB).to_pylist()}
        steps = store.query("SELECT uniq(rank) AS ranks, count() AS rows FROM steps").to_pylist()[0]
    assert {"simulated", "simulated_fault", "attempt_started"} <= kinds
    assert steps["ranks"] == 8
    assert steps["rows"] >= 8 * 16


@pytest.mark.integration
@pytest.mark.slow
def test_the_node_of_a_hung_rank_is_evicted_and_a_standby_takes_its_place(site):
    site.feed('[[fault]]\nkind = "hung_rank"\nat_s = 8\nrank = 3\n')
    assert until(lambda: site.job().get("attempt") == 1, PATIENCE_S), site.said()
    assert until(lambda: site.job().get("recoveries"), PATIENCE_S), site.said()
    job = site.job()
    nodes = {node["node"]: node for node in job["nodes"]}
    assert nodes["sim-00001"]["state"] == "evicted"
    assert nodes["sim-00004"]["ranks"] == [2, 3]
    [recovery] = job["recoveries"]
    assert (recovery["cause"], recovery["culprit"], recovery["node"]) == ("hang", "rank 3", "sim-00001")
    assert recovery["resumed_by"] == "checkpointer"
    assert until(lambda: site.job().get("step", -1) > recovery["from_step"], PATIENCE_S), site.said()
