"""Tells a hub that is cut off from a job's nodes from nodes that are gone.

A proxy or a switch can take the connections of all agents at once. The ranks train on. As long as nobody of
the job is heard, nothing could be done for it, so that its nodes have time to come back. They do not come all
at once: an agent waits up to two seconds between two tries.
"""

from __future__ import annotations

BACK_GRACE_S = 3.0
"""for the other nodes, once the first one is heard again. It is longer than agents wait between two tries."""


class CutOff:
    """Whether a job's nodes can be heard, by the hub's last look."""

    def __init__(self) -> None:
        self._nobody, self._back_s = False, float("-inf")

    def look(self, *, nobody: bool, now_s: float) -> bool:
        """Take in whether nobody is heard now. Returns whether silence says nothing of a single node.

        That is so while nobody is heard, and until the others have had time to come back too.
        """
        if self._nobody and not nobody:
            self._back_s = now_s
        self._nobody = nobody
        return nobody or now_s - self._back_s <= BACK_GRACE_S
