"""Whether this node reaches the store at which its ranks will meet the others."""

from __future__ import annotations

import socket

from pulsetrain.protocol.messages import Start

CONNECT_S = 2.0


def why_unreachable(start: Start, timeout_s: float = CONNECT_S) -> str:
    """ "" where it does, or where nobody asks. Else why not: ranks would wait for half an hour."""
    if not start.check_store:
        return ""
    try:
        socket.create_connection((start.store_address, start.store_port), timeout=timeout_s).close()
    except OSError as error:
        return f"{start.store_address}:{start.store_port}: {error}"
    return ""
