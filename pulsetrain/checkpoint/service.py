"""The agent's side of checkpoints: keeps arenas, replicates, persists, and brings back what was lost."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock

from pulsetrain.checkpoint.checkpoint_events import CheckpointEvents, Origin
from pulsetrain.checkpoint.memory.arena import ArenaReader
from pulsetrain.checkpoint.peers.block_dedup import BlockDedup
from pulsetrain.checkpoint.peers.client import PeerClient
from pulsetrain.checkpoint.peers.interleave import Interleaver, Profiler
from pulsetrain.checkpoint.peers.placement import ACROSS, STRATEGIES, backups, peers_of
from pulsetrain.checkpoint.peers.replicas import Replicas
from pulsetrain.checkpoint.peers.replicate import Replicator
from pulsetrain.checkpoint.peers.server import PeerServer
from pulsetrain.checkpoint.restoring import Restorer, Sources
from pulsetrain.checkpoint.storage.backend import open_storage
from pulsetrain.checkpoint.storage.manifest import Checkpoints
from pulsetrain.checkpoint.storage.persist import PersistConfig, Persister
from pulsetrain.checkpoint.storage.shards import Shards
from pulsetrain.collectors.reading.step_progress import StepProgress
from pulsetrain.core.errors import CheckpointError, ConfigError, Unavailable
from pulsetrain.protocol.messages import Held, WorldNode
from pulsetrain.records.columns import Columns


@dataclass(frozen=True, kw_only=True)
class CheckpointServiceConfig:
    """Table [checkpoint] of the configuration file."""

    token: str = ""
    """The job's token; keepers prove it to each other and never send it."""
    port: int = 0
    """TCP port for peers; 0: any free one."""
    replicas: int = 2
    """Copies of each checkpoint in memory, the rank's own node included; 1: no peers."""
    placement: str = "mixed"
    """Which nodes hold whose replicas: ring, mixed, group, or across (outside every parallel group of the
    rank, so that the eviction of a whole group loses nothing; needs tp, pp and dp)."""
    tp: int = 0
    """Tensor-parallel ranks, which have neighbouring numbers; for placement = across."""
    pp: int = 0
    """Pipeline stages; for placement = across."""
    dp: int = 0
    """Data-parallel replicas; for placement = across."""
    sending: str = "interleaved"
    """When replicas go to peers: interleaved (in the idle spans of training's own traffic) or at_once."""
    share_equal: bool = True
    """Content that a rank of the peer's own has saved for the same step (data-parallel replicas) is copied
    there and not sent."""
    chunk_bytes: int = 16 << 20
    """Largest piece of a replica that is sent in one go when interleaved."""
    lag_steps: int = 0
    """Steps that training may be ahead of what its peers hold, before it waits for them: with 1, the loss of
    a node costs one step at most; replicas are then sent at once. 0: it never waits."""
    profile_steps: int = 20
    """Steps from which idle network spans are learnt; 0: never."""
    poll_s: float = 0.025
    """How often arena headers are looked at, in seconds."""
    peer_timeout_s: float = 5.0
    """A peer that takes no byte for so long, in seconds, is away."""
    storage: str = ""
    """Folder or fsspec URL, the same for all nodes, where checkpoints are persisted; empty: nowhere."""
    persist_every: int = 100
    """Steps that are a multiple of this are persisted; 0: only those that the script asks for."""
    commit_timeout_s: float = 60.0
    """A step whose ranks are not all persisted after so long, in seconds, is abandoned."""
    bandwidth_bytes_per_s: float = 0.0
    """Cap on writing to storage, for each node; 0: none."""
    keep_last: int = 2
    """Committed steps that are kept; at least 2."""
    keep_every: int = 0
    """Committed steps that are a multiple of this are kept for ever; 0: none."""

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
    """One for each agent. Its threads look after replicas and storage; every call is thread-safe and short,
    except `load`. Training never waits for it and nothing it meets ends it."""

    def __init__(self, config: CheckpointServiceConfig, *, job: str, node: str, address: str) -> None:
        """Listens for peers at once. Raises `Unavailable` for a port in use, `UsageError` for a storage
        URL."""
        self._config, self._job, self._node = config, job, node
        self._ledger = CheckpointEvents(Origin(job=job, node=node))
        self._lock = Lock()
        self._arenas: dict[int, tuple[int, ArenaReader]] = {}
        self._world: tuple[WorldNode, ...] = ()
        self._replicas = Replicas()
        self._checkpoints = Checkpoints(open_storage(config.storage), job) if config.storage else None
        self._shards = Shards(self._checkpoints)
        self._twins = BlockDedup() if config.share_equal else None
        self._server = PeerServer(
            self._replicas,
            address=address,
            port=config.port,
            token=config.token,
            job=job,
            segments=self._shards.get,
            twins=self._twins,
        )
        self._profiler = Profiler(config.profile_steps)
        self._interleaver = Interleaver(chunk_bytes=config.chunk_bytes)
        paced = config.sending == "interleaved" and not config.lag_steps
        self._replicator = Replicator(
            self._connect,
            self._ledger,
            poll_s=config.poll_s,
            interleaver=self._interleaver if paced else None,
            lag_steps=config.lag_steps,
            share=config.share_equal,
        )
        self._persister = self._start_persister()

    @property
    def peer_port(self) -> int:
        """Where other keepers reach this one."""
        return self._server.port

    def attach(self, rank: int, arena_fd: int) -> None:
        """Look after this rank's arena. Its content counts for `rank` only where it was saved by that
        rank."""
        arena = ArenaReader(arena_fd)
        arena.set_persist_every(self._config.persist_every if self._persister else 0)
        with self._lock:
            self._arenas[rank] = (arena_fd, arena)
        if self._twins:
            self._twins.attach(rank, arena_fd)
        self._replicator.attach(rank, arena_fd, arena)
        if self._persister:
            self._persister.attach(rank, arena)

    def detach(self, rank: int) -> None:
        """Forget the rank's arena; the caller may close it after."""
        with self._lock:
            self._arenas.pop(rank, None)
        self._replicator.detach(rank)
        if self._twins:
            self._twins.detach(rank)
        if self._persister:
            self._persister.detach(rank)

    def set_world(self, world: tuple[WorldNode, ...], node_rank: int, attempt: int) -> None:
        """The nodes of an attempt, before its `load`s. Replicas go to the peers that placement chooses."""
        ordered = tuple(sorted(world, key=lambda place: place.node_rank))
        names = [place.node for place in ordered]
        with self._lock:
            self._world = ordered
        self._ledger.attempt = attempt
        self._shards.clear()
        if self._twins:
            self._twins.forget()
        peers = self._peers(ordered, node_rank)
        counts = [sum(r is None or rank in r for r in peers.values()) for rank in ordered[node_rank].ranks]
        have = min(counts, default=0)
        if have < self._config.replicas - 1:
            detail = {"wanted": self._config.replicas - 1, "have": have, "nodes": len(names)}
            self._ledger.event("replicas_reduced", detail)
        self._replicator.set_peers(peers)

    def _peers(self, world: tuple[WorldNode, ...], node_rank: int) -> dict[str, frozenset[int] | None]:
        """The nodes that this one sends to, with the ranks that each is sent; None: all."""
        c, names, here = self._config, [place.node for place in world], world[node_rank]
        if c.placement != ACROSS:
            return dict.fromkeys(peers_of(here.node, names, c.replicas, c.placement))
        home = {rank: place.node for place in world for rank in place.ranks}
        found: dict[str, set[int]] = {}
        for rank in here.ranks:
            for node in backups(rank, home, tp=c.tp, pp=c.pp, dp=c.dp, copies=c.replicas - 1):
                found.setdefault(node, set()).add(rank)
        return {node: frozenset(ranks) for node, ranks in found.items()}

    def follow(self, rings: Mapping[int, int]) -> None:
        """The rings (file descriptors, by rank) of the ranks that train here now; none: training stands
        still. The steps they record decide when replicas are sent."""
        self._interleaver.follow([StepProgress(fd) for fd in rings.values()])

    def observe(self, rows: Columns) -> None:
        """Rows that ranks here recorded; the first steps teach when the network is idle."""
        if self._profiler.observe(rows):
            self._interleaver.learn(self._profiler.profile)
            self._note_schedule()

    def _note_schedule(self) -> None:
        profile = self._profiler.profile
        if profile is None:
            self._ledger.event("replication_unscheduled", {"reason": "steps have no common idle spans"})
            return
        with self._lock:
            newest = [next(iter(arena.published()), None) for _, arena in self._arenas.values()]
        size = sum(info.total_bytes for info in newest if info is not None)
        plan = self._interleaver.plan(profile, size, self._config.replicas)
        self._ledger.event("replication_schedule", dataclasses.asdict(plan))

    def held(self) -> tuple[Held, ...]:
        """What this node could restore now, from its arenas, its replicas of others, and storage."""
        with self._lock:
            arenas = [(rank, arena) for rank, (_, arena) in self._arenas.items()]
        own = {(r, i.step) for r, arena in arenas for i in arena.published() if i.rank == r}
        replicas = {(s.rank, s.step) for s in self._replicas.list()}
        newest = self._persister.newest if self._persister else ()
        stored = {(rank, m.step) for m in newest for rank in m.tables}
        return (
            *(Held(rank=r, step=s, tier="memory") for r, s in sorted(own)),
            *(Held(rank=r, step=s, tier="peer") for r, s in sorted(replicas)),
            *(Held(rank=r, step=s, tier="storage") for r, s in sorted(stored)),
        )

    def load(self, rank: int, step: int, source: str) -> int:
        """Bring `step` into the attached arena of `rank` and forget everything later; how long it took, in
        ns.

        `source` is "memory", "storage" or "peer:NODE"; where it fails, the others are tried, with an event.
        Raises `CheckpointError` where none has the step whole, or the rank is not attached.
        """
        with self._lock:
            known = self._arenas.get(rank)
            others = tuple(place.node for place in self._world if place.node != self._node)
        if known is None:
            raise CheckpointError(f"rank {rank} is not attached here; attached: {sorted(self._arenas)}")
        sources = Sources(
            node=self._node,
            replicas=self._replicas,
            connect=self._connect,
            peers=others,
            checkpoints=self._checkpoints,
            shards=self._shards,
            home={rank: place.node for place in self._world for rank in place.ranks},
        )
        took = Restorer(sources, self._ledger).load(known[0], rank, step, source)
        self._replicas.forget_after(step, self._ledger.attempt)
        return took

    def clear(self) -> None:
        """The job starts afresh: forget what is in memory."""
        self._replicas.clear()
        with self._lock:
            for _, arena in self._arenas.values():
                arena.forget_after(-1)

    def take_records(self, now_ns: int, *records: str) -> list[Columns]:
        """Rows of `checkpoints` and `events`, or of the one named, since the last call."""
        del now_ns  # rows carry the time at which they happened
        return self._ledger.take(*records)

    def close(self) -> None:
        """End all threads and connections. Arenas stay the caller's."""
        self._replicator.close()
        self._server.close()
        if self._persister:
            self._persister.close()

    def _start_persister(self) -> Persister | None:
        if self._checkpoints is None:
            return None
        c = self._config
        settings = PersistConfig(
            commit_timeout_s=c.commit_timeout_s,
            bandwidth_bytes_per_s=c.bandwidth_bytes_per_s,
            keep_last=c.keep_last,
            keep_every=c.keep_every,
            poll_s=c.poll_s,
        )
        return Persister(self._checkpoints, settings, self._ledger)

    def _connect(self, node: str) -> PeerClient:
        place = next((p for p in self._world if p.node == node), None)
        if place is None:
            raise Unavailable(f"node {node} is not in the world")
        return PeerClient(
            address=place.address,
            port=place.peer_port,
            token=self._config.token,
            job=self._job,
            node=self._node,
            timeout_s=self._config.peer_timeout_s,
        )
