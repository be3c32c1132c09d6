"""Carries the rows of a simulated fleet to the hub: over spools and shippers, as agents have them."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

import structlog

from pulsetrain.protocol.client import HubAddress
from pulsetrain.records.columns import Columns
from pulsetrain.stream.spool.queue import Spool, SpoolConfig
from pulsetrain.stream.spool.shipper import Shipped, Shipper
from pulsetrain.stream.spool.transport import HttpTransport

log = structlog.get_logger()

SPOOL_BYTES = 256 << 20
FLUSH_S = 10.0


class FleetRecorder:
    """Makes rows on one thread, and ships them over several senders in turn.

    A real fleet has a sender on each node. A few with large batches cost the hub much less.
    """

    def __init__(self, spools: list[Spool], shippers: list[Shipper]) -> None:
        self._spools, self._shippers = spools, shippers
        self._turn = itertools.cycle(spools)
        self._thread = ThreadPoolExecutor(1, "records")
        self._waiting, self._lock = 0, Lock()
        self.failures = 0

    @classmethod
    @contextlib.contextmanager
    def open(cls, hub: HubAddress, senders: int) -> Iterator[FleetRecorder]:
        """A recorder with its spools in a temporary folder. At the end it ships what is left, for 10 s."""
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pulsetrain-fleet-")))
            spools, shippers = [], []
            for number in range(senders):
                config = SpoolConfig(max_bytes=SPOOL_BYTES)
                spool = Spool(folder / str(number), node=f"simulated-{number}", config=config)
                stack.callback(spool.close)
                shipper = Shipper(spool, HttpTransport(hub.url, hub.token, ca=hub.ca))
                stack.callback(shipper.stop, drain_s=FLUSH_S / senders)
                shipper.start()
                spools.append(spool)
                shippers.append(shipper)
            recorder = cls(spools, shippers)
            stack.callback(recorder._thread.shutdown)
            yield recorder

    def make(self, rows: Callable[[], Iterable[Columns]]) -> None:
        """Have rows made and shipped soon."""
        with self._lock:
            self._waiting += 1
        self._thread.submit(self._make, rows)

    @property
    def waiting(self) -> int:
        """How many calls of `make` are not done yet."""
        return self._waiting

    @property
    def backlog(self) -> int:
        """Batches that are not shipped yet."""
        return sum(spool.backlog for spool in self._spools)

    @property
    def dropped_rows(self) -> int:
        """Rows that did not fit into the spools."""
        return sum(spool.dropped_rows for spool in self._spools)

    @property
    def shipped(self) -> list[Shipped]:
        """What each sender has delivered."""
        return [shipper.shipped for shipper in self._shippers]

    def _make(self, rows: Callable[[], Iterable[Columns]]) -> None:
        try:
            for batch in rows():
                next(self._turn).append(batch)
        except Exception:
            self.failures += 1
            log.exception("simulated_rows_lost")
        finally:
            with self._lock:
                self._waiting -= 1
