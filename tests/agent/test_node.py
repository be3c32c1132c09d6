"""What a node tells its hub, and what it keeps to itself."""

from dataclasses import replace

import pytest

from pulsetrain.agent.commands import Commands
from pulsetrain.agent.node import Node, NodeParts, UnknownMachine
from pulsetrain.protocol.client import HubAddress
from pulsetrain.protocol.messages import GpuIdentity, Heartbeat, Hello, RankExit, Start, WorldNode
from tests.agent.fakehub import TOKEN, FakeHub
from tests.agent.fakenode import IDENTITY, FakeCheckpoints, FakeRanks, FakeRecorder, FakeZygotes

START = Start(id=1, job="job", attempt=2, node_rank=3, world=(), store_address="h", store_port=1)
WORLD = WorldNode(node="a", node_rank=3, address="h", peer_port=1, nproc=2)


@pytest.fixture
def hub():
    hub = FakeHub()
    yield hub
    hub.down()


def made(hub, **more):
    parts = NodeParts(
        ranks=FakeRanks, zygotes=FakeZygotes(), checkpoints=FakeCheckpoints(), recorder=FakeRecorder(), **more
    )
    address = HubAddress(url=hub.url, token=TOKEN)
    node = Node(IDENTITY, address, parts, on_rank_exit=print, on_leave=lambda command, send_reply: None)
    node.recorder, node.checkpoints = parts.recorder, parts.checkpoints
    return node


@pytest.fixture
def node(hub):
    node = made(hub)
    yield node
    node.close()


def launched(node):
    node.ranks.spawn(None, START, {6: 0, 7: 0})
    node.launched(START, began_ns=0)


def test_a_node_without_ranks_has_no_place_in_the_world(hub, node):
    node.link.start()
    node.link.introduce()
    hello = hub.wait(Hello)
    assert (hello.attempt, hello.node_rank, hello.ranks, hello.peer_port) == (-1, -1, (), 4711)


def test_a_node_tells_how_often_it_reports(hub):
    parts = NodeParts(
        ranks=FakeRanks, zygotes=FakeZygotes(), checkpoints=FakeCheckpoints(), recorder=FakeRecorder(),
        heartbeat_s=2.5,
    )  # fmt: skip
    address = HubAddress(url=hub.url, token=TOKEN)
    node = Node(IDENTITY, address, parts, on_rank_exit=print, on_leave=lambda command, send_reply: None)
    node.link.start()
    node.link.introduce()
    assert hub.wait(Hello).heartbeat_ns == 2_500_000_000
    node.close()


def test_gpus_of_a_driver_that_comes_late_are_told_until_a_hello_has_them(hub):
    machine, gpus = UnknownMachine(), (GpuIdentity(uuid="GPU-1"),)
    node = made(hub, machine=machine)
    node.link.start()
    node.link.introduce()
    assert hub.wait(Hello).gpus == ()
    machine.identities = gpus
    node.send_heartbeat()
    assert hub.wait(Heartbeat).gpus == gpus
    hub.down()
    hub.received.clear()
    hub.up()
    assert hub.wait(Hello).gpus == gpus
    node.send_heartbeat()
    assert hub.wait(Heartbeat).gpus == ()
    node.close()


def test_a_hub_that_comes_back_learns_the_ranks_and_who_has_ended(hub, node):
    launched(node)
    node.ranks.all[1].code = 1
    node.report_exit(node.ranks.all[1].report(IDENTITY, 5))
    node.link.start()
    node.link.introduce()
    hello = hub.wait(Hello)
    assert (hello.attempt, hello.node_rank, hello.ranks) == (2, 3, (6, 7))
    assert hub.wait(RankExit).rank == 7
    hub.down()
    hub.received.clear()
    hub.up()
    assert hub.wait(RankExit).rank == 7
    again = hub.wait(Hello)
    assert (again.attempt, again.agent_id) == (2, hello.agent_id)


def test_each_agent_chooses_an_id_of_its_own(hub, node):
    node.link.start()
    node.link.introduce()
    first = hub.wait(Hello)
    hub.received.clear()
    other = made(hub)
    other.link.start()
    other.link.introduce()
    second = hub.wait(Hello)
    other.close()
    assert first.pid == second.pid
    assert len({first.agent_id, second.agent_id, ""}) == 3


def test_a_hub_that_comes_during_a_restore_learns_what_is_restored_and_no_ranks(hub, node, monkeypatch):
    launched(node)  # ranks that stand, and may be ended yet
    restore = replace(START, image="i", world=(WORLD,))
    monkeypatch.setattr(Commands, "restoring", restore)
    node.link.start()
    node.link.introduce()
    hello = hub.wait(Hello)
    assert (hello.attempt, hello.ranks, hello.restoring) == (-1, (), 2)
    assert (hello.node_rank, hello.world_nodes) == (3, 1)
    node.send_heartbeat()
    assert hub.wait(Heartbeat).restoring == 2
    monkeypatch.setattr(Commands, "restoring", None)
    hub.received.clear()
    node.send_heartbeat()
    heartbeat = hub.wait(Heartbeat)
    assert (heartbeat.attempt, heartbeat.restoring) == (2, -1)


def test_an_exit_of_a_stopped_attempt_is_not_for_the_hub(hub, node):
    launched(node)
    rank = node.ranks.all[0]
    assert node.stop_ranks(0.5) == ""
    node.report_exit(rank.report(IDENTITY, 5))
    node.link.start()
    node.link.introduce()
    hub.wait(Hello)
    node.link.close(flush_s=1.0)
    assert hub.count(RankExit) == 0
    assert node.culprit.rank == 6


def test_output_is_followed_from_launch_to_stop_and_rings_are_drained_before_they_go(node):
    launched(node)
    assert node.recorder.followed == [(6, 7)]
    node.stop_ranks(0.0)
    assert node.recorder.drains == 1
    assert node.recorder.followed == [(6, 7), ()]


def test_ranks_that_do_not_end_are_named_and_do_not_keep_the_node_from_closing(node):
    launched(node)
    node.ranks.stuck = True
    assert "rank 0 (pid 1000) did not end" in node.stop_ranks(0.0)
    node.close()
    assert node.zygote.closed


def test_the_newest_checkpoint_is_persisted_once_the_ranks_have_ended(node, monkeypatch):
    launched(node)
    seen = []
    monkeypatch.setattr(node.checkpoints, "persist_newest", lambda s: seen.append((s, node.ranks.all)) or 3)
    node.close(persist_s=20.0)
    assert seen == [(20.0, ())]


def test_a_storage_that_fails_does_not_keep_the_node_from_closing(node, monkeypatch):
    def fail(timeout_s):
        raise OSError("no space left")

    monkeypatch.setattr(node.checkpoints, "persist_newest", fail)
    node.close(persist_s=20.0)
    assert node.zygote.closed


def test_nothing_is_persisted_unless_it_is_wanted(node):
    launched(node)
    node.close()
    assert node.checkpoints.persisted_for_s == []
    assert not node.checkpoints.finished


def test_a_job_that_finished_waits_for_what_is_on_its_way_to_storage(node):
    launched(node)
    node.close(finished=True)
    assert (node.checkpoints.finished, node.checkpoints.persisted_for_s) == (1, [])
