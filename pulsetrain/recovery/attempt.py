"""One launch of a job: everything that starts anew with the next launch."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from pulsetrain.protocol.messages import FirstStep, RankExit, WorldNode
from pulsetrain.recovery.move_request import Image
from pulsetrain.recovery.record import Fault


@dataclass(kw_only=True)
class Attempt:
    """One launch. `number` counts launches of the job from 0, -1 before the first one.

    `launched`: every node has answered the launch. `adopted`: to an earlier hub. `first_step_done`: all ranks
    have done useful work. `stopped`: a node has ended its ranks when it was told to.
    `first_steps` holds the report of each node by name, `exits` the ranks that ended by themselves.
    `restore_step` is the step that it began from, -1 for none. `early_exits` are those that agents told a new
    hub before it knew who runs which rank, by rank. `program_refused` says why a node could not launch what
    an update wants, "" where all could. `image` has the processes that it brings back, None once they run.
    `stepping_ns` is when a rank was first seen to have completed a step of it, 0: none was. `idle`: it ended
    before it did anything useful. `left_alone` has the failures on which a hub that only observes did not
    act, and `none_left_s` is when it saw that no rank was left, None where one is. `exits_kept` is how many
    of the `exits` a new hub would know of. `failed` are ranks whose failure was told: agents tell it again on
    each connection. `overtaken`: something has happened that ends its launch, which waits for no further node
    then.
    """

    number: int = -1
    started_ns: int = 0
    launched: bool = False
    adopted: bool = False
    first_step_done: bool = False
    stopped: bool = False
    exits: list[RankExit] = field(default_factory=list)
    early_exits: dict[int, RankExit] = field(default_factory=dict)
    first_steps: dict[str, FirstStep] = field(default_factory=dict)
    restore_step: int = -1
    program_refused: str = ""
    image: Image | None = None
    stepping_ns: int = 0
    idle: bool = True
    left_alone: list[Fault] = field(default_factory=list)
    none_left_s: float | None = None
    exits_kept: int = 0
    failed: set[int] = field(default_factory=set)
    overtaken: asyncio.Event = field(default_factory=asyncio.Event)

    def finished_ranks(self) -> set[int]:
        """Ranks that ended with status 0."""
        return {e.rank for e in self.exits if e.code == 0}

    def finished_nodes(self, world: Iterable[WorldNode]) -> list[int]:
        """Node ranks of which all ranks ended with status 0."""
        ended = self.finished_ranks()
        return [member.node_rank for member in world if ended and ended.issuperset(member.ranks)]

    def all_stepped(self, nodes: Iterable[str]) -> bool:
        """Whether the launch was answered and every one of `nodes` has completed a step."""
        return self.launched and self.first_steps.keys() >= set(nodes)
