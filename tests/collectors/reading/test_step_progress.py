"""A rank's step as its neighbours see it: since when it runs, and whether it communicates."""

from __future__ import annotations

import os

import pytest

from pulsetrain.collectors.rank.handle import Handle
from pulsetrain.collectors.rank.ring import RingWriter, create_ring
from pulsetrain.collectors.reading.step_progress import StepProgress
from pulsetrain.core.errors import CorruptData


@pytest.fixture
def rank():
    fd = create_ring(64)
    writer = RingWriter(fd)
    yield Handle(writer), writer, StepProgress(fd)
    os.close(fd)


def test_steps_and_operations_in_flight_are_seen(rank):
    handle, writer, progress = rank
    assert (progress.last_step, progress.step_start_ns, progress.communicating) == (-1, 0, False)
    handle.start_clock()
    began = progress.step_start_ns
    assert began > 0
    handle.step()
    assert progress.last_step == 0
    assert progress.step_start_ns > began
    cell = writer.add_group(writer.name_group("dp"), (0, 1))
    writer.set_op(cell, writer.intern("all_reduce"), 1, 64, 5, -1)
    assert progress.communicating
    writer.set_op(cell, 0, 1, 64, 5, -1)
    assert not progress.communicating


def test_it_outlives_the_descriptor(rank):
    handle, _, progress = rank
    handle.step()
    assert progress.last_step == 0


def test_another_file_is_refused(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"\0" * (1 << 20))
    with path.open("r+b") as file, pytest.raises(CorruptData, match="no ring"):
        StepProgress(file.fileno())
