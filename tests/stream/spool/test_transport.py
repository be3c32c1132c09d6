from __future__ import annotations

import httpx
import pytest

from pulsetrain.core.errors import AuthError, Unavailable, UsageError
from pulsetrain.records.batch import identify
from pulsetrain.stream.spool.queue import Spool
from pulsetrain.stream.spool.transport import HttpTransport, Rejection, Shipper, ShipperConfig
from tests.stream.conftest import TOKEN
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


@pytest.fixture
def over_http():
    """Makes HTTP transports and closes them."""
    made = []

    def make(url, token=TOKEN):
        made.append(HttpTransport(url, token))
        return made[-1]

    yield make
    for transport in made:
        transport.close()


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


@pytest.mark.parametrize("url", ["hub:8780", "ftp://hub", "http://hub:port"])
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(UsageError, match="hub address"):
        HttpTransport(url, TOKEN)


@pytest.mark.integration
def test_over_http_rows_are_stored_once(tmp_path, hub, chdb_store, over_http):
    spool, ship = shipper(tmp_path, over_http(hub))
    (first, *_) = spool.pending()
    over_http(hub).send([first])  # sent before, and the answer got lost
    ship.start()
    ship.stop(drain_s=20)
    found = chdb_store.query(
        "SELECT rank FROM steps WHERE job = {j:String} ORDER BY rank", {"j": f"ship-{tmp_path.name}"}
    )
    assert found["rank"].to_pylist() == list(range(10))
    assert not spool.dropped


@pytest.mark.integration
def test_over_http_what_the_hub_refuses_goes_aside(tmp_path, hub, over_http):
    spool, ship = shipper(tmp_path, over_http(hub), batches=1)
    foreign = spool.pending()[0]
    garbage = type(foreign)(segment=foreign.segment, end=foreign.end, rows=2, data=foreign.data[:-40])
    (rejection,) = over_http(hub).send([garbage])
    assert "not a batch of columns" in rejection.why
    ship.stop()


@pytest.mark.integration
def test_over_http_a_wrong_token_and_an_absent_hub_lose_nothing(tmp_path, hub, over_http):
    spool, ship = shipper(tmp_path, over_http(hub, "wrong"))
    with pytest.raises(AuthError, match="refuses the token"):
        over_http(hub, "wrong").send(spool.pending())
    with pytest.raises(Unavailable, match="does not answer"):
        over_http("http://127.0.0.1:9").send(spool.pending())
    assert spool.backlog == 5
    ship.stop()


def test_answers_that_pass_are_tried_again(tmp_path, monkeypatch, over_http):
    spool, ship = shipper(tmp_path, MemoryTransport(), batches=1)
    refusal = httpx.Response(200, json={"results": [{"error": "schema"}]})
    answers = iter([httpx.Response(503), httpx.Response(500), refusal])
    transport = over_http("http://hub")
    monkeypatch.setattr(httpx.Client, "post", lambda *a, **k: next(answers))
    for _ in range(2):
        with pytest.raises(Unavailable, match="answers 50"):
            transport.send(spool.pending())
    assert [r.why for r in transport.send(spool.pending())] == ["schema"]
    ship.stop()
