"""A real hub over TLS, with a real agent, its own dashboard and commands. All check its certificate."""

import asyncio
import json
import os
import socket
import ssl
import subprocess
import sys
import urllib.request
from urllib.parse import urlsplit

import pytest

from pulsetrain.agent.hub_connection import HubConnection
from pulsetrain.core.errors import UsageError
from pulsetrain.hub.token_file import Role, TokenFile
from pulsetrain.protocol import tls
from pulsetrain.protocol.client import HubAddress, HubClient
from tests.agent.real_processes import TRAIN, until
from tests.hub.test_moved_job import SCRIPT
from tests.protocol.tls_server import issued
from tests.recovery.builders import hello

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def pulsetrain(*words, env, timeout=90):
    command = [sys.executable, "-m", "pulsetrain.cli", *map(str, words)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def env(folder):
    """The environment on another machine: it knows the CA, and not the folder of the hub."""
    names = ("PULSETRAIN_HUB", "PULSETRAIN_TOKEN")
    clean = {name: value for name, value in os.environ.items() if name not in names}
    return clean | {
        "PULSETRAIN_DATA": str(folder / "elsewhere"),
        "PULSETRAIN_CA": str(folder / "ca" / "ca.pem"),
    }


@pytest.fixture(scope="module")
def hub(folder, env):
    """What the hub says of itself in hub.json."""
    certificate = issued(folder / "ca", "head")
    data = folder / "data"
    words = ("serve", "--data", data, "--port", "0", "--dashboard-port", "0")
    command = [sys.executable, "-m", "pulsetrain.cli", *map(str, words)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--tls-certificate", str(certificate.certificate)], env=env, stdout=log, stderr=log
        )
    try:
        assert until((data / "hub.json").exists, 60), (folder / "log").read_text()
        yield json.loads((data / "hub.json").read_text())
    finally:
        process.terminate()
        process.wait(30)


def at(hub):
    return ("--hub", hub["url"], "--token", hub["token"])


def hosts(hub, env):
    """The hosts of the certificate that the hub shows now."""
    port = urlsplit(hub["url"]).port
    with (
        socket.create_connection(("127.0.0.1", port), 10) as plain,
        tls.client_context(env["PULSETRAIN_CA"]).wrap_socket(plain, server_hostname="localhost") as shown,
    ):
        return [name for _, name in shown.getpeercert()["subjectAltName"]]


def test_a_job_trains_over_tls_and_commands_see_it(hub, env, folder):
    assert hub["url"].startswith("https://")
    script = folder / "train.py"
    script.write_text(TRAIN)
    done = pulsetrain(
        *("run", *at(hub), "--job", "j", "--nproc-per-node", "1", script, "5"), env=env, timeout=140
    )
    assert done.returncode == 0, done.stderr
    status = json.loads(pulsetrain("status", *at(hub), "--json", env=env).stdout)
    assert [(job["job"], job["state"]) for job in status["jobs"]] == [("j", "finished")]
    steps = pulsetrain("analyze", "--job", "j", *at(hub), "--json", env=env)  # asks the store over TLS
    assert steps.returncode in (0, 1), steps.stderr


def test_who_does_not_know_the_ca_is_told_so_and_sends_no_token(hub, env, folder):
    issued(folder / "other")
    script = folder / "train.py"
    script.write_text(TRAIN)
    stranger = env | {"PULSETRAIN_CA": str(folder / "other" / "ca.pem")}
    for words in (("status",), ("run", "--job", "k", "--nproc-per-node", "1", script, "1")):
        done = pulsetrain(words[0], *at(hub), *words[1:], env=stranger)
        assert done.returncode == 2, done.stderr
        assert "its certificate is by a CA that is not known here" in done.stderr.splitlines()[-1]
        assert "Traceback" not in done.stderr


def test_on_the_hubs_own_machine_nothing_has_to_be_said(hub, env, folder):
    here = {name: value for name, value in env.items() if name != "PULSETRAIN_CA"}
    assert pulsetrain("status", "--data", folder / "data", env=here).returncode == 0


def test_the_dashboard_speaks_tls_too(hub, env):
    assert hub["dashboard"].startswith("https://")
    context = ssl.create_default_context(cafile=env["PULSETRAIN_CA"])

    def healthy():
        try:
            with urllib.request.urlopen(f"{hub['dashboard']}/_stcore/health", context=context) as answer:
                return answer.read() == b"ok"
        except OSError:
            return False

    assert until(healthy, 30)


def test_a_certificate_that_is_issued_anew_is_shown_without_a_restart(hub, env, folder):
    assert "head" in hosts(hub, env)
    issued(folder / "ca", "renewed")
    assert until(lambda: "renewed" in hosts(hub, env), 20)
    status = json.loads(pulsetrain("status", *at(hub), "--json", env=env).stdout)
    assert "certificate" in {row["loop"] for row in status["loops"]}


class Nodes:
    """Three agents over TLS, each with a token of its own node."""

    def __init__(self, hub, env, folder):
        self.env, self.folder, self.processes = env, folder, {}
        self.hub, self.tokens = hub, TokenFile(folder / "data")
        address = HubAddress(url=hub["url"], token=hub["token"], ca=env["PULSETRAIN_CA"])
        self.client = HubClient(address)
        (folder / "train_slowly.py").write_text(SCRIPT)

    def token(self, name):
        return self.tokens.create(f"{name} {len(self.tokens.grants())}", Role.AGENT, node=name, now_ns=1)

    def start(self, name, *more):
        words = ("--hub", self.hub["url"], "--token", self.token(name), "--job", "keyed", "--node", name)
        words += ("--nnodes", "2", "--nproc-per-node", "1", "--log-dir", str(self.folder / name), *more)
        command = [sys.executable, "-m", "pulsetrain.cli", "agent", *words]
        command += [str(self.folder / "train_slowly.py"), "100000"]
        with (self.folder / f"{name}.log").open("wb") as log:
            own = self.env | {"PULSETRAIN_DATA": str(self.folder / f"data of {name}")}
            self.processes[name] = subprocess.Popen(command, env=own, stdout=log, stderr=log)

    def job(self):
        jobs = self.client.status()["jobs"]
        return next((job for job in jobs if job["job"] == "keyed"), {"nodes": [], "step": -1})

    def joined(self):
        return {node["node"] for node in self.job()["nodes"]}

    def close(self):
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.wait(60)


@pytest.fixture
def nodes(hub, env, folder):
    nodes = Nodes(hub, env, folder)
    yield nodes
    nodes.close()


def claim(hub, token, node, env):
    """Say hello for a node of the job. Returns why the hub refused it."""
    said = hello(node, job="keyed", pid=1, nproc_per_node=1)

    async def forge():
        address = HubAddress(url=hub["url"], token=token, ca=env["PULSETRAIN_CA"])
        connection = await HubConnection.open(address, lambda connection, message: None)
        await connection.send(said)
        with pytest.raises(UsageError) as refused:
            await connection.wait(asyncio.Event(), 10)
        await connection.close()
        return str(refused.value)

    return asyncio.run(forge())


def test_agents_with_a_token_each_copy_checkpoints_and_nobody_takes_their_nodes(hub, env, folder, nodes):
    nodes.start("c", "--standby")
    for name in "ab":
        nodes.start(name)
    assert until(lambda: nodes.joined() == {*"abc"} and nodes.job()["step"] >= 20, 120), nodes.job()
    assert "the token is for node 'c'" in claim(hub, nodes.token("c"), "a", env)
    assert "node 'a' is already connected" in claim(hub, hub["token"], "a", env)
    nodes.processes["b"].kill()
    assert until(lambda: nodes.job()["recoveries"], 60), nodes.job()
    (recovery,) = nodes.job()["recoveries"]
    assert (recovery["cause"], recovery["node"]) == ("node_lost", "b")
    assert (recovery["resumed_by"], recovery["resumed_step"] >= 0) == (
        "checkpointer",
        True,
    )  # c got the state of b's rank from a, which has another token
    audit = [json.loads(line) for line in (folder / "data" / "audit.log").read_text().splitlines()]
    assert sum('"refused"' in json.dumps(record) for record in audit) == 2
