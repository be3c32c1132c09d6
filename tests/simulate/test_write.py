"""What is sent over a transport is what was simulated, known again when it comes twice."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pulsetrain.core.errors import UsageError
from pulsetrain.records.batch import decode
from pulsetrain.simulate.spec import FleetSpec
from pulsetrain.simulate.telemetry import telemetry
from pulsetrain.simulate.write import to_transport
from pulsetrain.stream.spool.transport import Rejection

SPEC = FleetSpec(ranks=64, tp=2, pp=2, steps=20)


class Fake:
    def __init__(self, why=""):
        self.taken, self.why = [], why

    def send(self, entries):
        self.taken += entries
        return [Rejection(entry=entries[0], why=self.why)] if self.why else []

    def close(self):
        pass


def sent(spec):
    transport = Fake()
    rows = to_transport(spec, transport, lambda _: None)
    return rows, transport.taken


def test_every_row_is_sent_and_the_ranges_of_each_source_follow_each_other():
    rows, entries = sent(SPEC)
    batches = [decode(entry.data) for entry in entries]
    for record in ("spans", "steps", "topology", "events"):
        made = pa.concat_tables([t for name, t in telemetry(SPEC) if name == record])
        came = pa.concat_tables([b.table for b in batches if b.record == record])
        assert str(came.to_pylist()) == str(made.to_pylist())  # NaN is no equal of itself
        assert rows[record] == len(made)
    ends = {}
    for batch in batches:
        assert batch.first_row == ends.get((batch.source, batch.record), 0)
        ends[(batch.source, batch.record)] = batch.first_row + batch.rows
    assert len({batch.source for batch in batches if batch.record == "spans"}) > 1


def test_the_same_specification_sends_the_same_bytes():
    assert [e.data for e in sent(SPEC)[1]] == [e.data for e in sent(SPEC)[1]]


def test_what_is_refused_is_an_error_with_the_reason():
    with pytest.raises(UsageError, match="too large"):
        to_transport(SPEC, Fake(why="too large"), lambda _: None)
