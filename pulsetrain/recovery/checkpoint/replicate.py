"""After each save, the newest checkpoint of every rank here goes into peers' memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event, Lock, Thread

from pulsetrain.recovery.checkpoint.arena import ArenaReader, SlotInfo
from pulsetrain.recovery.checkpoint.ledger import Ledger
from pulsetrain.recovery.checkpoint.peers import PeerClient
from pulsetrain.stream.errors import PulsetrainError

RETRY_S = 1.0


@dataclass
class _Watched:
    """One arena, and what of it was seen and sent already."""

    fd: int
    arena: ArenaReader
    active: int = 0
    skips: int = 0


@dataclass
class _Peer:
    """One receiver. `sent` maps ranks to the active word of their arenas that it has."""

    name: str
    sent: dict[int, int]
    client: PeerClient | None = None
    away_since: float | None = None


class Replicator:
    """One thread that polls the arenas' headers, records what was saved, and sends it on.

    It sends the newest checkpoint and skips those in between when the peer is slower than the training. A
    peer that is away costs an event and a retry each second, nothing else.
    """

    def __init__(self, connect: Callable[[str], PeerClient], ledger: Ledger, *, poll_s: float) -> None:
        self._connect = connect
        self._ledger = ledger
        self._poll_s = poll_s
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
            for peer in self._peers:
                peer.sent.pop(rank, None)

    def detach(self, rank: int) -> None:
        """Stop watching it."""
        with self._lock:
            self._watched.pop(rank, None)

    def set_peers(self, names: tuple[str, ...]) -> None:
        """Send to these nodes from now on, beginning with the newest checkpoint of each rank."""
        with self._lock:
            self._retired += self._peers
            self._peers = [_Peer(name, {}) for name in names]

    def close(self) -> None:
        """End the thread and its connections."""
        self._stop.set()
        self._thread.join(10)

    def _run(self) -> None:
        while not self._stop.wait(self._poll_s):
            self._hang_up_retired()
            with self._lock:
                watched, peers = list(self._watched.items()), list(self._peers)
            for rank, item in watched:
                self._note(rank, item)
            for peer in peers:
                self._feed(peer, watched)
        self.set_peers(())
        self._hang_up_retired()

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
            for info in reversed(item.arena.published()):
                if info.generation > seen and info.blocked_ns:
                    self._record("copy", "memory", info, info.copy_ns, ts_ns=info.published_ns)
        count, step, reason = item.arena.skips
        if count != item.skips:
            item.skips = count
            self._ledger.stage("skip", "memory", rank=rank, step=step)
            self._ledger.event("checkpoint_skipped", {"step": step, "reason": reason}, rank=rank)

    def _feed(self, peer: _Peer, watched: list[tuple[int, _Watched]]) -> None:
        """Send what this peer does not have yet."""
        due = [(rank, item) for rank, item in watched if item.active and peer.sent.get(rank) != item.active]
        if not due or (peer.away_since is not None and time.monotonic() - peer.away_since < RETRY_S):
            return
        try:
            if peer.client is None:
                peer.client = self._connect(peer.name)
            for rank, item in due:
                self._send(peer, peer.client, rank, item)
        except (PulsetrainError, OSError) as error:
            if peer.away_since is None:
                self._ledger.event("replica_peer_away", {"peer": peer.name, "error": str(error)})
            peer.away_since = time.monotonic()
            _hang_up(peer)
            return
        if peer.away_since is not None:
            peer.away_since = None
            self._ledger.event("replica_peer_back", {"peer": peer.name})

    def _send(self, peer: _Peer, client: PeerClient, rank: int, item: _Watched) -> None:
        word = item.arena.active
        newest = next(iter(item.arena.published()), None)
        if newest is None or newest.rank != rank:
            return
        started = time.monotonic_ns()
        if client.put(item.arena, item.fd, newest):
            peer.sent[rank] = word
            self._record("replicate", "peer", newest, time.monotonic_ns() - started)

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
