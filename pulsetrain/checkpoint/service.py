"""The agent's side of checkpoints: watches arenas, replicates, persists, and restores what was lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock

from pulsetrain.checkpoint import holdings
from pulsetrain.checkpoint.checkpoint_events import CheckpointEvents, Origin
from pulsetrain.checkpoint.memory.arena import ArenaReader
from pulsetrain.checkpoint.peers.any_replica import AnyReplica
from pulsetrain.checkpoint.peers.block_dedup import BlockDedup
from pulsetrain.checkpoint.peers.client import PeerClient
from pulsetrain.checkpoint.peers.interleave import Interleaver
from pulsetrain.checkpoint.peers.placement import ACROSS, STRATEGIES
from pulsetrain.checkpoint.peers.receivers import home_of, receivers
from pulsetrain.checkpoint.peers.replicas import Replicas
from pulsetrain.checkpoint.peers.replicate import Replicator
from pulsetrain.checkpoint.peers.replication_schedule import ReplicationSchedule
from pulsetrain.checkpoint.peers.server import PeerServer
from pulsetrain.checkpoint.resized_restore import restorer_for
from pulsetrain.checkpoint.restoring import Sources
from pulsetrain.checkpoint.storage.backend import open_storage
from pulsetrain.checkpoint.storage.manifest import Checkpoints
from pulsetrain.checkpoint.storage.persist import PersistConfig, Persister
from pulsetrain.checkpoint.storage.shards import Shards
from pulsetrain.core.errors import CheckpointError, ConfigError, Unavailable
from pulsetrain.core.supervisor import LoopStatus
from pulsetrain.protocol.messages import Held, WorldNode
from pulsetrain.records.columns import Columns


@dataclass(frozen=True, kw_only=True)
class CheckpointServiceConfig:
    """Table [checkpoint] of the configuration file."""

    token: str = ""
    """What agents prove to each other that they have and never send, until the hub gives them a key."""
    port: int = 0
    """TCP port for peers. 0: any free one."""
    replicas: int = 2
    """Copies of each checkpoint in memory, the rank's own node included. 1: no peers."""
    placement: str = "mixed"
    """Which nodes hold whose replicas: ring, mixed, group, or across.

    across: outside every parallel group of the rank, so that the eviction of a whole group loses nothing. It
    needs tp, pp and dp."""
    tp: int = 0
    """Tensor-parallel ranks, which have neighbouring numbers. For placement = across."""
    pp: int = 0
    """Pipeline stages. For placement = across."""
    dp: int = 0
    """Data-parallel replicas. For placement = across."""
    sending: str = "interleaved"
    """When replicas go to peers: interleaved (in the idle spans of training's own traffic) or at_once."""
    share_equal: bool = True
    """Do not send blocks that a rank of the peer's node has saved for the same step.

    Data-parallel ranks have most of their state in common."""
    chunk_bytes: int = 16 << 20
    """Largest piece of a replica that is sent in one go when interleaved."""
    lag_steps: int = 0
    """Steps that training may be ahead of what its peers hold before it waits for them. 0: it never waits.

    With 1, the loss of a node costs one step at most. Above 0, replicas are sent at once."""
    profile_steps: int = 20
    """Steps from which idle network spans are learnt. 0: never."""
    poll_s: float = 0.025
    """How often arenas are checked for new checkpoints, where one is due. Else every 0.25 s."""
    peer_timeout_s: float = 5.0
    """A peer that receives no byte for this time, is away."""
    storage: str = ""
    """Folder or fsspec URL where checkpoints are persisted, the same for all nodes. Empty: nowhere."""
    persist_every: int = 100
    """Steps that are a multiple of this are persisted. 0: only those that the script asks for."""
    commit_timeout_s: float = 60.0
    """A step whose ranks are not all persisted after this time, is abandoned."""
    bandwidth_bytes_per_s: float = 0.0
    """Limit for writing to storage, for each node. 0: none."""
    keep_last: int = 2
    """How many of the newest committed steps are kept, at least 2."""
    keep_every: int = 0
    """Committed steps that are a multiple of this are never removed. 0: none."""

    def __post_init__(self) -> None:
        if self.replicas < 1:
            raise ConfigError(f"checkpoint.replicas = {self.replicas}: allowed: 1 or more")
        allowed = (*sorted(STRATEGIES), ACROSS)
        if self.placement not in allowed:
            raise ConfigError(f"checkpoint.placement = {self.placement!r}: allowed: {', '.join(allowed)}")
        if self.placement == ACROSS:
            self._check_across()
        if self.sending not in SENDING:
            raise ConfigError(f"checkpoint.sending = {self.sending!r}: allowed: {', '.join(SENDING)}")
        if self.chunk_bytes < 1 or min(self.profile_steps, self.lag_steps) < 0:
            raise ConfigError("checkpoint: chunk_bytes: from 1; profile_steps and lag_steps: from 0")
        if self.keep_last < 2:
            raise ConfigError(f"checkpoint.keep_last = {self.keep_last}: allowed: 2 or more")
        if self.persist_every < 0 or self.keep_every < 0 or self.bandwidth_bytes_per_s < 0:
            raise ConfigError(
                "checkpoint: persist_every, keep_every and bandwidth_bytes_per_s: allowed: 0 or more"
            )
        if min(self.poll_s, self.peer_timeout_s, self.commit_timeout_s) <= 0:
            raise ConfigError("checkpoint: poll_s, peer_timeout_s and commit_timeout_s: allowed: above 0")

    def _check_across(self) -> None:
        if min(self.tp, self.pp, self.dp) < 1 or sum(n > 1 for n in (self.tp, self.pp, self.dp)) < 2:
            sizes = f"tp = {self.tp}, pp = {self.pp}, dp = {self.dp}"
            raise ConfigError(f"checkpoint.placement = 'across' with {sizes}: allowed: two of them above 1")


SENDING = ("interleaved", "at_once")


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
        self._replicas = Replicas()
        self._checkpoints = Checkpoints(open_storage(config.storage), job) if config.storage else None
        self._shards = Shards(self._checkpoints)
        self._block_dedup = BlockDedup() if config.share_equal else None
        self._any = AnyReplica(self._replicas)
        self._server = PeerServer(
            self._replicas,
            address=address,
            port=config.port,
            token=config.token,
            job=job,
            segments=self._shards.get,
            block_dedup=self._block_dedup,
            any_replica=self._any,
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
        arena.wanted_step = -1
        with self._lock:
            self._arenas[rank] = arena
        self._any.attach(rank, arena)
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
        self._replicator.detach(rank)
        if self._block_dedup:
            self._block_dedup.detach(rank)
        if self._persister:
            self._persister.detach(rank)

    def set_world(self, world: tuple[WorldNode, ...], node_rank: int, attempt: int, key: str = "") -> None:
        """The nodes of an attempt, before its `load`s. Replicas go to the peers that placement chooses.

        They prove to each other that they have `key`, or the token where it is "".
        """
        ordered = tuple(sorted(world, key=lambda node: node.node_rank))
        with self._lock:
            self._world = ordered
            self._server.token = self._key = key or self._config.token
        self._events.attempt = attempt
        self._shards.clear()
        if self._block_dedup:
            self._block_dedup.forget()
        shape = (self._config.tp, self._config.pp, self._config.dp)
        peers = receivers(
            ordered, node_rank, self._config.placement, copies=self._config.replicas - 1, shape=shape
        )
        counts = [sum(r is None or rank in r for r in peers.values()) for rank in ordered[node_rank].ranks]
        have = min(counts, default=0)
        if have < self._config.replicas - 1:
            detail = {"wanted": self._config.replicas - 1, "have": have, "nodes": len(ordered)}
            self._events.event("replicas_reduced", detail)
        self._replicator.set_peers(peers)

    def follow(self, rings: Mapping[int, int]) -> None:
        """The rings (file descriptors, by rank) of the ranks that train here now. None: nobody trains.

        The steps that they record decide when replicas are sent.
        """
        self._schedule.follow(rings)

    def observe(self, rows: Columns) -> None:
        """Rows that ranks here recorded. The first steps show when the network is idle."""
        self._schedule.observe(rows, self._state_bytes)

    def held(self) -> tuple[Held, ...]:
        """What this node could restore now, from its arenas, its replicas of others, and storage."""
        with self._lock:
            arenas = list(self._arenas.items())
        own = [info for rank, arena in arenas for info in arena.published() if info.rank == rank]
        newest = self._persister.newest if self._persister else ()
        return (
            *holdings.in_memory("memory", own),
            *holdings.in_memory("peer", self._replicas.list()),
            *holdings.in_storage(newest),
        )

    def load(self, rank: int, step: int, source: str, replica_attempt: int = -1) -> int:
        """Restore `step` into the attached arena of `rank` and forget everything later. Returns the ns taken.

        `source` is "memory", "storage" or "peer:NODE". Where it fails, that is an event, and the others are
        tried. With a `replica_attempt` the rank gets what any rank saved in that attempt. Raises
        `CheckpointError` where none has the whole step, or the rank is not attached.
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
            peers=tuple(node.node for node in world if node.node != self._node),
            checkpoints=self._checkpoints,
            shards=self._shards,
            home=home_of(world),
        )
        restorer = restorer_for(sources, self._events, here=self._any, attempt=replica_attempt)
        took_ns = restorer.load(arena.fd, rank, step, source)
        self._replicas.forget_after(step, self._events.attempt)
        return took_ns

    def clear(self) -> None:
        """The job starts afresh: forget what is in memory."""
        self._replicas.clear()
        with self._lock:
            for arena in self._arenas.values():
                arena.forget_after(-1)

    def take_records(self, now_ns: int, *records: str) -> list[Columns]:
        """Rows of `checkpoints` and `events`, or of those named, since the last call."""
        del now_ns  # rows carry the time at which they happened
        return self._events.take(*records)

    def persist_newest(self, timeout_s: float) -> int:
        """Persist the newest step that every rank has saved, before all of this node's memory is gone.

        Blocks for `timeout_s` at most. Returns the step. -1: there is no storage, or it could not be done.
        """
        return self._persister.persist_newest(timeout_s) if self._persister else -1

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
        node = next((node for node in self._world if node.node == name), None)
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
