"""The rows of one record as they pass through Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import structlog
from kafka import KafkaConsumer

from pulsetrain.core.errors import CorruptData, SchemaMismatch, UsageError
from pulsetrain.records.batch import decode
from pulsetrain.records.schema import RECORDS
from pulsetrain.stream.kafka.transport import KafkaConfig, client_options, one_line_errors

log = structlog.get_logger()


def passing(
    record: str, config: KafkaConfig, limit: int | None, *, from_start: bool
) -> Iterator[dict[str, Any]]:
    """Rows as dictionaries, `limit` of them or for ever. Reads outside any consumer group: nothing is taken
    from the ingest. Raises `UsageError` for an unknown record, `Unavailable` where no broker answers."""
    if record not in RECORDS:
        raise UsageError(f"unknown record {record!r}; allowed: {', '.join(RECORDS)}")
    with one_line_errors(config):
        consumer = KafkaConsumer(
            config.topic(record),
            auto_offset_reset="earliest" if from_start else "latest",
            **client_options(config),
        )
    left = limit
    try:
        with one_line_errors(config):
            for message in consumer:
                for row in _rows(message):
                    if left is not None and left <= 0:
                        return
                    yield row
                    left = None if left is None else left - 1
                if left is not None and left <= 0:
                    return
    finally:
        consumer.close()


def _rows(message: Any) -> list[dict[str, Any]]:
    try:
        return list(decode(message.value or b"").table.to_pylist())
    except (CorruptData, SchemaMismatch) as error:
        log.warning(
            "unreadable_message", partition=message.partition, offset=message.offset, error=str(error)
        )
        return []
