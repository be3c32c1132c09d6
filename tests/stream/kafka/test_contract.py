"""What every transport promises, held to on the hub's HTTP route and on a real broker alike."""

import threading
import time
import uuid

import pytest

from pulsetrain.core.clock import SystemClock
from pulsetrain.core.errors import Unavailable
from pulsetrain.records.batch import encode
from pulsetrain.stream.kafka.client import KafkaConfig
from pulsetrain.stream.kafka.ingest import Ingest
from pulsetrain.stream.kafka.ingest_config import IngestConfig
from pulsetrain.stream.kafka.transport import KafkaTransport
from pulsetrain.stream.spool.queue import Entry, Spool
from pulsetrain.stream.spool.shipper import Shipper, ShipperConfig
from pulsetrain.stream.spool.transport import HttpTransport
from tests.stream.conftest import TOKEN
from tests.stream.rows import columns, table

pytestmark = [pytest.mark.kafka, pytest.mark.integration]


class OverHttp:
    """The hub's route; what was sent is stored when `send` returns."""

    def __init__(self, hub, store):
        self.store = store
        self.transport = HttpTransport(hub, TOKEN)
        self.away = HttpTransport("http://127.0.0.1:9", TOKEN)

    def close(self):
        self.transport.close()
        self.away.close()


class OverKafka:
    """A broker, and an ingest beside the test that stores what it is sent."""

    def __init__(self, broker, store):
        config = KafkaConfig(servers=broker.servers, prefix=f"c{uuid.uuid4().hex[:8]}.", timeout_s=60)
        self.store = store
        self.transport = KafkaTransport(config)
        self.away = KafkaTransport(KafkaConfig(servers="127.0.0.1:9", timeout_s=1))
        self._ingest = Ingest(config, store, SystemClock(), IngestConfig(group=config.prefix, linger_s=0.1))
        self._thread = threading.Thread(target=self._ingest.run, daemon=True)
        self._thread.start()

    def close(self):
        self.transport.close()
        self.away.close()
        self._ingest.stop()
        self._thread.join(timeout=60)


@pytest.fixture(params=["http", "kafka"])
def path(request, chdb_store):
    if request.param == "http":
        path = OverHttp(request.getfixturevalue("hub"), chdb_store)
    else:
        path = OverKafka(request.getfixturevalue("broker"), chdb_store)
    yield path
    path.close()


@pytest.fixture
def job():
    return f"contract-{uuid.uuid4().hex[:8]}"


def entries(job, messages, rows=3):
    source = f"{job}/1"
    return [
        Entry(
            segment=0,
            end=i,
            rows=rows,
            data=encode(
                "steps",
                table("steps", rows, first=i * rows, job=job),
                source=source,
                first_row=i * rows,
            ),
        )
        for i in range(messages)
    ]


def stored(path, job, wanted, seconds=100):
    """Ranks in the store, in order; waits until there are `wanted`, then a little more."""
    sql = "SELECT rank FROM steps WHERE job = {j:String} ORDER BY start"
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if path.store.query(sql, {"j": job}).num_rows >= wanted:
            time.sleep(0.5)  # for rows that would be too many
            break
        time.sleep(0.1)
    return path.store.query(sql, {"j": job})["rank"].to_pylist()


def test_everything_sent_is_stored(path, job):
    assert path.transport.send(entries(job, 5)) == []
    assert stored(path, job, 15) == list(range(15))


def test_what_is_sent_twice_is_stored_once(path, job):
    sent = entries(job, 5)
    path.transport.send(sent)
    path.transport.send(sent[1:3])
    path.transport.send(list(reversed(sent)))
    path.transport.send(entries(job, 6)[5:])
    assert stored(path, job, 18) == list(range(18))


def test_garbage_is_refused_with_a_reason_and_the_rest_is_stored(path, job):
    good = entries(job, 3)
    bad = Entry(segment=0, end=9, rows=3, data=b"garbage")
    (refused,) = path.transport.send([good[0], bad, *good[1:]])
    assert refused.entry is bad
    assert "not an Arrow IPC stream" in refused.why
    assert stored(path, job, 9) == list(range(9))


def test_an_absent_other_side_is_unavailable_and_nothing_is_refused(path, job):
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:9.* does not answer"):
        path.away.send(entries(job, 1))


def test_nothing_to_send_is_no_error_and_closing_twice_neither(path):
    assert path.transport.send([]) == []
    path.transport.close()
    path.transport.close()


def test_a_shipper_empties_its_spool_over_it(path, job, tmp_path):
    spool = Spool(tmp_path, node=job)
    for i in range(4):
        spool.append(columns("steps", 2, first=2 * i, job=job))
    ship = Shipper(spool, path.transport, config=ShipperConfig(idle_s=0.05))
    ship.start()
    ship.stop(drain_s=60)
    assert spool.backlog == 0
    assert spool.dropped == {}
    spool.close()
    assert stored(path, job, 8) == list(range(8))
