"""Tells a person that a node has been given nothing to run. It may be of another run than they think.

Two scripts of one name are one job on a hub that both use, where no other name was given. The node of the
second one then stands by for the first one, which looks like a hang.
"""

from __future__ import annotations

from collections.abc import Callable

AFTER_S = 60.0
"""A job that waits for its other nodes has them by then, mostly."""


class StandingNotice:
    """Says it once, after a minute. Not of a node that was declared a standby."""

    def __init__(self, job: str, say: Callable[[str], None], *, declared: bool) -> None:
        self._job, self._say, self._done = job, say, declared
        self._since_s: float | None = None

    def look(self, now_s: float, *, connected: bool, launched: bool) -> None:
        """Take in whether the hub is reached, and whether it has ever asked for a launch here."""
        self._done = self._done or launched
        if self._done or not connected:
            self._since_s = None
        elif self._since_s is None:
            self._since_s = now_s
        elif now_s - self._since_s >= AFTER_S:
            self._done = True
            self._say(
                f"job {self._job!r} has given this node nothing to run so far: it stands by or waits, see "
                "`pulsetrain status`. A run of its own needs another name: --job NAME"
            )
