"""The loops of the hub and of its agents in one table: for status, Prometheus and alerts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypedDict

from pulsetrain.core.supervisor import LoopStatus
from pulsetrain.hub.live_watch import Watched
from pulsetrain.protocol.late_rows import column
from pulsetrain.recovery.nodes import GONE

Statuses = Callable[[], Sequence[LoopStatus]]

HUB, AGENT = "hub", "agent"
LISTED = 256  # agents' loops that are well and listed. Thousands of nodes have tens of thousands


class LoopRow(TypedDict):
    """One loop. `node` is "" for the hub. See `LoopStatus` for the numbers."""

    process: str
    node: str
    loop: str
    turns: int
    failures: int
    failures_in_a_row: int
    last_error: str
    age_s: float
    stale: bool


class LoopTable:
    """Every loop that the hub knows of. `own` are the hub's supervisors and threads."""

    def __init__(self, own: Sequence[Statuses], jobs: Mapping[str, Watched]) -> None:
        self._own, self._jobs = list(own), jobs

    def add(self, statuses: Statuses) -> None:
        """Show more loops of the hub."""
        self._own.append(statuses)

    def rows(self) -> list[LoopRow]:
        """The hub's loops, then those that the agents of present nodes report.

        Of agents' loops that have never failed and are not stale, the first 256 are listed.
        """
        return [*self._hub_rows(), *self._agent_rows()]

    def hub_failures(self) -> int:
        """Failed turns of the hub's own loops."""
        return sum(row["failures"] for row in self._hub_rows())

    def _hub_rows(self) -> Iterator[LoopRow]:
        for statuses in self._own:
            for status in statuses():
                yield _row(HUB, "", status, 0.0)

    def _agent_rows(self) -> Iterator[LoopRow]:
        left = LISTED
        for job in list(self._jobs.values()):
            for node in job.snapshot().nodes:
                if node.heartbeat is None or node.state in GONE:
                    continue
                if not left and not _in_trouble(node.heartbeat.loops):
                    continue
                for status in node.heartbeat.loops:
                    well = not (status.failures or status.stale)
                    if well and not left:
                        continue
                    left -= well
                    yield _row(AGENT, node.name, status, node.heartbeat_age_s)


def _in_trouble(loops: Sequence[LoopStatus]) -> bool:
    """Whether any of these loops has failed or is stale."""
    return any(column(loops, "failures")) or any(column(loops, "stale"))


def _row(process: str, node: str, status: LoopStatus, report_age_s: float) -> LoopRow:
    return {
        "process": process,
        "node": node,
        "loop": status.name,
        "turns": status.turns,
        "failures": status.failures,
        "failures_in_a_row": status.failures_in_a_row,
        "last_error": status.last_error,
        "age_s": round(status.age_s + report_age_s, 3),
        "stale": status.stale,
    }
