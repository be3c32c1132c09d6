from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from pulsetrain.core.errors import AuthError, Unavailable
from pulsetrain.records.batch import identify
from pulsetrain.stream.spool.queue import Spool
from pulsetrain.stream.spool.shipper import Shipper, ShipperConfig
from pulsetrain.stream.spool.transport import Rejection
from tests.stream.rows import columns

QUICK = ShipperConfig(idle_s=0.05, first_backoff_s=0.001, max_backoff_s=0.002)


class MemoryTransport:
    """Delivers into a list; fails or refuses as told."""

    def __init__(self, *, failures=(), refuse=()):
        self.delivered = []
        self.failures = list(failures)
        self.refuse = set(refuse)
        self.closed = False

    def send(self, entries):
        if self.failures:
            raise self.failures.pop(0)
        rejections = []
        for entry in entries:
            first = identify(entry.data).first_row
            if first in self.refuse:
                rejections.append(Rejection(entry=entry, why="no"))
            else:
                self.delivered.append(first)
        return rejections

    def close(self):
        self.closed = True


def shipper(folder, transport, batches=5):
    spool = Spool(folder)
    for i in range(batches):
        spool.append(columns("steps", 2, first=2 * i, job=f"ship-{folder.name}"))
    return spool, Shipper(spool, transport, config=QUICK)


def test_everything_spooled_is_delivered_in_order(tmp_path):
    transport = MemoryTransport()
    spool, ship = shipper(tmp_path, transport)
    ship.start()
    assert ship.flush(10)
    spool.append(columns("steps", 2))
    ship.stop(drain_s=10)
    assert transport.delivered == [0, 2, 4, 6, 8, 10]
    assert transport.closed
    assert (ship.shipped.rows, ship.shipped.batches, ship.shipped.failures) == (12, 6, 0)


@pytest.mark.parametrize("error", [Unavailable("away"), AuthError("token"), RuntimeError("bug")])
def test_failures_are_counted_and_cost_nothing(tmp_path, error):
    transport = MemoryTransport(failures=[error] * 3)
    _, ship = shipper(tmp_path, transport)
    ship.start()
    ship.stop(drain_s=10)
    assert transport.delivered == [0, 2, 4, 6, 8]
    assert ship.shipped.failures == 3
    assert ship.shipped.failing_since_s == 0.0


def test_a_spool_that_cannot_be_read_for_a_while_is_a_failure_and_is_sent_later(tmp_path, monkeypatch):
    transport = MemoryTransport()
    spool, ship = shipper(tmp_path, transport)
    failures, real = [OSError(24, "Too many open files")] * 3, Path.open

    def unreadable(path, *given):
        if path.suffix == ".seg" and failures:
            raise failures.pop()
        return real(path, *given)

    monkeypatch.setattr(Path, "open", unreadable)
    ship.start()
    ship.stop(drain_s=10)
    assert transport.delivered == [0, 2, 4, 6, 8]
    assert ship.shipped.failures == 3
    assert not spool.dropped


def test_a_refused_batch_goes_aside_and_blocks_nothing(tmp_path):
    transport = MemoryTransport(refuse=[4])
    spool, ship = shipper(tmp_path, transport)
    ship.start()
    ship.stop(drain_s=10)
    assert transport.delivered == [0, 2, 6, 8]
    assert spool.dropped == {"rejected": 2}
    assert (ship.shipped.rows, ship.shipped.rejected_rows) == (8, 2)


def test_stopping_while_the_hub_is_away_keeps_the_rest_on_disk(tmp_path):
    transport = MemoryTransport(failures=[Unavailable("away")] * 1_000_000)
    spool, ship = shipper(tmp_path, transport)
    ship.start()
    ship.stop()
    spool.close()
    assert len(Spool(tmp_path).pending()) == 5


def test_the_pause_grows_to_its_limit(tmp_path):
    ship = Shipper(Spool(tmp_path), MemoryTransport(), config=ShipperConfig())
    assert 0.15 <= ship._pause_s(1) <= 0.2
    assert 3.75 <= ship._pause_s(1000) <= 5.0


class BusyTransport(MemoryTransport):
    """Takes its time for the first entries."""

    def __init__(self):
        super().__init__()
        self.asked = threading.Event()

    def send(self, entries):
        if not self.asked.is_set():
            self.asked.set()
            time.sleep(0.3)
        return super().send(entries)


def test_what_is_left_at_the_end_is_waited_for_while_the_hub_is_only_busy(tmp_path):
    transport = BusyTransport()
    spool, ship = shipper(tmp_path, transport, batches=1)
    ship.start()
    assert transport.asked.wait(10)
    spool.append(columns("steps", 2))
    ship.stop(drain_s=0.2)
    assert transport.delivered == [0, 2]
