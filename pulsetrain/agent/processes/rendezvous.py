"""The store at which the ranks of an attempt meet. A worker of one agent hosts it, not a rank."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta


def host(*, timeout_s: float = 1800.0, dumpable: bool = False) -> Iterator[dict[str, int]]:
    """A service for `Zygote.serve`: {"port": int} of a store that lives as long as the worker.

    A `dumpable` one does without libuv. That uses io_uring, which CRIU cannot dump.
    """
    from torch.distributed import TCPStore

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
