"""The store at which an attempt's ranks meet, hosted by a worker of one agent instead of by a rank."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any


def host(*, timeout_s: float = 1800.0) -> Iterator[dict[str, Any]]:
    """A service for `Zygote.serve`: {"port": int} of a store that lives as long as the worker."""
    from torch.distributed import TCPStore

    store = TCPStore(
        "0.0.0.0",  # ranks of other nodes connect
        0,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=timeout_s),
    )
    yield {"port": store.port}
    del store
