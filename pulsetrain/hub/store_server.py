"""Rendezvous stores beside a hub: ``python -m pulsetrain.hub.store_server HOST IDLE_S``.

torch's `env://` rendezvous adds no prefix for job or attempt. So each attempt has a store of its own, on a
port of its own. One process hosts all of them, because importing torch takes a second and much memory.

It reads one JSON object a line, {"open": JOB}, and answers {"port": N} or {"error": TEXT}. A rank that makes
a new group needs its store, also while no hub is there. So this process does not end with its hub. It ends
when the hub is gone and no rank has been connected for `IDLE_S`.
"""

from __future__ import annotations

import json
import signal
import socket
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

import psutil

from pulsetrain.core.open_files import allow_many_open_files
from pulsetrain.core.process_title import set_process_title

if TYPE_CHECKING:
    from torch.distributed import TCPStore

TIMEOUT_S = 1800.0
LOOK_S = 1.0
BACKLOG = 4096


class Stores:
    """The newest store of each job. All listen on the address `host`."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._stores: dict[str, TCPStore] = {}

    @property
    def ports(self) -> frozenset[int]:
        """Where they listen."""
        return frozenset(store.port for store in self._stores.values())

    def open(self, job: str) -> int:
        """Port of a new store. The one that the job had before ends."""
        from torch.distributed import TCPStore

        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)  # torch itself would listen on all addresses
        listener.bind((self._host, 0))
        listener.listen(BACKLOG)
        port: int = listener.getsockname()[1]
        store = TCPStore(
            {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._host, self._host),
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=TIMEOUT_S),
            master_listen_fd=listener.detach(),
        )
        self._stores[job] = store
        return port


def connected(ports: frozenset[int]) -> bool:
    """Whether anybody but this process itself is connected to one of these ports of it."""
    found = [c for c in psutil.Process().net_connections("tcp") if c.status == psutil.CONN_ESTABLISHED]
    own = {c.laddr.port for c in found}
    return any(c.laddr.port in ports and c.raddr.port not in own for c in found)


def wait_for_ranks(
    is_used: Callable[[], bool],
    idle_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return once nobody has used the stores for `idle_s`."""
    used_s = clock()
    while clock() - used_s < idle_s:
        sleep(min(LOOK_S, idle_s))
        if is_used():
            used_s = clock()


def main() -> None:
    """Serve the hub whose child this process is, and its ranks for as long as they are there."""
    host, idle_s = sys.argv[1], float(sys.argv[2])
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    allow_many_open_files()
    set_process_title("rendezvous stores")
    import torch.distributed  # noqa: F401  # before the first store is asked for

    stores = Stores(host)
    for line in sys.stdin:
        try:
            answer: dict[str, object] = {"port": stores.open(json.loads(line)["open"])}
        except Exception as error:  # noqa: BLE001  # the hub waits for an answer, whatever torch raises
            answer = {"error": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
        try:
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()
        except OSError:  # the hub has just ended
            break
    wait_for_ranks(lambda: connected(stores.ports), idle_s)


if __name__ == "__main__":
    main()
