from __future__ import annotations

import math

import pytest

from pulsetrain.records.schema import CATEGORIES, PHASES, RECORDS, SCHEMA_VERSION, Kind


@pytest.mark.parametrize("record", RECORDS.values(), ids=lambda record: record.name)
def test_a_records_key_and_time_are_fields_of_it(record):
    assert set(record.order_by) <= set(record.names)
    assert record.field(record.time).kind is Kind.TIME
    assert record.ttl_days > 0
    assert len(set(record.names)) == len(record.names)


@pytest.mark.parametrize("record", RECORDS.values(), ids=lambda record: record.name)
def test_a_field_says_what_it_means_and_a_duration_says_its_unit(record):
    for field in record.fields:
        assert field.meaning
        assert field.since <= SCHEMA_VERSION
        if field.name.endswith("_ns"):
            assert field.unit == "ns"


def test_an_unknown_field_is_an_error():
    with pytest.raises(StopIteration):
        RECORDS["steps"].field("nothing")


def test_a_reader_fills_what_an_older_writer_did_not_send_with_a_value_that_is_no_measurement():
    defaults = {field.kind: field.default for record in RECORDS.values() for field in record.fields}
    assert defaults.keys() == set(Kind)
    assert (defaults[Kind.NAME], defaults[Kind.I32], defaults[Kind.MAYBE]) == ("", -1, None)
    assert math.isnan(defaults[Kind.F64])


def test_the_contracts_records_and_words_are_there():
    """Programs outside rely on these names. A name may be added, none may go."""
    assert {
        "spans",
        "steps",
        "topology",
        "heartbeats",
        "metrics",
        "logs",
        "events",
        "findings",
        "checkpoints",
    } <= RECORDS.keys()
    assert {"data", "forward", "backward", "optimizer", "checkpoint", "all_reduce", "gc"} <= set(PHASES)
    assert {"compute", "communication", "data", "checkpoint", "other"} <= set(CATEGORIES)
