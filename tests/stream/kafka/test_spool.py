"""What befalls a spool on its way through Kafka: rows sent = rows stored + drops counted, by their ids."""

import contextlib
import subprocess
from collections import Counter

import pytest

from pulsetrain.faults import files
from pulsetrain.stream.kafka.transport import KafkaTransport
from pulsetrain.stream.spool.queue import Spool, SpoolConfig
from pulsetrain.stream.spool.shipper import Shipper, ShipperConfig
from tests.stream.rows import as_columns

pytestmark = [pytest.mark.kafka, pytest.mark.integration]


@pytest.fixture
def small_disk(tmp_path):
    """A disk of one megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], check=False).returncode:
        pytest.skip("may not mount a small disk")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def deliver(spool, pipeline):
    """Ship everything that is spooled into Kafka, and from there into the store."""
    ship = Shipper(spool, KafkaTransport(pipeline.config), config=ShipperConfig(idle_s=0.05))
    ship.start()
    ship.stop(drain_s=20)
    assert spool.backlog == 0
    pipeline.start()
    pipeline.drain()


def spooled(spool, pipeline, batches):
    """Append batches; the ids of those that the spool took."""
    taken = []
    for _ in range(batches):
        _, rows = pipeline.rows("n0/1")
        if spool.append(as_columns("steps", rows)):
            taken += rows["step"].to_pylist()
    return taken


def test_a_disk_that_is_full_and_freed_costs_what_was_counted_and_no_more(forked_pipeline, small_disk):
    pipeline, ballast = forked_pipeline, small_disk / "ballast"
    spool = Spool(small_disk / "spool", config=SpoolConfig(segment_bytes=1 << 16))
    taken = spooled(spool, pipeline, 10)
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    taken += spooled(spool, pipeline, 20)
    assert spool.dropped["disk_full"] > 0
    ballast.unlink()
    before = spool.dropped_rows
    taken += spooled(spool, pipeline, 10)
    assert spool.dropped_rows == before
    deliver(spool, pipeline)
    assert Counter(pipeline.stored()) == Counter(taken)
    assert len(pipeline.sent) == len(taken) + spool.dropped_rows
    spool.close()


def test_a_corrupt_segment_costs_the_rows_it_held_and_no_more(forked_pipeline, tmp_path):
    pipeline, folder = forked_pipeline, tmp_path / "spool"
    spool = Spool(folder)
    spooled(spool, pipeline, 20)
    spool.close()
    (segment,) = folder.glob("*.seg")
    files.flip_byte(segment, seed=3)
    again = Spool(folder)
    assert again.dropped["corrupt"] > 0
    deliver(again, pipeline)
    stored = Counter(pipeline.stored())
    assert not stored - Counter(pipeline.sent)  # nothing doubled, nothing made up
    assert len(pipeline.sent) == stored.total() + again.dropped_rows
    again.close()
