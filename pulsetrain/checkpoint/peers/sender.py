"""Sends checkpoints of this node's ranks to one peer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pulsetrain.checkpoint.checkpoint_events import CheckpointEvents
from pulsetrain.checkpoint.memory.slots import SMALL_BYTES, SlotInfo
from pulsetrain.checkpoint.peers.block_dedup import worth_sharing
from pulsetrain.checkpoint.peers.client import ChunkPacer, OutgoingReplica, PeerClient
from pulsetrain.checkpoint.peers.interleave import LEAST_CHUNK, Interleaver
from pulsetrain.core.errors import MemoryShort, PulsetrainError

RETRY_S = 1.0
REFUSED_RETRY_S = 30.0  # after a peer had no memory: it may receive all of a state before it can say so
MAX_POOR_OFFERS = 3  # after so many offers of which a peer had little, it gets them only now and then
OFFER_AGAIN_SAVES = 20


@dataclass(frozen=True, kw_only=True)
class Sending:
    """How replicas are sent, whoever receives them."""

    connect: Callable[[str], PeerClient]
    events: CheckpointEvents
    share: bool
    """Offer digests first, and send only blocks that the peer does not have."""
    interleaver: Interleaver | None
    """Says when a chunk may go. None: at once."""
    while_waiting: Callable[[], None]
    """Called while a chunk waits. Raises `Unavailable` to give up."""
    arrived: Callable[[OutgoingReplica], None]
    """Called with a replica that a peer has received."""


class PeerSender:
    """One receiver of replicas. `ranks` are those that it is sent, None: all.

    While it is away, that costs an event and an attempt each second. One without memory counts as away. It is
    asked again every 30 s.
    """

    def __init__(self, name: str, ranks: frozenset[int] | None, sending: Sending) -> None:
        self.name = name
        self._ranks, self._sending = ranks, sending
        self._sent: dict[int, int] = {}  # rank -> generation in its arena that the peer has
        self._poor_offers: dict[int, int] = {}  # rank -> saves since the peer last had much of one
        self._sharing: set[int] = set()  # ranks of which it has had much
        self._client: PeerClient | None = None
        self._away_since: float | None = None
        self._retry_s = RETRY_S

    @property
    def away(self) -> bool:
        """The last attempt to reach it failed."""
        return self._away_since is not None

    def receives(self, rank: int) -> bool:
        """Checkpoints of this rank go to the peer."""
        return self._ranks is None or rank in self._ranks

    def has(self, replica: OutgoingReplica) -> bool:
        """The peer has this checkpoint."""
        return self._sent.get(replica.info.rank) == replica.info.generation

    def lacks(self, chosen: Sequence[OutgoingReplica]) -> list[OutgoingReplica]:
        """What the peer should have of it and does not have yet."""
        return [one for one in chosen if self.receives(one.info.rank) and not self.has(one)]

    def waits_for(self, chosen: Sequence[OutgoingReplica]) -> bool:
        """It lacks some of it, and is there or has a part of it already."""
        lacking = self.lacks(chosen)
        return bool(lacking) and (not self.away or any(self.has(one) for one in chosen))

    def forget(self, rank: int) -> None:
        """The rank has another arena: send it from the start."""
        self._sent.pop(rank, None)

    def send_due(self, chosen: Sequence[OutgoingReplica]) -> None:
        """Send what this peer does not have yet. A peer that is away is an event, not an error.

        The caller keeps the trainer from overwriting it meanwhile.
        """
        due = self.lacks(chosen)
        if not due or (self._away_since is not None and time.monotonic() - self._away_since < self._retry_s):
            return
        try:
            if self._client is None:
                self._client = self._sending.connect(self.name)
            for together in self._frames(self._client, due):
                self._send(self._client, together)
        except (PulsetrainError, OSError) as error:
            refused = isinstance(error, MemoryShort)
            self._retry_s = REFUSED_RETRY_S if refused else RETRY_S
            if self._away_since is None:
                kind = "replica_refused" if refused else "replica_peer_away"
                self._sending.events.event(kind, {"peer": self.name, "error": str(error)})
            self._away_since = time.monotonic()
            self.close()
            return
        if self._away_since is not None:
            self._away_since = None
            self._sending.events.event("replica_peer_back", {"peer": self.name})

    def close(self) -> None:
        """End the connection. Only the thread that sends may call it."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _frames(self, client: PeerClient, due: Sequence[OutgoingReplica]) -> list[list[OutgoingReplica]]:
        """What is sent in one frame: small states that are offered go together, every other one alone."""
        small = {one.info.rank for one in due if one.info.total_bytes <= SMALL_BYTES}
        offered = {rank for rank in small if self._offers(client, rank)}
        together = [one for one in due if one.info.rank in offered]
        alone = [[one] for one in due if one.info.rank not in offered]
        return [together, *alone] if together else alone

    def _send(self, client: PeerClient, due: Sequence[OutgoingReplica]) -> None:
        started = time.monotonic_ns()
        replicas = [
            one._replace(offered=one.arena.digests(one.info)) if self._offers(client, one.info.rank) else one
            for one in due
        ]
        for replica, sent in client.put(replicas, self._pacer(client)):
            if sent is not None:
                self._arrived(replica, sent)
                took_ns = time.monotonic_ns() - started
                self._sending.events.slot_stage("replicate", "peer", replica.info, took_ns)

    def _arrived(self, replica: OutgoingReplica, sent: int) -> None:
        info = replica.info
        self._sent[info.rank] = info.generation
        self._note_shared(info, sent, offered=bool(replica.offered))
        self._sending.arrived(replica)

    def _offers(self, client: PeerClient, rank: int) -> bool:
        """Whether the rank's digests are offered: not where the peer had little of the last ones."""
        saves = self._poor_offers.get(rank, 0)
        return (
            self._sending.share
            and client.accepts_offers
            and (saves < MAX_POOR_OFFERS or saves % OFFER_AGAIN_SAVES == 0)
        )

    def _note_shared(self, info: SlotInfo, sent: int, *, offered: bool) -> None:
        """Learn whether the peer has much of this rank's state. The first time is an event."""
        if not offered or not worth_sharing(info.total_bytes - sent, info.total_bytes):
            self._poor_offers[info.rank] = self._poor_offers.get(info.rank, 0) + 1
            return
        self._poor_offers[info.rank] = 0
        if info.rank not in self._sharing:
            self._sharing.add(info.rank)
            detail = {"peer": self.name, "step": info.step, "bytes": info.total_bytes, "sent_bytes": sent}
            self._sending.events.event("replica_shared", detail, rank=info.rank)

    def _pacer(self, client: PeerClient) -> ChunkPacer | None:
        interleaver = self._sending.interleaver
        return (lambda total: self._chunks(interleaver, client, total)) if interleaver else None

    def _chunks(self, interleaver: Interleaver, client: PeerClient, total: int) -> Iterator[int]:
        """Sizes to send, each when it may go. Each is timed. What disturbs nobody goes at once."""
        if total < LEAST_CHUNK:
            yield total
            return
        for size in interleaver.chunks(total):
            if size:
                began = time.perf_counter()
                yield size
                client.flush()
                interleaver.record_transfer(size, time.perf_counter() - began)
            else:
                self._sending.while_waiting()
