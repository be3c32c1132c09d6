"""Tells why the ranks of a node compute every optimizer's update themselves again."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from pulsetrain.agent.processes.rank import NodeIdentity
from pulsetrain.agent.processes.ranks import Ranks
from pulsetrain.agent.sources import Batches
from pulsetrain.records.columns import Columns

log = structlog.get_logger()

KIND = "squash_stopped"
LEFT_OUT = "squash_left_out"


class SquashEvents:
    """A source of events of kind `squash_stopped`: one of each rank and attempt that stopped.

    Once a rank has stopped, no rank of the node squashes any more, in later attempts neither.
    `squash_left_out` says of one optimizer that all compute it, as that takes less. Others are squashed.
    """

    def __init__(self, identity: NodeIdentity, ranks: Callable[[], Ranks]) -> None:
        self._identity, self._ranks = identity, ranks
        self._told: set[tuple[str, int, int]] = set()

    def take(self, now_ns: int) -> Batches:
        """See `Source`."""
        ranks = self._ranks()
        squash = ranks.devices.squash
        if squash is None or squash.fd < 0:
            return []
        rows: list[dict[str, object]] = []
        for rank in ranks.all:
            said = {KIND: squash.stopped(rank.local_rank), LEFT_OUT: squash.left_out(rank.local_rank)}
            for kind, why in said.items():
                if why and (kind, rank.attempt, rank.rank) not in self._told:
                    self._told.add((kind, rank.attempt, rank.rank))
                    rows.append(self._row(kind, rank.attempt, rank.rank, why, now_ns))
                    log.warning(kind, rank=rank.rank, detail=why)
        if any(row["kind"] == KIND for row in rows):
            ranks.devices.squash_no_more()
        return [Columns.from_rows("events", rows)] if rows else []

    def _row(self, kind: str, attempt: int, rank: int, why: str, now_ns: int) -> dict[str, object]:
        return {
            "ts": now_ns,
            "node": self._identity.node,
            "job": self._identity.job,
            "attempt": attempt,
            "rank": rank,
            "kind": kind,
            "actor": "agent",
            "detail": why,
        }
