"""Whether this node reaches the store at which its ranks will meet the others."""

from __future__ import annotations

import socket

CONNECT_S = 2.0


def why_unreachable(address: str, port: int, timeout_s: float = CONNECT_S) -> str:
    """ "" where it does. Else why not: ranks would wait for half an hour."""
    try:
        socket.create_connection((address, port), timeout=timeout_s).close()
    except OSError as error:
        return f"{address}:{port}: {error}"
    return ""
