"""A disk that hangs holds up neither what is recorded, nor the ranks' end, nor a checkpoint."""

from __future__ import annotations

import threading
import time

import pytest

from pulsetrain.agent.node import Node, NodeParts
from pulsetrain.agent.recorder import Recorder, RecorderPeriods
from pulsetrain.agent.spool_writer import SpoolWriter
from pulsetrain.protocol.client import HubAddress
from pulsetrain.protocol.messages import Start, Stop
from tests.agent.fakenode import IDENTITY, FakeCheckpoints, FakeRank, FakeRanks, FakeZygotes
from tests.checkpoint.trainers import wait_until
from tests.records.rows import columns

START = Start(id=1, job="job", attempt=0, node_rank=0, world=(), store_address="h", store_port=1)


class Spool:
    """Its disk answers until `answers` is cleared."""

    size_bytes, dropped_rows, dropped = 0, 0, {}

    def __init__(self):
        self.answers, self.written, self.closed = threading.Event(), [], False
        self.answers.set()

    def append(self, batch):
        assert self.answers.wait(10)
        self.written += batch.column("rank").to_list()
        return True

    def close(self):
        assert self.answers.wait(10)
        self.closed = True


@pytest.fixture
def spool():
    spool = Spool()
    yield spool
    spool.answers.set()


@pytest.fixture
def writer(spool):
    writer = SpoolWriter(spool, patience_s=0.05, max_rows=10)
    writer.start()
    yield writer
    spool.answers.set()
    writer.close()


def events(*ranks):
    return columns("events", len(ranks), rank=list(ranks))


def test_a_batch_is_written_when_append_returns(spool, writer):
    assert writer.append(events(1, 2))
    assert spool.written == [1, 2]


def test_rows_wait_for_a_disk_that_hangs_and_those_beyond_the_limit_are_counted(spool, writer):
    spool.answers.clear()
    taken = [writer.append(events(rank, rank, rank, rank)) for rank in range(4)]
    assert taken == [True, True, False, False]
    assert (writer.dropped, writer.dropped_rows) == ({"disk_hung": 8}, 8)
    spool.answers.set()
    wait_until(lambda: len(spool.written) == 8)
    assert spool.written == [0] * 4 + [1] * 4


def test_a_disk_that_answers_again_is_waited_for_again(spool, writer):
    spool.answers.clear()
    writer.append(events(1))
    spool.answers.set()
    wait_until(lambda: spool.written == [1])
    wait_until(lambda: writer.append(events(2)) and spool.written[-1] == 2)


def test_only_the_first_batch_is_waited_for(spool):
    writer = SpoolWriter(spool, patience_s=0.3)
    writer.start()
    spool.answers.clear()
    writer.append(events(0))
    began_s = time.monotonic()
    for rank in range(100):
        writer.append(events(rank))
    assert time.monotonic() - began_s < 0.3


def test_an_error_of_the_spool_is_that_of_its_caller_and_the_next_batch_is_written(
    spool, writer, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr(spool, "append", lambda batch: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            writer.append(events(1))
    writer.append(events(2))
    assert spool.written == [2]


def test_closing_closes_the_spool_and_does_not_wait_for_a_disk_that_hangs(spool, writer):
    spool.answers.clear()
    writer.append(events(1))
    began_s = time.monotonic()
    writer.close()
    assert time.monotonic() - began_s < 5
    assert not spool.closed
    spool.answers.set()
    wait_until(lambda: spool.closed)


class PrintingRank(FakeRank):
    """There is always something to record of it."""

    def batches(self, now_ns):
        return [events(self.rank)]


@pytest.fixture
def node(writer, spool, monkeypatch):
    ranks = FakeRanks(print)
    ranks.all = (PrintingRank(0, 0), PrintingRank(1, 0))
    recorder = Recorder(
        writer, lambda: ranks.all, RecorderPeriods(drain_s=60, echo_s=60, sample_s=60), agent_pid=1
    )
    monkeypatch.setattr(recorder, "follow", lambda ranks: None)
    checkpoints = FakeCheckpoints()
    parts = NodeParts(
        ranks=lambda on_exit: ranks, zygotes=FakeZygotes(), checkpoints=checkpoints, recorder=recorder
    )
    address = HubAddress(url="http://127.0.0.1:1", token="t")
    node = Node(IDENTITY, address, parts, on_rank_exit=print, on_leave=print)
    node.checkpoints = checkpoints
    node.launched(START, began_ns=0)
    spool.answers.clear()
    return node


def test_a_stop_is_answered_and_the_ranks_have_ended(node):
    replies, answered = [], threading.Event()

    def send_reply(reply):
        replies.append(reply.error)
        answered.set()

    node._on_command(Stop(id=1, reason="", grace_s=0.0), send_reply)
    assert answered.wait(5)
    assert (replies, node.ranks.all) == ([""], ())
    node.close()


def test_the_newest_checkpoint_is_persisted(node):
    closing = threading.Thread(target=lambda: node.close(persist_s=20.0), daemon=True)
    closing.start()
    closing.join(5)
    assert node.checkpoints.persisted_for_s == [20.0]
