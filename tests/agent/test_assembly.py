"""A whole agent in this process: real spool, recorder and checkpoints, no ranks, a hub that takes notes."""

import contextlib
import queue
import threading
from dataclasses import replace

import pytest

from pulsetrain.agent.assembly import AgentSetup, assemble
from pulsetrain.agent.config import AgentConfig
from pulsetrain.agent.launch_options import LaunchOptions, NodeOptions
from pulsetrain.agent.processes.rank import Program
from pulsetrain.core.errors import ConfigError, FolderInUse
from pulsetrain.protocol.client import HubAddress
from pulsetrain.protocol.messages import Heartbeat, Hello, Leave
from pulsetrain.stream.spool.queue import Spool
from tests.agent.fakehub import TOKEN, FakeHub
from tests.agent.fakenode import FakeZygotes

LOOPS = {
    "supervise",
    "hub_link",
    "spool_writer",
    "shipper",
    "replicate",
    "accept_peers",
    "persist",
    "drain_rings",
    "sample",
    "rare_sources",
    "echo_output",
}


@pytest.fixture
def hub():
    hub = FakeHub()
    yield hub
    hub.down()


def setup(hub, folder, **options):
    return AgentSetup(
        options=LaunchOptions(
            program=Program(argv=("train.py",)),
            node=NodeOptions(job="job", node="a"),
            environ={},
            **options,
        ),
        config=AgentConfig(heartbeat_s=0.05, watch_s=0.01, flush_s=0.0),
        file={},
        hub=HubAddress(url=hub.url, token=TOKEN),
        folder=folder,
    )


def test_an_agent_reports_all_its_loops_records_its_node_and_leaves(hub, tmp_path):
    zygotes, outcomes = FakeZygotes(), []
    with assemble(setup(hub, tmp_path, checkpoints=str(tmp_path / "stored")), zygotes) as agent:
        thread = threading.Thread(target=lambda: outcomes.append(agent.run()))
        thread.start()
        assert hub.wait(Hello).peer_port > 0
        heartbeat = hub.wait(Heartbeat, lambda h: all(loop.turns for loop in h.loops))
        assert {loop.name for loop in heartbeat.loops} - {"hardware", "fake"} == LOOPS
        assert sum(loop.failures for loop in heartbeat.loops) == 0
        hub.ask("a", Leave, reason="job finished")
        thread.join(40)
    assert outcomes[0].reason == "job finished"
    assert zygotes.current.closed
    assert backlog(tmp_path / "spool") > 0


def test_a_storage_that_cannot_be_written_is_told_at_the_start(hub, tmp_path):
    (tmp_path / "file").touch()
    said = queue.Queue()
    storage = str(tmp_path / "file" / "stored")
    with assemble(replace(setup(hub, tmp_path, checkpoints=storage), say=said.put), FakeZygotes()):
        line = said.get(timeout=10)
    assert line == f"warning: checkpoints cannot be written to {storage}: Not a directory"


def backlog(folder) -> int:
    """Batches that lie in a spool."""
    spool = Spool(folder, node="a")
    try:
        return spool.backlog
    finally:
        spool.close()


def test_a_bad_key_of_the_checkpoints_is_named_before_anything_runs(hub, tmp_path):
    bad = setup(hub, tmp_path)
    bad.file["checkpoint"] = {"replicaz": 3}
    with pytest.raises(ConfigError, match=r"unknown key checkpoint\.replicaz"), assemble(bad, FakeZygotes()):
        pytest.fail("it was assembled")


def test_a_second_run_of_the_same_node_of_a_job_hears_what_to_do(hub, tmp_path):
    spool = Spool(tmp_path / "spool", node="a")
    words = (
        r"job 'job' already runs on this machine as node 'a': give another --job, or another --node .*/spool"
    )
    with (
        contextlib.closing(spool),
        pytest.raises(FolderInUse, match=words),
        assemble(setup(hub, tmp_path), FakeZygotes()),
    ):
        pytest.fail("it was assembled")


def test_a_log_rule_that_cannot_be_used_is_named_before_anything_runs(hub, tmp_path):
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\nname = "bad"\npattern = "("\n')
    bad = replace(setup(hub, tmp_path), config=AgentConfig(log_rules=str(rules)))
    with pytest.raises(ConfigError, match="rule 'bad'"), assemble(bad, FakeZygotes()):
        pytest.fail("it was assembled")


def test_the_identity_is_the_options(hub, tmp_path):
    identity = setup(hub, tmp_path).identity
    assert (identity.job, identity.node, identity.address) == ("job", "a", "127.0.0.1")


def test_the_switch_of_the_node_is_in_the_sites_file(hub, tmp_path):
    file = tmp_path / "topology.conf"
    file.write_text("SwitchName=s3 Nodes=a,b\n")
    placed = replace(setup(hub, tmp_path), config=AgentConfig(topology=str(file)))
    assert placed.identity.switch == "s3"
    assert setup(hub, tmp_path).identity.switch == ""
