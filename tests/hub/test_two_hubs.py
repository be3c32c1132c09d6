"""Three real etcd members and two real hubs: one leads, and the other one takes over."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import httpx
import pytest

from pulsetrain.kv.address import parse
from pulsetrain.kv.etcd import EtcdStore
from pulsetrain.kv.store import Compare, Of, Write
from tests.agent.real_processes import TRAIN, until
from tests.kv.cluster import Cluster, Wires, free_ports, needs_etcd

pytestmark = [pytest.mark.integration, pytest.mark.alone, needs_etcd, pytest.mark.timeout(300)]

TOKEN = "one token for both"


class Hub:
    """One `pulsetrain serve`."""

    def __init__(self, folder, url):
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        self.log = folder / "log"
        folder.mkdir()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "pulsetrain.cli", "serve", "--no-dashboard"),
                    *("--data", str(folder / "data"), "--port", str(port), "--kv", url),
                ],
                env=os.environ | {"PULSETRAIN_HUB_TOKEN": TOKEN},
                stdout=log,
                stderr=log,
            )

    def get(self, path):
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(self.url + path, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=2)
        return None

    def role(self):
        answer = self.get("/v1/leader")
        return answer.json()["role"] if answer is not None else None

    def status(self):
        return self.get("/v1/status").json()["hub"]

    def job(self, name):
        answer = self.get("/v1/status")
        jobs = answer.json()["jobs"] if answer is not None and answer.status_code == 200 else []
        return next((job for job in jobs if job["job"] == name), {})

    def step(self, job):
        return self.job(job).get("step", -1)


@pytest.fixture
def cluster(tmp_path):
    with Cluster(tmp_path, count=3) as cluster:
        yield cluster


@pytest.fixture
def wires(cluster):
    """Of each hub to etcd."""
    wires = [Wires(cluster) for _ in "ab"]
    yield wires
    for each in wires:
        each.close()


@pytest.fixture
def hubs(tmp_path, wires):
    hubs = [Hub(tmp_path / name, each.url) for name, each in zip("ab", wires, strict=True)]
    for hub, each in zip(hubs, wires, strict=True):
        hub.wires = each
    try:
        roles = ["leader", "waiting"]
        assert until(lambda: sorted(str(h.role()) for h in hubs) == roles, 120), hubs[0].log.read_text()
        leader, other = sorted(hubs, key=Hub.role)
        assert until(lambda: other.status()["leader"] == leader.url, 10), other.log.read_text()
        yield [leader, other]
    finally:
        for hub in hubs:
            hub.process.send_signal(signal.SIGCONT)
            hub.process.terminate()
            hub.process.wait(60)


@pytest.fixture
def store(cluster):
    store = EtcdStore(parse(cluster.url, {}), prefix="/pulsetrain/")
    yield store
    store.close()


def leads_after(hub):
    began = time.monotonic()
    assert until(lambda: hub.role() == "leader", 30), hub.log.read_text()[-2000:]
    return time.monotonic() - began


def test_a_leader_is_killed_and_the_other_hub_leads_within_5_s(hubs):
    leader, other = hubs
    assert "pulsetrain_hub_leading 0.0" in other.get("/metrics").text
    assert other.get("/v1/nodes").status_code == 503
    leader.process.kill()
    assert leads_after(other) < 5
    assert other.get("/v1/nodes").json() == {"nodes": []}
    assert "pulsetrain_hub_leading 1.0" in other.get("/metrics").text
    assert other.status()["leader"] == other.url


def test_a_leader_and_a_member_of_etcd_are_killed_at_once_and_the_other_hub_leads_within_10_s(cluster, hubs):
    leader, other = hubs
    cluster.members[0].kill()
    leader.process.kill()
    assert leads_after(other) < 10


def test_a_leader_that_was_stopped_and_goes_on_writes_nothing_and_ends(hubs, store):
    leader, other = hubs
    fence = Compare(key="leader", of=Of.CREATED, revision=store.get("leader").created)
    assert store.commit([fence], [Write(key="jobs/j/evictions", value="[1]")]).ok
    leader.process.send_signal(signal.SIGSTOP)
    assert leads_after(other) < 5
    leader.process.send_signal(signal.SIGCONT)
    assert not store.commit([fence], [Write(key="jobs/j/evictions", value="[]")]).ok
    assert store.get("jobs/j/evictions").value == "[1]"
    assert leader.process.wait(30) == 1
    assert "does not lead any more" in leader.log.read_text()
    assert other.role() == "leader"


def test_a_leader_that_ends_hands_over_at_once(hubs):
    leader, other = hubs
    leader.process.terminate()
    assert leader.process.wait(60) == 0
    assert leads_after(other) < 2


@contextlib.contextmanager
def running_agent(hubs, tmp_path, script, *arguments, flags=()):
    """An agent of one rank, that knows both hubs. Yields its process and its log."""
    command = (
        "run",
        "--hub",
        ",".join(hub.url for hub in hubs),
        "--job",
        "j",
        "--nproc-per-node",
        "1",
        *flags,
    )
    path, log_path = tmp_path / "train.py", tmp_path / "agent.log"
    path.write_text(script)
    own = {"PULSETRAIN_TOKEN": TOKEN, "PULSETRAIN_DATA": str(tmp_path / "agent")}
    with log_path.open("wb") as log:
        agent = subprocess.Popen(
            [sys.executable, "-m", "pulsetrain.cli", *command, str(path), *arguments],
            env=os.environ | own,
            stdout=log,
            stderr=log,
        )
    try:
        yield agent, log_path
    finally:
        agent.terminate()
        agent.wait(60)


FAILING = """
import os, sys, time
import pulsetrain

pulse = pulsetrain.init()
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
for step in range(100_000):
    pulse.step()
    time.sleep(0.02)
    if attempt == 0 and step == 20 or os.path.exists(sys.argv[1]):
        raise SystemExit(3)
"""


def test_restarts_that_a_job_has_used_up_are_known_to_the_hub_that_takes_over(hubs, store, tmp_path):
    leader, other = hubs
    fail = tmp_path / "fail"
    once = ("--max-restarts", "1")
    with running_agent(hubs, tmp_path, FAILING, str(fail), flags=once) as (agent, log):
        assert until(lambda: leader.job("j").get("attempt") == 1 and leader.step("j") > 5, 120)
        assert until(lambda: '"attempt": 1' in store.get("jobs/j/world").value, 10)
        leader.process.kill()
        assert until(lambda: other.step("j") > 20, 60), other.log.read_text()[-2000:]
        fail.touch()
        assert agent.wait(60) == 3, log.read_text()[-2000:]
        verdict = other.job("j")["verdict"]
        assert (verdict["state"], other.job("j")["attempt"]) == ("failed", 1), verdict


DYING = """
import os, sys, time
import pulsetrain

pulse = pulsetrain.init()
for step in range(100_000):
    pulse.step()
    time.sleep(0.02)
    if os.path.exists(sys.argv[1]):
        os.remove(sys.argv[1])
        raise SystemExit(3)
"""


def test_commands_of_a_leader_that_is_cut_off_are_refused_and_the_next_leader_heals_the_job(hubs, tmp_path):
    leader, other = hubs
    die = tmp_path / "die"
    with running_agent(hubs, tmp_path, DYING, str(die)) as (_, log):
        assert until(lambda: leader.step("j") > 20, 120), log.read_text()[-2000:]
        leader.wires.cut()
        die.touch()
        assert until(lambda: other.job("j").get("attempt") == 1 and other.step("j") > 5, 30), log.read_text()
        assert until(lambda: "nothing done: the hub did not show that it leads" in log.read_text(), 10)
        assert leader.process.wait(30) == 1


def test_an_agent_leaves_a_leader_that_stands_still_once_another_one_leads(hubs, tmp_path):
    leader, other = hubs
    with running_agent(hubs, tmp_path, TRAIN, "2000") as (_, log):
        assert until(lambda: leader.step("j") > 20, 120), log.read_text()[-2000:]
        leader.process.send_signal(signal.SIGSTOP)
        assert until(lambda: other.step("j") > 20, 10), log.read_text()[-2000:]
        assert other.job("j")["attempt"] == 0


def test_an_agent_that_is_told_of_both_hubs_follows_the_leader_while_its_job_trains_on(hubs, tmp_path):
    leader, other = hubs
    with running_agent([other, leader], tmp_path, TRAIN, "600") as (agent, log):
        assert until(lambda: leader.step("j") > 20, 120), log.read_text()[-2000:]
        leader.process.kill()
        assert until(lambda: other.step("j") > 100, 60)
        assert other.job("j")["attempt"] == 0
        assert agent.wait(120) == 0
        assert until(lambda: other.job("j")["verdict"]["state"] == "finished")
