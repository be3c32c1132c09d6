"""How an agent and a rank talk that may be restarted in its own process: packets of JSON, with open files.

The agent makes both ends, and the rank inherits one. A rank says once that it listens. The agent asks it to
abort its attempt, and the rank answers that it is parked, or that it cannot be. Then the agent tells it to
resume, with the new environment, and the rank says that it does.
"""

from __future__ import annotations

import socket
import stat
from collections.abc import Mapping, Sequence
from os import fstat

from pulsetrain.core.readable import readable
from pulsetrain.protocol import packets

VARIABLE = "PULSETRAIN_RESTART_FD"
"""The environment variable that holds the descriptor of the rank's end."""

LISTENING, PARKED, OUTSIDE, RESUMED = "listening", "parked", "outside", "resumed"
"""What a rank says. `OUTSIDE`: nothing runs in it that could be called again."""
ABORT, RESUME = "abort", "resume"
"""What an agent says. With `RESUME` come stdout, stderr, the new ring and the arena."""


class RankChannel:
    """One end. Use it on one thread at a time for each direction."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    @classmethod
    def inherited(cls, environ: Mapping[str, str]) -> RankChannel | None:
        """The end that this process has inherited, None where there is none."""
        text = environ.get(VARIABLE, "")
        if not text.isdecimal():
            return None
        try:
            if not stat.S_ISSOCK(fstat(int(text)).st_mode):
                return None
            end = socket.socket(fileno=int(text))
        except OSError:
            return None
        return cls(end) if (end.family, end.type) == (socket.AF_UNIX, socket.SOCK_SEQPACKET) else None

    def fileno(self) -> int:
        """The descriptor."""
        return self._end.fileno()

    def send(self, op: str, files: Sequence[int] = (), **fields: object) -> bool:
        """Send one packet. Returns False where the other end is gone or takes none."""
        try:
            packets.send(
                self._end, {"op": op, **fields}, files, flags=socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
            )
        except OSError:
            return False
        return True

    def receive(self, timeout_s: float | None = None) -> tuple[dict[str, object], list[int]] | None:
        """The next packet and its open files. None where none comes in time, or the other end is gone."""
        if timeout_s is not None and not readable([self._end.fileno()], timeout_s):
            return None
        return packets.receive(self._end, flags=socket.MSG_CMSG_CLOEXEC)

    def close(self) -> None:
        """Close this end."""
        self._end.close()


def pair() -> tuple[RankChannel, RankChannel]:
    """Two connected ends: the agent's, the rank's."""
    agents, ranks = packets.pair()
    return RankChannel(agents), RankChannel(ranks)
