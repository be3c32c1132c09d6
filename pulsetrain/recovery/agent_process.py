"""Tells the processes of agents apart: the one that a node had before, and the one that it has now."""

from __future__ import annotations

from typing import NamedTuple


class AgentProcess(NamedTuple):
    """The process of an agent. `id` is the random word that it has chosen, "" where it chose none."""

    pid: int
    id: str

    def is_same(self, other: AgentProcess) -> bool:
        """Whether both are one process.

        Pids tell processes apart only where an older agent or hub knew no id. In containers many agents
        have the same pid.
        """
        if self.id and other.id:
            return self.id == other.id
        return self.pid == other.pid
