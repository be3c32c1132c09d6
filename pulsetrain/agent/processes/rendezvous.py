"""The store at which the ranks of an attempt meet. A worker of one agent hosts it, not a rank."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta


def host(*, timeout_s: float = 1800.0, dumpable: bool = False) -> Iterator[dict[str, int]]:
    """A service for `Zygote.serve`: {"port": int} of a store that lives as long as the worker.

    A `dumpable` one does without libuv. That uses io_uring, which CRIU cannot dump. It has no output either:
    the agent's may be a terminal or a socket, which CRIU cannot dump, or a file. CRIU restores nobody whose
    file has grown meanwhile.
    """
    from torch.distributed import TCPStore

    if dumpable:
        _leave_output()
    store = TCPStore(
        "0.0.0.0",  # ranks of other nodes connect
        0,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=timeout_s),
        use_libuv=not dumpable,
    )
    yield {"port": store.port}
    del store


def _leave_output() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    for fd in (1, 2):
        os.dup2(nowhere, fd)
    os.close(nowhere)
