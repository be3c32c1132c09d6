"""After each save, the newest checkpoints of the ranks here go into peers' memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from threading import Event, Lock

from pulsetrain.checkpoint.checkpoint_events import CheckpointEvents
from pulsetrain.checkpoint.memory.arena import ArenaReader
from pulsetrain.checkpoint.memory.header_page import NOWHERE
from pulsetrain.checkpoint.peers.client import OutgoingReplica, PeerClient
from pulsetrain.checkpoint.peers.interleave import Interleaver
from pulsetrain.checkpoint.peers.rounds import Rounds
from pulsetrain.checkpoint.peers.save_pace import SavePace
from pulsetrain.checkpoint.peers.sender import PeerSender, Sending
from pulsetrain.checkpoint.peers.watched_arena import WatchedArena
from pulsetrain.core.errors import Unavailable
from pulsetrain.core.supervisor import LoopStatus, LoopThread

STALE_AFTER_S = 600.0  # a large state takes minutes to send


class Replicator:
    """One thread that polls the arenas' headers, records what was saved, and sends it to peers."""

    def __init__(
        self,
        connect: Callable[[str], PeerClient],
        events: CheckpointEvents,
        *,
        poll_s: float,
        interleaver: Interleaver | None = None,
        lag_steps: int = 0,
        share: bool = False,
    ) -> None:
        """With an `interleaver`, chunks go when it says so; without, at once.

        `lag_steps` holds while every peer is there. With `share`, peers are offered digests, and only blocks
        that they do not have are sent.
        """
        self._events = events
        self._poll_s = poll_s
        self._lag_steps = lag_steps
        self._sending = Sending(
            connect=connect,
            events=events,
            share=share,
            interleaver=interleaver,
            while_waiting=self._while_waiting,
            arrived=self._mark_replicated,
        )
        self._watched: dict[int, WatchedArena] = {}
        self._recorded: dict[int, int] = {}  # rank -> its last publication that was recorded, of those before
        self._rounds = Rounds(newest=lag_steps > 0)
        self._begins_anew = False  # only the thread may touch the rounds
        self._peers: list[PeerSender] = []
        self._retired: list[PeerSender] = []  # only the thread that uses a connection may end it
        self._recorded_at = 0.0
        self._pace = SavePace(poll_s, eager=lag_steps > 0)
        self._lock = Lock()
        self._stop = Event()
        self._thread = LoopThread("replicate", self._turn, stale_after_s=STALE_AFTER_S)
        self._thread.start()

    @property
    def loop(self) -> LoopStatus:
        """How the thread is."""
        return self._thread.status()

    @property
    def has_peers(self) -> bool:
        """Replicas are sent to somebody."""
        return bool(self._peers)

    def attach(self, rank: int, arena: ArenaReader) -> None:
        """Watch this rank's arena."""
        with self._lock:
            before = self._watched.get(rank)
            recorded = before.active if before else self._recorded.get(rank)
            self._watched[rank] = WatchedArena(rank, arena, recorded)
            self._begins_anew = True
            arena.replicated_step = -1
            self._announce_peers(rank, arena)
            for peer in self._peers:
                peer.forget(rank)

    def detach(self, rank: int) -> None:
        """Stop watching it."""
        with self._lock:
            one = self._watched.pop(rank, None)
            if one is not None:
                self._recorded[rank] = one.active
            self._begins_anew = True

    def set_peers(self, peers: Mapping[str, frozenset[int] | None]) -> None:
        """Send to these nodes from now on, starting with the newest checkpoint of each rank.

        The values are the ranks that a node is sent. None: all.
        """
        with self._lock:
            self._retired += self._peers
            self._begins_anew = True
            self._peers = [PeerSender(name, ranks, self._sending) for name, ranks in peers.items()]
            for rank, one in self._watched.items():
                self._announce_peers(rank, one.arena)
        self._pace.begun(time.monotonic())
        self._thread.wake()

    def close(self) -> None:
        """End the thread and its connections."""
        self._stop.set()
        if self._thread.stop(timeout_s=10):
            self.set_peers({})
            self._close_retired()

    def _turn(self) -> float:
        self._close_retired()
        self._record_saves()
        with self._lock:
            watched, peers = list(self._watched.values()), list(self._peers)
            begins_anew, self._begins_anew = self._begins_anew, False
        if begins_anew:
            self._rounds.restart()
        if peers:
            self._send_round(watched, peers)
        self._update_lag(watched, peers)
        return self._pace.wait_s(time.monotonic())

    def _send_round(self, watched: list[WatchedArena], peers: list[PeerSender]) -> None:
        """Send what peers lack of the round, if none of it is being overwritten already."""
        chosen = self._rounds.choose(watched)
        if not any(peer.lacks(chosen) for peer in peers):
            return
        with self._rounds.sending(chosen) as whole:
            if whole:
                for peer in peers:
                    peer.send_due(chosen)
                arrived = any(peer.has(one) for peer in peers for one in chosen)
                self._rounds.end(
                    chosen, arrived=arrived, complete=not any(p.waits_for(chosen) for p in peers)
                )

    def _record_saves(self) -> None:
        with self._lock:
            watched = list(self._watched.values())
        self._recorded_at = time.monotonic()
        saved = [one.rank for one in watched if one.record_saves(self._events)]
        self._pace.saved(saved, [one.rank for one in watched], self._recorded_at)

    def _update_lag(self, watched: list[WatchedArena], peers: list[PeerSender]) -> None:
        """Training waits for peers only while there are some and none is away."""
        reachable = bool(peers) and not any(peer.away for peer in peers)
        for one in watched:
            one.arena.lag_steps = self._lag_steps if reachable else 0

    def _close_retired(self) -> None:
        with self._lock:
            retired, self._retired = self._retired, []
        for peer in retired:
            peer.close()

    def _while_waiting(self) -> None:
        """While a chunk waits for an idle span, saves are recorded all the same."""
        if self._stop.is_set():
            raise Unavailable("the replicator ends")
        if time.monotonic() - self._recorded_at > self._poll_s:
            self._record_saves()

    def _mark_replicated(self, replica: OutgoingReplica) -> None:
        """Announce the step to the trainer once every peer that receives this rank has it."""
        rank = replica.info.rank
        with self._lock:
            receivers = [peer for peer in self._peers if peer.receives(rank)]
            if receivers and all(peer.has(replica) for peer in receivers):
                replica.arena.replicated_step = replica.info.step

    def _announce_peers(self, rank: int, arena: ArenaReader) -> None:
        """Tell the trainer whether there is a peer to wait for. The caller has the lock."""
        has_peers = any(peer.receives(rank) for peer in self._peers)
        arena.replicated_step = max(arena.replicated_step, -1) if has_peers else NOWHERE
