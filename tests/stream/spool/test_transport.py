from __future__ import annotations

import pytest

from pulsetrain.core.errors import AuthError, Unavailable, UsageError
from pulsetrain.records import batch
from pulsetrain.stream.spool import segment
from pulsetrain.stream.spool.queue import Entry, Spool
from pulsetrain.stream.spool.shipper import Shipper, ShipperConfig
from pulsetrain.stream.spool.transport import HttpTransport
from tests.protocol.fake_hub import fake_hub
from tests.stream.conftest import TOKEN
from tests.stream.rows import columns

QUICK = ShipperConfig(idle_s=0.05, first_backoff_s=0.001, max_backoff_s=0.002)


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


def entries(count):
    return [Entry(segment=1, end=i, rows=i + 1, data=b"%d" % i) for i in range(count)]


def test_entries_are_posted_framed_in_their_order_with_the_token(over_http):
    with fake_hub((200, {"results": [{"stored": 1}, {"stored": 2}]})) as hub:
        assert over_http(hub.url).send(entries(2)) == []
    (asked,) = hub.asked
    assert (asked.path, asked.headers["Authorization"]) == ("/v1/records", f"Bearer {TOKEN}")
    found = segment.scan(asked.body)
    assert [(asked.body[p.offset : p.end], p.rows) for p in found.positions] == [(b"0", 1), (b"1", 2)]


def test_after_a_failure_the_next_hub_is_asked():
    with fake_hub((503, {"leader": ""})) as waiting, fake_hub((200, {"results": [{"stored": 1}]})) as leader:
        transport = HttpTransport(waiting.url, TOKEN, others=(leader.url,))
        with pytest.raises(Unavailable, match=waiting.url):
            transport.send(entries(1))
        assert transport.send(entries(1)) == transport.send(entries(1)) == []
        transport.close()
    assert (len(waiting.asked), len(leader.asked)) == (1, 2)


def test_an_answer_of_trouble_means_that_nothing_is_known_and_a_refused_batch_is_named(over_http):
    with fake_hub((503, b""), (500, b""), (200, {"results": [{"error": "schema"}, {"stored": 2}]})) as hub:
        transport = over_http(hub.url)
        for _ in range(2):
            with pytest.raises(Unavailable, match="answers 50"):
                transport.send(entries(2))
        (rejection,) = transport.send(entries(2))
    assert (rejection.entry.rows, rejection.why) == (1, "schema")


def test_a_body_that_is_too_large_is_sent_in_parts_until_one_batch_is_too_large_alone(over_http):
    answers = [(413, b""), (413, b"too large"), (200, {"results": [{"stored": 2}]})]
    with fake_hub(*answers) as hub:
        (rejection,) = over_http(hub.url).send(entries(2))
    assert (rejection.entry.rows, rejection.why) == (1, "too large")


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_token_is_an_error_of_its_own(over_http, status):
    with fake_hub((status, b"")) as hub, pytest.raises(AuthError, match="refuses the token"):
        over_http(hub.url).send(entries(1))


@pytest.mark.integration
def test_a_spool_of_an_earlier_version_is_stored(tmp_path, hub, chdb_store, over_http):
    """Before 0.2 spools held Arrow IPC streams."""
    spool = Spool(tmp_path, encode=batch.encode_columns)
    spool.append(columns("steps", 3, job=f"old-{tmp_path.name}"))
    spool.close()
    spool = Spool(tmp_path)
    spool.append(columns("steps", 2, first=3, job=f"old-{tmp_path.name}"))
    ship = Shipper(spool, over_http(hub), config=QUICK)
    ship.start()
    ship.stop(drain_s=20)
    found = chdb_store.query(
        "SELECT rank FROM steps WHERE job = {j:String} ORDER BY rank", {"j": f"old-{tmp_path.name}"}
    )
    assert found["rank"].to_pylist() == [0, 1, 2, 3, 4]
    assert not spool.dropped


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
