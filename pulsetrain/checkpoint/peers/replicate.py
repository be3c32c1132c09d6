"""After each save, the newest checkpoint of every rank here goes into peers' memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Event, Lock, Thread

from pulsetrain.checkpoint.checkpoint_events import CheckpointEvents
from pulsetrain.checkpoint.memory.arena import ArenaReader
from pulsetrain.checkpoint.memory.slots import SMALL_BYTES, SlotInfo
from pulsetrain.checkpoint.peers.block_dedup import worthwhile
from pulsetrain.checkpoint.peers.client import ChunkPacer, OutgoingReplica, PeerClient
from pulsetrain.checkpoint.peers.interleave import LEAST_CHUNK, Interleaver
from pulsetrain.core.errors import PulsetrainError, Unavailable

RETRY_S = 1.0
IN_VAIN = 3  # offers of which a peer had little; from then on it is asked again now and then
ASK_AGAIN = 20


@dataclass
class _Watched:
    """One arena, and what of it was seen and sent already."""

    fd: int
    arena: ArenaReader
    active: int = 0
    skips: int = 0
    total_bytes: int = 0  # of its newest checkpoint


@dataclass
class _Peer:
    """One receiver. `sent` maps ranks to the active word of their arenas that it has."""

    name: str
    ranks: frozenset[int] | None
    sent: dict[int, int]
    waited: bool = False  # at the last look, for ranks that had not saved yet
    in_vain: dict[int, int] = field(default_factory=dict)  # rank -> saves since it last had much of one
    spared: set[int] = field(default_factory=set)  # ranks of which it has had much
    client: PeerClient | None = None
    away_since: float | None = None


class Replicator:
    """One thread that polls the arenas' headers, records what was saved, and sends it on.

    It sends the newest checkpoint and skips those in between when the peer is slower than the training. A
    peer that is away costs an event and a retry each second, nothing else.
    """

    def __init__(
        self,
        connect: Callable[[str], PeerClient],
        ledger: CheckpointEvents,
        *,
        poll_s: float,
        interleaver: Interleaver | None = None,
        lag_steps: int = 0,
        share: bool = False,
    ) -> None:
        """With an `interleaver`, chunks go when it says so; without, at once. `lag_steps` holds while every
        peer is there. With `share` peers are asked what they lack, and sent no more."""
        self._connect = connect
        self._ledger = ledger
        self._poll_s = poll_s
        self._interleaver = interleaver
        self._lag_steps = lag_steps
        self._share = share
        self._watched: dict[int, _Watched] = {}
        self._peers: list[_Peer] = []
        self._retired: list[_Peer] = []  # only the thread that uses a connection may end it
        self._lock = Lock()
        self._stop = Event()
        self._thread = Thread(target=self._run, name="pulsetrain-replicator", daemon=True)
        self._thread.start()

    def attach(self, rank: int, fd: int, arena: ArenaReader) -> None:
        """Watch this rank's arena."""
        with self._lock:
            self._watched[rank] = _Watched(fd, arena, skips=arena.skips[0])
            arena.set_replicated(-1)
            for peer in self._peers:
                peer.sent.pop(rank, None)

    def detach(self, rank: int) -> None:
        """Stop watching it."""
        with self._lock:
            self._watched.pop(rank, None)

    def set_peers(self, peers: Mapping[str, frozenset[int] | None]) -> None:
        """Send to these nodes from now on the ranks named (None: all), beginning with the newest checkpoint
        of each."""
        with self._lock:
            self._retired += self._peers
            self._peers = [_Peer(name, ranks, {}) for name, ranks in peers.items()]

    def close(self) -> None:
        """End the thread and its connections."""
        self._stop.set()
        self._thread.join(10)

    def _run(self) -> None:
        while not self._stop.wait(self._poll_s):
            self._hang_up_retired()
            with self._lock:
                watched, peers = list(self._watched.items()), list(self._peers)
            self._note_all(watched)
            for peer in peers:
                self._feed(peer, watched)
            self._set_lag(watched, peers)
        self.set_peers({})
        self._hang_up_retired()

    def _set_lag(self, watched: list[tuple[int, _Watched]], peers: list[_Peer]) -> None:
        """Training waits for peers only while there are some and none is away."""
        whole = bool(peers) and all(peer.away_since is None for peer in peers)
        for _, item in watched:
            item.arena.set_lag(self._lag_steps if whole else 0)

    def _hang_up_retired(self) -> None:
        with self._lock:
            retired, self._retired = self._retired, []
        for peer in retired:
            _hang_up(peer)

    def _note(self, rank: int, item: _Watched) -> None:
        """Record new checkpoints and skips of one rank."""
        if item.arena.active != item.active:
            seen = item.active >> 3
            item.active = item.arena.active
            published = item.arena.published()
            item.total_bytes = max((info.total_bytes for info in published[:1]), default=0)
            for info in reversed(published):
                if info.generation > seen and info.blocked_ns:
                    self._record("copy", "memory", info, info.copy_ns, ts_ns=info.published_ns)
                    self._record("stall", "memory", info, info.blocked_ns, ts_ns=info.published_ns)
        count, step, reason = item.arena.skips
        if count != item.skips:
            item.skips = count
            self._ledger.stage("skip", "memory", rank=rank, step=step)
            self._ledger.event("checkpoint_skipped", {"step": step, "reason": reason}, rank=rank)

    def _feed(self, peer: _Peer, watched: list[tuple[int, _Watched]]) -> None:
        """Send what this peer does not have yet."""
        mine = [(rank, item) for rank, item in watched if peer.ranks is None or rank in peer.ranks]
        due = [(rank, item) for rank, item in mine if item.active and peer.sent.get(rank) != item.active]
        if not due or (peer.away_since is not None and time.monotonic() - peer.away_since < RETRY_S):
            return
        peer.waited = bool(self._interleaver) and len(due) < len(mine) and not peer.waited
        if peer.waited:
            return  # the other ranks here are about to save: theirs go in the same frame
        try:
            if peer.client is None:
                peer.client = self._connect(peer.name)
            for together in self._frames(peer, peer.client, due):
                self._send(peer, peer.client, together, watched)
        except (PulsetrainError, OSError) as error:
            if peer.away_since is None:
                self._ledger.event("replica_peer_away", {"peer": peer.name, "error": str(error)})
            peer.away_since = time.monotonic()
            _hang_up(peer)
            return
        if peer.away_since is not None:
            peer.away_since = None
            self._ledger.event("replica_peer_back", {"peer": peer.name})

    def _frames(
        self, peer: _Peer, client: PeerClient, due: list[tuple[int, _Watched]]
    ) -> list[list[tuple[int, _Watched]]]:
        """What is sent in one go: small states that are offered together, every other one as it is when its
        turn comes."""
        small = {rank for rank, item in due if item.total_bytes <= SMALL_BYTES}
        offered = {rank for rank in small if self._asks(peer, client, rank)}
        together = [one for one in due if one[0] in offered]
        alone = [[one] for one in due if one[0] not in offered]
        return [together, *alone] if together else alone

    def _send(
        self,
        peer: _Peer,
        client: PeerClient,
        due: Sequence[tuple[int, _Watched]],
        watched: list[tuple[int, _Watched]],
    ) -> None:
        """Send each rank's newest checkpoint, which the trainer leaves alone meanwhile."""
        words: dict[int, int] = {}
        parcels: list[OutgoingReplica] = []
        started = time.monotonic_ns()
        try:
            for rank, item in due:
                word, newest = item.arena.active, next(iter(item.arena.published()), None)
                if newest is not None and newest.rank == rank and item.arena.hold(newest):
                    words[rank] = word
                    offered = item.arena.digests(newest) if self._asks(peer, client, rank) else b""
                    parcels.append(OutgoingReplica(item.arena, item.fd, newest, offered))
            for parcel, sent in client.put(parcels, self._pace(client, watched)):
                parcel.arena.release(parcel.info)
                if sent is not None:
                    self._arrived(peer, parcel, words[parcel.info.rank], sent)
                    self._record("replicate", "peer", parcel.info, time.monotonic_ns() - started)
        finally:
            for parcel in parcels:
                parcel.arena.release(parcel.info)

    def _arrived(self, peer: _Peer, parcel: OutgoingReplica, word: int, sent: int) -> None:
        """The peer has what the arena's active word stood for."""
        info = parcel.info
        peer.sent[info.rank] = word
        self._judge(peer, info, sent, asked=bool(parcel.offered))
        with self._lock:
            receivers = [p for p in self._peers if p.ranks is None or info.rank in p.ranks]
        if all(p.sent.get(info.rank) == word for p in receivers):
            parcel.arena.set_replicated(info.step)

    def _asks(self, peer: _Peer, client: PeerClient, rank: int) -> bool:
        """The peer is offered the rank's digests: it takes offers and has not had little of the last ones."""
        saves = peer.in_vain.get(rank, 0)
        return self._share and client.takes_offers and (saves < IN_VAIN or saves % ASK_AGAIN == 0)

    def _judge(self, peer: _Peer, info: SlotInfo, sent: int, *, asked: bool) -> None:
        """Learn whether the peer has much of this rank's state, and say so once."""
        if not asked or not worthwhile(info.total_bytes - sent, info.total_bytes):
            peer.in_vain[info.rank] = peer.in_vain.get(info.rank, 0) + 1
            return
        peer.in_vain[info.rank] = 0
        if info.rank not in peer.spared:
            peer.spared.add(info.rank)
            detail = {"peer": peer.name, "step": info.step, "bytes": info.total_bytes, "sent_bytes": sent}
            self._ledger.event("replica_shared", detail, rank=info.rank)

    def _pace(self, client: PeerClient, watched: list[tuple[int, _Watched]]) -> ChunkPacer | None:
        pacer = self._interleaver
        return (lambda total: self._chunks(pacer, client, total, watched)) if pacer else None

    def _chunks(
        self, pacer: Interleaver, client: PeerClient, total: int, watched: list[tuple[int, _Watched]]
    ) -> Iterator[int]:
        """Sizes to send, each when it may go; each is timed, and what is saved meanwhile is noted. So little
        that it disturbs nobody goes at once."""
        if total < LEAST_CHUNK:
            yield total
            return
        noted = time.monotonic()
        for size in pacer.chunks(total):
            if size:
                began = time.perf_counter()
                yield size
                client.flush()
                pacer.timed(size, time.perf_counter() - began)
            elif self._stop.is_set():
                raise Unavailable("the keeper ends")
            elif time.monotonic() - noted > self._poll_s:
                noted = time.monotonic()
                self._note_all(watched)

    def _note_all(self, watched: list[tuple[int, _Watched]]) -> None:
        for rank, item in watched:
            self._note(rank, item)

    def _record(self, stage: str, tier: str, info: SlotInfo, took_ns: int, ts_ns: int = 0) -> None:
        self._ledger.stage(
            stage,
            tier,
            rank=info.rank,
            step=info.step,
            size=info.total_bytes,
            duration_ns=took_ns,
            ts_ns=ts_ns,
        )


def _hang_up(peer: _Peer) -> None:
    if peer.client is not None:
        peer.client.close()
        peer.client = None
