"""A broker that is killed and started again, ten times, costs no row; proven by the rows' own ids."""

import time

import pytest

from pulsetrain.core.errors import Unavailable
from pulsetrain.stream.kafka.transport import KafkaTransport
from tests.agent.real_processes import until
from tests.stream.kafka.conftest import Broker
from tests.stream.kafka.pipeline import Pipeline

pytestmark = [pytest.mark.kafka, pytest.mark.integration]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_broker_restarted_ten_times_costs_no_row(tmp_path, forker):
    broker = Broker(tmp_path / "kafka", gone_after_ms=2_000).start()
    pipeline = Pipeline(broker, tmp_path / "store", forker)
    transport = KafkaTransport(pipeline.config)
    try:
        pipeline.start()
        assert until(lambda: pipeline.logged("partitions_assigned"), 120)
        for restart in range(11):
            waiting = [pipeline.message(f"n{s}/1") for s in range(4) for _ in range(5)]
            if restart:
                broker.stop()
                broker.start()
            _send_until_taken(transport, waiting)
        pipeline.drain()
        pipeline.assert_each_once()
    finally:
        transport.close()
        pipeline.close()
        broker.stop()


def _send_until_taken(transport, entries, seconds=120):
    """Send until it is taken, as a shipper does."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return transport.send(entries)
        except Unavailable:
            if time.monotonic() > deadline:
                raise
