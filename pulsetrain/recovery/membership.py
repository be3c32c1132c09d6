"""The nodes of one job: who joined, who is in the world, who could join it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from pulsetrain.core.errors import UsageError
from pulsetrain.protocol.late_rows import column
from pulsetrain.protocol.messages import NOT_READ, Held, Hello, RankStatus, WorldNode
from pulsetrain.recovery import world, world_sizes
from pulsetrain.recovery.cut_off import CutOff
from pulsetrain.recovery.memory import WorldMemory
from pulsetrain.recovery.nodes import GONE, Node, NodeState
from pulsetrain.recovery.shard_plan import KnownShards
from pulsetrain.recovery.world_sizes import WorldSizes


@dataclass(frozen=True, kw_only=True)
class Promotion:
    """A standby that took over a node rank."""

    node: str
    node_rank: int
    replaces: str


class Membership:
    """Nodes by name, the present world, and which nodes failed the last check (node to reason).

    `before` is the world that an earlier hub launched last, None where there was none. `allowed` are those
    that the pool lets the job use, None for all. `chosen` are those that a person wants for the next launch,
    None for any. `shards` knows which part of a sharded state each rank has. `cut_off` knows whether the hub
    hears anybody.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.world: tuple[WorldNode, ...] = ()
        self.failed: dict[str, str] = {}
        self.before: WorldMemory | None = None
        self.allowed: frozenset[str] | None = None
        self.chosen: frozenset[str] | None = None
        self.shards = KnownShards()
        self.cut_off = CutOff()

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return sum(member.nproc for member in self.world)

    def world_nodes(self) -> list[Node]:
        """Nodes of the world that have ever joined, lost ones included, by node rank."""
        return list(self._world_nodes())

    def _world_nodes(self) -> Iterator[Node]:
        return (self.nodes[member.node] for member in self.world if member.node in self.nodes)

    def active(self) -> list[Node]:
        """Nodes of the world that can be given commands."""
        return [node for node in self.world_nodes() if node.usable]

    def standbys(self) -> list[Node]:
        """Nodes outside the world that could join it. One under a cordon could not, nor one of another size,
        nor one that a person has checked now, nor one whose agent has said that it ends.

        A node that came back while its place was still empty is in the world, not outside.
        """
        inside = {member.node for member in self.world}
        outside = (n for n in self.reserves() if n.name not in inside and self._fits(n))
        return [n for n in outside if not (n.cordon or n.set_apart or n.leaving) and self.may_use(n)]

    def set_apart(self) -> bool:
        """Whether a node is a standby again in a moment: a person has it checked."""
        return any(node.set_apart for node in self.reserves())

    def _fits(self, node: Node) -> bool:
        """Whether a node runs as many ranks as those of the world. Their numbers follow from that."""
        return not self.world or node.hello.nproc_per_node == self.world[0].nproc

    def check_ranks(self, hello: Hello) -> None:
        """Raise `UsageError` where an agent that runs no ranks yet would run more or fewer than others do.

        The world has a number also while none of its nodes is there: it could not go on with another one.
        """
        others = (n.hello for n in self.nodes.values() if n.state not in GONE and n.name != hello.node)
        here = self.world[0].nproc if self.world else next((o.nproc_per_node for o in others), None)
        if here in (None, hello.nproc_per_node) or hello.attempt >= 0 or hello.restoring >= 0:
            return
        has = f"node {hello.node!r} has {hello.nproc_per_node} ranks, its job {hello.job!r} has {here} a node"
        raise UsageError(f"{has}: give --nproc-per-node={here}, or --job with another name")

    def may_use(self, node: Node) -> bool:
        """Whether the pool lets the job use this node, and a person wants it where that was said."""
        return all(names is None or node.name in names for names in (self.allowed, self.chosen))

    def reserves(self) -> list[Node]:
        """Nodes outside the world that can be given commands, also those under a cordon."""
        return [n for n in self.nodes.values() if n.state is NodeState.STANDBY and n.usable]

    def present(self) -> list[Node]:
        """Nodes that are neither lost nor evicted and have not left."""
        return [n for n in self.nodes.values() if n.state not in GONE]

    def statuses(self, attempt: int) -> list[RankStatus]:
        """The last status of every rank in this attempt, those of lost nodes included."""
        beats = (node.heartbeat for node in self.world_nodes())
        return [s for beat in beats if beat is not None and beat.attempt == attempt for s in beat.ranks]

    def newest_step(self, attempt: int) -> int:
        """The newest step that a rank of this attempt completed, -1 for none."""
        steps = (n.newest_step for n in self._world_nodes() if n.heartbeat and n.heartbeat.attempt == attempt)
        return max(steps, default=-1)

    def values(self, attempt: int, field: str) -> list[int]:
        """One field of the last status of every rank in this attempt. It takes a fraction of `statuses`."""
        beats = (node.heartbeat for node in self.world_nodes())
        return [v for beat in beats if beat and beat.attempt == attempt for v in column(beat.ranks, field)]

    def silence_ns(self, rank: int, attempt: int, now_s: float) -> int:
        """Time since `rank` made progress, the age of its report included. For -1 the longest of all."""
        ages = [
            status.progress_age_ns + max(0, int((now_s - node.heartbeat_s) * 1e9))
            for node in self.world_nodes()
            if node.heartbeat is not None and node.heartbeat.attempt == attempt
            for status in node.heartbeat.ranks
            if rank in (status.rank, -1)
        ]
        return max(ages, default=0)

    def shortest_silence_ns(self, attempt: int, now_s: float) -> int | None:
        """Time since any rank made progress, the age of its report included. None: none has made any."""
        ages = [
            age_ns + max(0, int((now_s - node.heartbeat_s) * 1e9))
            for node in self.world_nodes()
            if node.heartbeat is not None and node.heartbeat.attempt == attempt
            for age_ns, progress in zip(
                column(node.heartbeat.ranks, "progress_age_ns"),
                column(node.heartbeat.ranks, "progress"),
                strict=True,
            )
            if progress > 0
        ]
        return min(ages, default=None)

    def plan_restore(
        self,
        members: Sequence[WorldNode],
        unrestorable: Collection[tuple[int, int]] = (),
        without: str = "",
        lost: Sequence[Node] = (),
    ) -> world.RestorePlan:
        """How a world of these members would go on, if `without` were not there and the `lost` ones were."""
        held = {name: items for name, items in self.held().items() if name != without}
        held |= {node.name: node.heartbeat.held for node in lost if node.heartbeat is not None}
        return world.plan_restore(members, held, unrestorable, self.shards.by_world)

    def held(self) -> dict[str, Sequence[Held]]:
        """What each reachable node could restore, by its last heartbeat."""
        usable = [n for n in self.nodes.values() if n.usable]
        return {n.name: n.heartbeat.held for n in usable if n.heartbeat is not None}

    def stored_attempt(self) -> int:
        """The newest attempt of which storage had files, as agents say. -1: none."""
        beats = (n.heartbeat for n in self.nodes.values() if n.usable)
        return max((beat.stored_attempt for beat in beats if beat is not None), default=-1)

    def waits_for_storage(self) -> list[str]:
        """Nodes whose agents have not read storage yet."""
        beats = {name: n.heartbeat for name, n in self.nodes.items() if n.usable}
        return sorted(name for name, b in beats.items() if b is not None and b.stored_attempt == NOT_READ)

    def holds_anything(self) -> bool:
        """Whether any reachable node could restore something."""
        return any(n.heartbeat.held for n in self.nodes.values() if n.heartbeat is not None and n.usable)

    def available(self, *, forming: bool) -> int:
        """Number of healthy nodes that are there.

        Declared standbys do not help to form a world, unless they have replaced others before.
        """
        before = self.before.nodes if self.before is not None else ()
        spare = [
            n
            for n in self.standbys()
            if n.name not in self.failed and not (forming and n.hello.standby and n.name not in before)
        ]
        return len(self.healthy()) + len(spare)

    def healthy(self) -> list[str]:
        """Nodes of the world that can be given commands and did not fail the last check."""
        return [n.name for n in self.active() if n.name not in self.failed and self.may_use(n)]

    def enough(self, count: int, *, forming: bool) -> bool:
        """Whether `count` healthy nodes are there, see `available`."""
        return self.available(forming=forming) >= count

    def attempt_nodes(self, count: int) -> int:
        """Number of nodes of the newest attempt that agents report, `count` where they do not say it."""
        return max((n.hello.world_nodes for n in self.newest_running()), default=0) or count

    def newest_running(self) -> list[Node]:
        """Nodes that run the newest attempt that agents report. One of an older attempt was replaced."""
        running = [n for n in self.present() if n.hello.attempt >= 0]
        newest = max((n.hello.attempt for n in running), default=-1)
        return [n for n in running if n.hello.attempt == newest]

    def restoring(self) -> bool:
        """Whether a node has told this hub that it brings ranks back from their image, and still does."""
        return any(n.usable and n.hello.restoring >= 0 for n in self.nodes.values())

    def all_back(self) -> bool:
        """Whether every node of the newest attempt that agents report has said hello to this hub.

        Those that do not run it were not launched before the earlier hub ended. Those that had finished may
        be gone.
        """
        before, present = self.before, self.present()
        newest = max((n.hello.attempt for n in present), default=-1)
        if before is None or before.attempt != newest:
            return False
        finished = set(before.finished)
        awaited = {name for rank, name in enumerate(before.nodes) if rank not in finished}
        return awaited <= {n.name for n in present if n.usable}

    def leaving_by(self) -> str:
        """The signal that ends every node the job depends on, "" where a node stays or none is there.

        Before the first world the job depends on all nodes.
        """
        signal = ""
        for node in self._world_nodes() if self.world else self.nodes.values():
            if node.state in GONE:
                continue
            signal = node.leaving.signal if node.leaving else ""
            if not signal:  # the first of thousands, several times a second
                return ""
        return signal

    def any_leaving(self) -> bool:
        """Whether a node of the world has said that it leaves."""
        return any(n.leaving is not None and n.state not in GONE for n in self._world_nodes())

    def adopt(self, count: int) -> int:
        """Take over the world of the newest attempt that agents report. Returns the attempt's number.

        A node rank of which no agent has reported gets the name of its node, where an earlier hub has kept it
        and no agent of that name is here, else one that no agent has.
        """
        running = self.newest_running()
        hellos = {n.hello.node_rank: n.hello for n in running}
        attempt, nproc = running[0].hello.attempt, running[0].hello.nproc_per_node
        self.world = tuple(
            world.world_node(hellos[r], r)
            if r in hellos
            else world.unknown_node(r, nproc, self._was(r, attempt))
            for r in range(count)
        )
        for node in self._world_nodes():
            node.state = NodeState.ACTIVE
        self._tell_ranks()
        return attempt

    def gone_finished(self, attempt: int) -> list[WorldNode]:
        """Members of the world of which no agent has reported, because all their ranks had finished."""
        before = self.before
        if before is None or before.attempt != attempt:
            return []
        return [m for m in self.world if m.node_rank in before.finished and m.node not in self.nodes]

    def take_place(self, node: Node) -> bool:
        """Give a node the place that its ranks have, unless another node that was here has it."""
        rank = node.hello.node_rank
        if not 0 <= rank < len(self.world) or node.hello.world_nodes not in (0, len(self.world)):
            return False
        known = self.nodes.keys() - {node.name}
        elsewhere = any(m.node == node.name and m.node_rank != rank for m in self.world)
        if elsewhere or self.world[rank].node in known or node.hello.nproc_per_node != self.world[rank].nproc:
            return False
        here = world.world_node(node.hello, rank)
        self.world = (*self.world[:rank], here, *self.world[rank + 1 :])
        node.state = NodeState.ACTIVE
        self._tell_ranks()
        return True

    def _tell_ranks(self) -> None:
        """Each node of the world speaks for its own ranks alone."""
        for member in self.world:
            if member.node in self.nodes:
                self.nodes[member.node].ranks = member.ranks

    def survived(self) -> bool:
        """Whether an agent of the earlier hub's world is here: it is the same run of the job."""
        for name, agent in self.before.agents() if self.before is not None else ():
            node = self.nodes.get(name)
            if node is not None and node.state not in GONE and node.agent.is_same(agent):
                return True
        return False

    def _was(self, node_rank: int, attempt: int) -> str:
        """The node that ran `node_rank` in `attempt`, "" where that is not known or it runs other ranks."""
        before = self.before
        if before is None or before.attempt != attempt or node_rank >= len(before.nodes):
            return ""
        name = before.nodes[node_rank]
        return "" if name in self.nodes else name

    def fill_world(
        self, count: int, sizes: WorldSizes, losses: Mapping[str, int] = MappingProxyType({})
    ) -> list[Promotion]:
        """Form the first world, or replace lost nodes by standbys. Returns who replaced whom.

        Standbys that were lost lately, as `losses` counts, are promoted last.
        A world of another size is put together anew. Then nobody replaces anybody. Who is left out stands by.
        """
        standby = [n.hello for n in self.standbys()]
        kept = [n.name for n in self.active() if self.may_use(n)]
        before = {m.node_rank: m.node for m in self.world}
        if self.world and len(self.world) != count:
            left = self.active()
            self.world = world_sizes.resize(self.world, count, kept, standby, sizes)
            for node in left:
                node.state = NodeState.STANDBY
            before = {}
        elif self.world:
            for node in self.active():
                node.state = node.state if self.may_use(node) else NodeState.STANDBY
            self.world = world.replace_nodes(self.world, kept, standby, losses)
        else:
            order = self.before.nodes if self.before is not None and self.survived() else ()
            self.world = world.form_world(standby, count, order)
        for node in self.active():
            node.state = NodeState.ACTIVE
        self._tell_ranks()
        return [
            Promotion(node=m.node, node_rank=m.node_rank, replaces=before[m.node_rank])
            for m in self.world
            if before.get(m.node_rank, m.node) != m.node
        ]

    def refresh_world(self) -> None:
        """Use the addresses and ports of the agents' latest `Hello`."""
        hellos: dict[str, Hello] = {n.name: n.hello for n in self.active()}
        self.world = world.refresh(self.world, hellos)
