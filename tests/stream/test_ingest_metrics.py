"""What Prometheus reads of the way into the store."""

from __future__ import annotations

import pytest

from pulsetrain.stream.ingest_metrics import IngestMetrics


def test_an_insert_is_timed_and_one_that_fails_is_counted_too():
    metrics = IngestMetrics()
    with metrics.insert("steps"):
        pass
    with pytest.raises(RuntimeError), metrics.insert("steps"):
        raise RuntimeError("away")
    value = metrics.registry.get_sample_value
    assert value("pulsetrain_ingest_insert_seconds_count") == 2
    assert value("pulsetrain_ingest_failed_inserts_total", {"record": "steps"}) == 1


def test_two_ways_into_the_store_count_apart():
    one, other = IngestMetrics(), IngestMetrics()
    one.bytes.inc(5)
    assert b"pulsetrain_ingest_bytes_total 5.0" in one.text()
    assert b"pulsetrain_ingest_bytes_total 0.0" in other.text()


def test_the_names_that_dashboards_and_alerts_rely_on_stay():
    metrics = IngestMetrics()
    names = {family.name for family in metrics.registry.collect()}
    assert {name.removeprefix("pulsetrain_ingest_") for name in names} == {
        "rows",
        "repeated_rows",
        "bytes",
        "refused_batches",
        "quarantined_rows",
        "set_aside_rows",
        "failed_inserts",
        "waiting_rows",
        "behind_messages",
        "lag_seconds",
        "last_seen_timestamp_seconds",
        "insert_seconds",
    }


def test_a_first_burst_is_seen_because_every_record_is_counted_from_nothing():
    text = IngestMetrics().text().decode()
    for name in ("rows", "quarantined_rows", "failed_inserts"):
        assert f'pulsetrain_ingest_{name}_total{{record="spans"}} 0.0' in text
