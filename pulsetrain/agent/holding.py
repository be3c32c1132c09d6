"""Has the ranks of this node stand still after a step, and says where they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Protocol

from pulsetrain.collectors.reading.position import RankPosition
from pulsetrain.core.errors import UsageError
from pulsetrain.core.json import JsonObject
from pulsetrain.elastic import positions
from pulsetrain.protocol.messages import HoldRanks

LOOK_S = 0.002


class HeldRank(Protocol):
    """A rank as this module sees it."""

    rank: int

    @property
    def stands(self) -> bool: ...
    def hold(self, number: int, past: int, until_ns: int, saved_step: int = -1) -> None: ...
    def position(self) -> RankPosition: ...


def run(
    command: HoldRanks,
    attempt: int,
    ranks: Iterable[HeldRank],
    *,
    clock_ns: Callable[[], int] = time.perf_counter_ns,
    sleep: Callable[[float], None] = time.sleep,
) -> JsonObject:
    """Ask the ranks, and wait until one more of them stands, or for `wait_s`. Returns where they are.

    Raises `UsageError` where the ranks are those of another attempt.
    """
    if command.attempt != attempt:
        raise UsageError(f"attempt {command.attempt} does not run here; attempt {attempt} does")
    ranks = list(ranks)
    until_ns = clock_ns() + int(command.lease_s * 1e9)
    for rank in ranks:
        rank.hold(command.number, command.past.get(str(rank.rank), 0), until_ns, command.saved_step)
    if not command.number:
        return {"ranks": {}}
    before = _standing(ranks)
    deadline_ns = clock_ns() + int(command.wait_s * 1e9)
    while clock_ns() < deadline_ns and len(before) < len(ranks) and _standing(ranks) <= before:
        sleep(LOOK_S)
    return {"ranks": {str(rank.rank): _written(rank.position()) for rank in ranks}}


def _standing(ranks: list[HeldRank]) -> set[int]:
    return {rank.rank for rank in ranks if rank.stands}


def _written(position: RankPosition) -> JsonObject:
    groups = position.groups
    return positions.encode(
        stands=position.stands,
        arrivals=position.arrivals,
        in_flight=position.in_flight,
        complete=position.complete,
        groups=[(group.name, group.members, group.enqueued) for group in groups if not group.gone],
        pairs=[
            (groups[pair.group].name, pair.peer, pair.sends, pair.count)
            for pair in position.pairs
            if pair.group < len(groups)
        ],
    )
