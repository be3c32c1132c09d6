"""A replica that arrives whole is kept. Anything else is dropped and leaves no trace."""

import os
import socket

import pytest

from pulsetrain.checkpoint.memory.arena import ArenaReader, create_arena
from pulsetrain.checkpoint.peers.block_dedup import BlockDedup
from pulsetrain.checkpoint.peers.incoming import IncomingReplica
from pulsetrain.checkpoint.peers.replicas import Replicas, Snapshot
from pulsetrain.core.errors import CorruptData, Unavailable
from tests.checkpoint.trainers import content, save


class Transfer:
    """A rank's checkpoint on one side, and a node that receives it on the other."""

    def __init__(self) -> None:
        self.fd, self.own = create_arena(), create_arena()
        save(self.fd, 1, 5, world=2)
        self.arena = ArenaReader(self.fd)
        self.info = self.arena.find(1, 5)
        self.data = content(self.fd, 1, 5)
        self.snapshot = Snapshot.of(self.info)
        self.replicas, self.block_dedup = Replicas(), BlockDedup()
        self.block_dedup.attach(0, self.own)
        self.ours, self.theirs = socket.socketpair()
        self.theirs.settimeout(20)

    def offer(self, included=()) -> dict:
        """Send digests and included spans; the entry of the offer's frame."""
        self.ours.sendall(self.arena.digests(self.info))
        for at, size in included:
            self.ours.sendall(self.data[at : at + size])
        return {**self.snapshot.as_json(), "along": [list(span) for span in included]}

    def kept(self) -> bytes | None:
        with self.replicas.reading(1, 5) as replica:
            return None if replica is None else bytes(replica[1])

    def close(self) -> None:
        self.block_dedup.detach(0)
        for sock in (self.ours, self.theirs):
            sock.close()
        os.close(self.fd)
        os.close(self.own)


@pytest.fixture
def transfer():
    made = Transfer()
    yield made
    made.close()


def test_what_arrives_whole_is_kept(transfer):
    transfer.ours.sendall(transfer.data)
    with IncomingReplica(transfer.replicas, transfer.snapshot) as incoming:
        assert incoming.receive_whole(transfer.theirs)
    assert transfer.kept() == transfer.data


def test_what_arrives_damaged_is_dropped(transfer):
    transfer.ours.sendall(transfer.data[:-1] + b"?")
    with IncomingReplica(transfer.replicas, transfer.snapshot) as incoming:
        assert not incoming.receive_whole(transfer.theirs)
    assert transfer.kept() is None


def test_a_transfer_that_breaks_off_gives_its_memory_back(transfer):
    transfer.ours.sendall(transfer.data[:100])
    transfer.ours.close()
    with (
        pytest.raises(Unavailable),
        IncomingReplica(transfer.replicas, transfer.snapshot) as incoming,
    ):
        incoming.receive_whole(transfer.theirs)
    assert transfer.kept() is None
    memory = transfer.replicas.buffer(transfer.snapshot)
    assert memory[:100] == transfer.data[:100]  # the same pages serve the next one


def test_an_offer_of_content_that_a_rank_here_has_needs_no_more_bytes(transfer):
    save(transfer.own, 1, 5, world=2)  # equal content, whichever rank's
    raw = transfer.offer()
    with IncomingReplica.of_offer(transfer.replicas, raw) as incoming:
        incoming.receive_offer(transfer.theirs)
        assert incoming.share(transfer.block_dedup) is True
    assert transfer.kept() == transfer.data


def test_only_missing_spans_are_received(transfer):
    raw = transfer.offer()
    with IncomingReplica.of_offer(transfer.replicas, raw) as incoming:
        incoming.receive_offer(transfer.theirs)
        missing = incoming.share(transfer.block_dedup)
        assert missing == [(0, len(transfer.data))]  # no rank here has saved anything
        transfer.ours.sendall(transfer.data)
        incoming.receive_missing(transfer.theirs, missing)
        assert incoming.keep_missing(missing)
    assert transfer.kept() == transfer.data


def test_included_spans_are_not_missing(transfer):
    raw = transfer.offer(included=[(0, len(transfer.data))])
    with IncomingReplica.of_offer(transfer.replicas, raw) as incoming:
        incoming.receive_offer(transfer.theirs)
        assert incoming.share(transfer.block_dedup) is True
    assert transfer.kept() == transfer.data


def test_included_bytes_without_their_digest_are_dropped(transfer):
    raw = transfer.offer()
    transfer.ours.sendall(bytes(len(transfer.data)))
    raw["along"] = [[0, len(transfer.data)]]
    with IncomingReplica.of_offer(transfer.replicas, raw) as incoming:
        incoming.receive_offer(transfer.theirs)
        assert incoming.share(transfer.block_dedup) is False
    assert transfer.kept() is None


def test_digests_of_another_checkpoint_are_refused(transfer):
    raw = transfer.offer() | {"checksum": 7}
    with (
        pytest.raises(CorruptData, match="offer of rank 1: digests without its checksum"),
        IncomingReplica.of_offer(transfer.replicas, raw) as incoming,
    ):
        incoming.receive_offer(transfer.theirs)


def test_without_memory_it_is_refused_with_the_numbers_and_the_stream_goes_on(transfer):
    transfer.replicas = Replicas(left=lambda: 0)
    transfer.ours.sendall(transfer.data + b"next")
    with IncomingReplica(transfer.replicas, transfer.snapshot) as incoming:
        assert not incoming.receive_whole(transfer.theirs)
    assert "of step 5 of rank 1 needs" in incoming.refused
    assert transfer.theirs.recv(9) == b"next"
    assert transfer.kept() is None
    with IncomingReplica.of_offer(transfer.replicas, transfer.offer()) as incoming:
        incoming.receive_offer(transfer.theirs)
        assert incoming.share(transfer.block_dedup) is False
    assert incoming.refused


def test_blocks_that_ranks_here_have_need_no_memory(transfer):
    save(transfer.own, 1, 5, world=2)
    transfer.replicas = Replicas(left=lambda: 0)
    with IncomingReplica.of_offer(transfer.replicas, transfer.offer()) as incoming:
        incoming.receive_offer(transfer.theirs)
        assert incoming.share(transfer.block_dedup) is True
