"""The agent's side of checkpoints: watches arenas, replicates, persists, and restores what was lost."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from threading import Lock

from pulsetrain.checkpoint import holdings
from pulsetrain.checkpoint.checkpoint_events import CheckpointEvents, Origin
from pulsetrain.checkpoint.memory.arena import ArenaReader, ArenaWriter
from pulsetrain.checkpoint.memory.header_page import NOWHERE
from pulsetrain.checkpoint.peers.any_replica import AnyReplica
from pulsetrain.checkpoint.peers.block_dedup import BlockDedup
from pulsetrain.checkpoint.peers.client import PeerClient
from pulsetrain.checkpoint.peers.interleave import Interleaver
from pulsetrain.checkpoint.peers.placement import ACROSS
from pulsetrain.checkpoint.peers.receivers import home_of, receivers
from pulsetrain.checkpoint.peers.replicas import Replicas
from pulsetrain.checkpoint.peers.replicate import Replicator
from pulsetrain.checkpoint.peers.replication_schedule import ReplicationSchedule
from pulsetrain.checkpoint.peers.server import PeerServer
from pulsetrain.checkpoint.resharding import mailbox
from pulsetrain.checkpoint.resharding.node_resharding import Resharding, ShardPlan
from pulsetrain.checkpoint.resharding.saved_shards import SavedShards
from pulsetrain.checkpoint.resharding.shard_requests import handlers
from pulsetrain.checkpoint.resized_restore import restorer_for
from pulsetrain.checkpoint.restoring import Sources
from pulsetrain.checkpoint.service_config import CheckpointServiceConfig
from pulsetrain.checkpoint.storage.backend import open_storage
from pulsetrain.checkpoint.storage.manifest import Checkpoints
from pulsetrain.checkpoint.storage.persist import PersistConfig, Persister
from pulsetrain.checkpoint.storage.shards import Shards
from pulsetrain.core.errors import CheckpointError, Unavailable, WorldNeeded
from pulsetrain.core.supervisor import LoopStatus
from pulsetrain.protocol.messages import Held, Start, WorldNode
from pulsetrain.records.columns import Columns


class CheckpointService:
    """One for each agent. Its threads replicate and persist what ranks save.

    Every call is thread-safe and short, except `load`. Training never waits for it, and no failure of a peer
    or of storage ends it.
    """

    def __init__(self, config: CheckpointServiceConfig, *, job: str, node: str, address: str) -> None:
        """Listens for peers at once.

        Raises `Unavailable` for a port in use, `UsageError` for a storage URL that cannot be opened.
        """
        self._config, self._job, self._node, self._key = config, job, node, config.token
        self._events = CheckpointEvents(Origin(job=job, node=node))
        self._lock = Lock()
        self._arenas: dict[int, ArenaReader] = {}
        self._world: tuple[WorldNode, ...] = ()
        self._holders: tuple[WorldNode, ...] = ()
        self._replicas = Replicas()
        self._checkpoints = Checkpoints(open_storage(config.storage), job) if config.storage else None
        self._shards = Shards(self._checkpoints)
        self._block_dedup = BlockDedup() if config.share_equal else None
        self._any = AnyReplica(self._replicas)
        self._saved = SavedShards(self._replicas)
        self._resharding = Resharding(
            self._saved, self._events, node=node, connect=self._connect, checkpoints=self._checkpoints
        )
        self._server = PeerServer(
            self._replicas,
            address=address,
            port=config.port,
            token=config.token,
            job=job,
            segments=self._shards.get,
            block_dedup=self._block_dedup,
            any_replica=self._any,
            more=handlers(self._saved),
            whole=self._saved.whole,
        )
        interleaver = Interleaver(chunk_bytes=config.chunk_bytes)
        self._schedule = ReplicationSchedule(
            interleaver, self._events, profile_steps=config.profile_steps, replicas=config.replicas
        )
        interleaved = config.sending == "interleaved" and not config.lag_steps
        self._replicator = Replicator(
            self._connect,
            self._events,
            poll_s=config.poll_s,
            interleaver=interleaver if interleaved else None,
            lag_steps=config.lag_steps,
            share=config.share_equal,
        )
        self._persister = _persister(config, self._checkpoints, self._events)

    @property
    def peer_port(self) -> int:
        """Where peers reach this service."""
        return self._server.port

    @property
    def loops(self) -> tuple[LoopStatus, ...]:
        """How the service's threads are."""
        persister = (self._persister.loop,) if self._persister else ()
        return (self._replicator.loop, self._server.loop, *persister)

    def attach(self, rank: int, arena_fd: int) -> None:
        """Watch this rank's arena. Checkpoints in it that another rank saved do not count."""
        arena = ArenaReader(arena_fd)
        arena.persist_every = self._config.persist_every if self._persister else 0
        arena.durable_step = max(arena.durable_step, -1) if self._persister else NOWHERE
        arena.wanted_step = -1
        with self._lock:
            self._arenas[rank] = arena
        self._any.attach(rank, arena)
        self._saved.attach(rank, arena)
        if self._block_dedup:
            self._block_dedup.attach(rank, arena_fd)
        self._replicator.attach(rank, arena)
        if self._persister:
            self._persister.attach(rank, arena)

    def save_from(self, step: int) -> None:
        """Ask all ranks here to save every step from `step` on. -1: as their script says again."""
        with self._lock:
            for arena in self._arenas.values():
                arena.wanted_step = step

    def detach(self, rank: int) -> None:
        """Forget the rank's arena. The caller may close it afterwards."""
        with self._lock:
            self._arenas.pop(rank, None)
        self._any.detach(rank)
        self._saved.detach(rank)
        self._replicator.detach(rank)
        if self._block_dedup:
            self._block_dedup.detach(rank)
        if self._persister:
            self._persister.detach(rank)

    def retire(self, rank: int, arena_fd: int) -> None:
        """The rank runs on another node by now. Takes over its arena.

        What it has saved of a sharded state stays until the ranks here have saved something newer, because a
        world of another size may still need it.
        """
        self.detach(rank)
        self._saved.retire(rank, arena_fd)

    def reclaim(self, rank: int) -> int:
        """The arena of a rank that was retired and runs here again. -1: there is none."""
        return self._saved.reclaim(rank)

    def set_world(
        self,
        world: tuple[WorldNode, ...],
        node_rank: int,
        attempt: int,
        key: str = "",
        holders: tuple[WorldNode, ...] = (),
        run: str = "",
    ) -> None:
        """The nodes of an attempt, before its `load`s. Replicas go to the peers that placement chooses.

        `holders` are nodes outside of it that have what ranks saved before. All prove to each other that they
        have `key`, or the token where it is "". Connections of other nodes end. A node that is not known has
        no name. Raises `WorldNeeded` where replicas would go to one of these.

        `run` names this run of the job. "" from an older hub: `key` tells it from others.
        """
        ordered = tuple(sorted(world, key=lambda node: node.node_rank))
        with self._lock:
            self._world, self._holders = ordered, holders
            self._server.token = self._key = key or self._config.token
        if self._checkpoints is not None:
            known = self._persister.newest if self._persister else ()
            self._checkpoints.begin_run(run or _run_of(key), known)
        if _is_known(ordered):
            self._server.keep_only({node.node for node in (*ordered, *holders)})
        self._events.attempt = attempt
        self._replicas.begin_world(attempt)
        self._resharding.end()
        self._shards.clear()
        if self._block_dedup:
            self._block_dedup.forget()
        peers = self._receivers(ordered, node_rank)
        counts = [sum(r is None or rank in r for r in peers.values()) for rank in ordered[node_rank].ranks]
        have = min(counts, default=0)
        if have < self._config.replicas - 1:
            detail = {"wanted": self._config.replicas - 1, "have": have, "nodes": len(ordered)}
            self._events.event("replicas_reduced", detail)
        self._replicator.set_peers(peers)

    def _receivers(self, world: Sequence[WorldNode], node_rank: int) -> dict[str, frozenset[int] | None]:
        config = self._config
        shape, copies = (config.tp, config.pp, config.dp), config.replicas - 1
        if config.placement == ACROSS and not _is_known(world):
            raise WorldNeeded("placement across groups needs every node of the world")
        peers = receivers(world, node_rank, config.placement, copies=copies, shape=shape)
        if "" in peers:
            raise WorldNeeded(f"replicas of node_rank {node_rank} go to a node that is not known")
        return peers

    def follow(self, rings: Mapping[int, int]) -> None:
        """The rings (file descriptors, by rank) of the ranks that train here now. None: nobody trains.

        The steps that they record decide when replicas are sent.
        """
        self._schedule.follow(rings)

    def observe(self, rows: Columns) -> None:
        """Rows that ranks here recorded. With peers, the first steps show when the network is idle."""
        if self._replicator.has_peers:
            self._schedule.observe(rows, self._state_bytes)

    def held(self) -> tuple[Held, ...]:
        """What this node could restore now, from its arenas, its replicas of others, and storage."""
        with self._lock:
            arenas = list(self._arenas.items())
        own = [info for rank, arena in arenas for info in arena.published() if info.rank == rank]
        newest = self._persister.newest if self._persister else ()
        return (
            *holdings.in_memory("memory", own + self._saved.kept()),
            *holdings.in_memory("peer", self._replicas.list()),
            *holdings.in_storage(newest),
        )

    @property
    def stored_attempt(self) -> int:
        """The newest attempt of which storage had files when it was read. See `Heartbeat`."""
        return self._persister.stored_attempt if self._persister else -1

    def load(
        self,
        rank: int,
        step: int,
        source: str,
        replica_attempt: int = -1,
        saved_attempt: int = -1,
        saved_history: int = -1,
    ) -> int:
        """Restore `step` into the attached arena of `rank` and forget everything later. Returns the ns taken.

        `source` is "memory", "storage" or "peer:NODE". Where it fails, that is an event, and the others are
        tried. With a `replica_attempt` the rank gets what any rank saved in that attempt. Else it gets its
        own, of `saved_attempt` and `saved_history` where these are given.

        Raises `CheckpointError` where none has the whole step, or the rank is not attached. Raises
        `WorldNeeded` where nodes that are not known may have it.
        """
        with self._lock:
            arena = self._arenas.get(rank)
            world = self._world
        if arena is None:
            raise CheckpointError(f"rank {rank} is not attached here; attached: {sorted(self._arenas)}")
        sources = Sources(
            node=self._node,
            replicas=self._replicas,
            connect=self._connect,
            peers=tuple(node.node for node in world if node.node not in ("", self._node)),
            checkpoints=self._checkpoints,
            shards=self._shards,
            home=home_of(world),
        )
        mailbox.take_back_offer(ArenaWriter(arena.fd))
        restorer = restorer_for(
            sources,
            self._events,
            here=self._any,
            attempt=replica_attempt,
            saved_attempt=saved_attempt,
            saved_history=saved_history,
        )
        try:
            took_ns = restorer.load(arena.fd, rank, step, source)
        except CheckpointError as error:
            if _is_known(world):
                raise
            raise WorldNeeded(f"no node that is known has it: {error}") from error
        arena.durable_step = min(arena.durable_step, step)  # what was stored beyond is of another history
        self._replicas.forget_after(step, self._events.attempt)
        return took_ns

    def reshard(self, ranks: Sequence[int], start: Start) -> int:
        """Let each of `ranks` have the parts that it asks for of what a world of another size has saved.

        Returns the ns taken to prepare that. Raises `NotReshardable` where it does not fit together,
        `CheckpointError` where something is away.
        """
        began_ns = time.monotonic_ns()
        plan = ShardPlan.of(start)
        with self._lock:
            self._holders = start.holders
            arenas = {rank: self._arenas[rank] for rank in ranks}
        self._resharding.prepare(plan)
        for rank, arena in arenas.items():
            self._resharding.offer(rank, arena.fd)
        self._replicas.forget_after(plan.step, self._events.attempt)
        return time.monotonic_ns() - began_ns

    def not_reshardable(self, rank: int) -> str:
        """Why `rank` could not take its part of what a world of another size has saved, "" where it could."""
        return self._resharding.refusal(rank)

    def clear(self) -> None:
        """The job starts afresh: forget what is in memory."""
        self._saved.clear()
        self._replicas.clear()
        with self._lock:
            for arena in self._arenas.values():
                arena.forget_after(-1)
                arena.durable_step = min(arena.durable_step, -1)

    def take_records(self, now_ns: int, *records: str) -> list[Columns]:
        """Rows of `checkpoints` and `events`, or of those named, since the last call. Called all the time."""
        del now_ns  # rows carry the time at which they happened
        self._shards.forget_unused()
        return self._events.take(*records)

    @property
    def persists(self) -> bool:
        """Whether there is storage."""
        return self._persister is not None

    def persist_newest(self, timeout_s: float) -> int:
        """Persist the newest step that every rank has saved, before all of this node's memory is gone.

        Blocks for `timeout_s` at most. Returns the step. -1: there is no storage, or it could not be done.
        """
        return self._persister.persist_newest(timeout_s) if self._persister else -1

    def finish_persisting(self) -> bool:
        """Wait for the checkpoints that are on their way to storage: no rank trains any more.

        False where that stands still.
        """
        return self._persister.finish() if self._persister else True

    def close(self) -> None:
        """End all threads and connections. Arenas stay the caller's."""
        self._replicator.close()
        self._server.close()
        if self._persister:
            self._persister.close()

    def _state_bytes(self) -> int:
        """The size of the newest checkpoints of all ranks here."""
        with self._lock:
            newest = [arena.newest for arena in self._arenas.values()]
        return sum(info.total_bytes for info in newest if info is not None)

    def _connect(self, name: str) -> PeerClient:
        node = next((node for node in (*self._world, *self._holders) if node.node == name), None)
        if node is None:
            raise Unavailable(f"node {name} is not in the world")
        return PeerClient(
            address=node.address,
            port=node.peer_port,
            token=self._key,
            job=self._job,
            node=self._node,
            timeout_s=self._config.peer_timeout_s,
        )


def _run_of(key: str) -> str:
    """What tells runs of older hubs apart. Hubs of the same token have the same."""
    return hashlib.sha256(f"run of {key}".encode()).hexdigest()[:8] if key else ""


def _is_known(world: Sequence[WorldNode]) -> bool:
    """Whether every node of the world has a name."""
    return all(node.node for node in world)


def _persister(
    config: CheckpointServiceConfig, checkpoints: Checkpoints | None, events: CheckpointEvents
) -> Persister | None:
    if checkpoints is None:
        return None
    settings = PersistConfig(
        commit_timeout_s=config.commit_timeout_s,
        bandwidth_bytes_per_s=config.bandwidth_bytes_per_s,
        keep_last=config.keep_last,
        keep_every=config.keep_every,
        poll_s=config.poll_s,
    )
    return Persister(checkpoints, settings, events)
