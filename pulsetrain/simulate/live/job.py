"""The simulated job: what its nodes run, what the plan does to it, and what its checkpoints hold.

It knows no connection and reads no clock. Agents tell it the hub's commands, and `tick` lets time pass. Times
are seconds on one clock. `at_s` of the plan counts from the first launch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from pulsetrain.protocol.messages import ProcessState, Start, ranks_of_node
from pulsetrain.simulate.live.fleet import LiveFleet
from pulsetrain.simulate.live.plan import LiveFault
from pulsetrain.simulate.live.training import Attempt, Positions, Step

KEPT = 2  # checkpoints in memory
FIRST_STEP = 1  # of a job that begins anew


@dataclass(frozen=True, kw_only=True)
class Exit:
    """A rank that ended by itself."""

    node: str
    rank: int
    code: int


@dataclass(frozen=True, kw_only=True)
class Holding:
    """What a node's memory holds: the checkpoints `steps` of its `own` ranks and of those of its partner."""

    own: range
    partners: range
    steps: tuple[int, ...]


@dataclass(kw_only=True)
class Happened:
    """What happened since the last tick. `stepped`: the attempt has done its first step.

    `struck` are faults that began.
    """

    steps: list[Step] = field(default_factory=list)
    exits: list[Exit] = field(default_factory=list)
    struck: list[LiveFault] = field(default_factory=list)
    stepped: bool = False


class LiveJob:
    """One job on a fleet, with a plan of faults."""

    def __init__(self, fleet: LiveFleet, plan: Iterable[LiveFault]) -> None:
        self.fleet, self.plan = fleet, tuple(plan)
        self.number = -1
        self.restore_step = -1
        self.world: tuple[str, ...] = ()
        self._told: dict[int, str] = {}  # nodes of the world by node rank
        self.attempt: Attempt | None = None
        self.exits: dict[int, int] = {}
        self.saved: list[int] = []
        self._spec = fleet.spec()
        self._running: dict[str, int] = {}  # node rank of each node with ranks
        self._ended = False  # the hub has begun to end the ranks of this attempt
        self._begun_s: float | None = None
        self._struck: dict[LiveFault, int] = {}  # the attempt in which a fault began
        self._held: dict[str, Holding] = {}
        self._stepped = False

    # -- what the hub commands ----------------------------------------------------------------------------

    def start(self, node: str, command: Start, now_s: float) -> None:
        """A node launches its ranks. The first step begins once every node of the world has."""
        if command.attempt > self.number:
            self.number, self.restore_step = command.attempt, command.restore_step
            self.world, self._told = (), {}
            self.attempt, self.exits, self._stepped = None, {}, False
            self._running.clear()
            self._ended = False
            self.saved = [step for step in self.saved if step <= command.restore_step]
        if command.attempt < self.number:
            return
        self._running[node] = command.node_rank
        if not self.world:
            self._hear_of(command)
        if len(self._running) == len(self.world) and self.attempt is None:
            begins_s = now_s + self.fleet.relaunch_s
            self._begun_s = begins_s if self._begun_s is None else self._begun_s
            first = max(FIRST_STEP, self.restore_step + 1)
            self.attempt = Attempt(self._spec, first_step=first, begins_s=begins_s)

    def _hear_of(self, command: Start) -> None:
        """Each node is told a part of a large world. All of them together are told the whole."""
        self._told.update({member.node_rank: member.node for member in command.world})
        if len(self._told) == command.node_count:
            self.world = tuple(self._told[rank] for rank in range(command.node_count))
            self._spec = replace(self._spec, attempt=command.attempt, nodes=self.world)

    def stop(self, node: str) -> None:
        """A node ends its ranks."""
        if self._running.pop(node, None) is not None:
            self._ended = True

    def node_rank(self, node: str) -> int:
        """Which ranks a node runs, -1 for none."""
        return self._running.get(node, -1)

    def ranks(self, node: str) -> range:
        """The ranks that run on a node, those that ended by themselves included."""
        number = self.node_rank(node)
        return range(0) if number < 0 else ranks_of_node(number, self.fleet.ranks_per_node)

    # -- time ---------------------------------------------------------------------------------------------

    def tick(self, now_s: float) -> Happened:
        """Let time pass until `now_s`."""
        happened = Happened()
        attempt = self.attempt
        if attempt is None or self._ended:
            return happened
        self._strike(now_s, happened)
        happened.steps = attempt.advance(now_s, self.slow(now_s), self._held_up(now_s))
        for step in happened.steps:
            self._save(step.number)
        if happened.steps and not self._stepped:
            self._stepped = happened.stepped = True
        return happened

    def plan_s(self, now_s: float) -> float:
        """The plan's time: seconds since the first step began. Below 0 before it."""
        return -1.0 if self._begun_s is None else now_s - self._begun_s

    def active(self, kind: str, now_s: float) -> list[LiveFault]:
        """The faults of a kind that are there now."""
        at_s = self.plan_s(now_s)
        return [f for f in self.plan if f.kind == kind and at_s >= 0 and f.active(at_s)]

    def slow(self, now_s: float) -> dict[int, float]:
        """How many times as long each slow rank computes."""
        factors: dict[int, float] = {}
        for fault in (*self.active("slow_rank", now_s), *self.active("slow_node", now_s)):
            for rank in self._ranks_of(fault):
                factors[rank] = factors.get(rank, 1.0) * fault.number("factor")
        return factors

    def silent(self, node: str, now_s: float) -> bool:
        """Whether the agent of a node says nothing now."""
        return any(fault.node == node for fault in self.active("silent_node", now_s))

    def positions(self, ranks: Sequence[int], now_s: float) -> Positions | None:
        """Where ranks stand, None before the first step of an attempt begins."""
        if self.attempt is None or now_s < self.attempt.step.begins_s:
            return None
        return self.attempt.positions(now_s, np.asarray(ranks, np.int64))

    def fails_check(self, node: str) -> bool:
        """Whether the node fails the self-check: a fault that struck it has broken it."""
        return any(f.node == node and f.numbers.get("fails_check") for f in self._struck)

    def states(self) -> Mapping[int, ProcessState]:
        """The states of processes that neither run nor wait."""
        stopped: dict[int, ProcessState] = dict.fromkeys(self._hung_ranks(stopped=True), "stopped")
        return stopped | dict.fromkeys(self.exits, "gone")

    def hung(self) -> set[int]:
        """Ranks that stand still by themselves."""
        return self._hung_ranks(stopped=False) | self._hung_ranks(stopped=True)

    def held_by(self, node: str) -> Holding | None:
        """The checkpoints that a node could restore, None for none."""
        return self._held.get(node)

    def forget(self, node: str) -> None:
        """A node was evicted: what it held is gone."""
        self._held.pop(node, None)

    def _hung_ranks(self, *, stopped: bool) -> set[int]:
        return {
            rank
            for fault, attempt in self._struck.items()
            if fault.kind == "hung_rank"
            and attempt == self.number
            and bool(fault.number("stopped")) is stopped
            for rank in self._ranks_of(fault)
        }

    def _strike(self, now_s: float, happened: Happened) -> None:
        """Note the faults that begin now. A rank hangs or exits once, in the attempt in which it begins."""
        at_s = self.plan_s(now_s)
        for fault in self.plan:
            ended = at_s >= fault.at_s + fault.for_s
            if fault not in self._struck and fault.active(at_s):
                self._struck[fault] = self.number
                happened.struck.append(fault)
                if fault.kind == "exit":
                    for rank in self._ranks_of(fault):
                        self.exits[rank] = int(fault.number("code"))
                        happened.exits.append(Exit(node=fault.node, rank=rank, code=self.exits[rank]))
            elif fault.kind == "hung_rank" and ended and self._struck.get(fault, -1) >= 0:
                self._struck[fault] = -1  # it goes on by itself

    def _held_up(self, now_s: float) -> frozenset[int]:
        """Ranks that do not join the all-reduce of this step: they hang, ended, or their node is gone."""
        gone = self.active("silent_node", now_s)
        missing = {rank for fault in gone for rank in self._placed(fault.node)}
        return frozenset(missing | self.hung() | self.exits.keys())

    def _ranks_of(self, fault: LiveFault) -> list[int]:
        """The ranks that run where a fault struck."""
        placed = self._placed(fault.node)
        return list(placed) if fault.local_rank < 0 else list(placed[fault.local_rank : fault.local_rank + 1])

    def _placed(self, node: str) -> range:
        """The ranks that this attempt has placed on a node."""
        if node not in self.world:
            return range(0)
        return ranks_of_node(self.world.index(node), self.fleet.ranks_per_node)

    # -- checkpoints --------------------------------------------------------------------------------------

    def saves(self, step: int) -> bool:
        """Whether a checkpoint is made after `step`."""
        every = self.fleet.checkpoint_every
        return every > 0 and step % every == 0

    def _save(self, step: int) -> None:
        """Each node keeps its own ranks' state and that of its partner's."""
        if not self.saves(step):
            return
        self.saved = [*self.saved, step][-KEPT:]
        per_node, steps = self.fleet.ranks_per_node, tuple(self.saved)
        for number, node in enumerate(self.world):
            partner = number ^ 1
            partners = ranks_of_node(partner, per_node) if partner < len(self.world) else range(0)
            self._held[node] = Holding(own=ranks_of_node(number, per_node), partners=partners, steps=steps)
