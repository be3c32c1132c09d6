"""The rows of one record as they pass through Kafka."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
import structlog
from kafka import KafkaConsumer

from pulsetrain.core.errors import CorruptData, SchemaMismatch, UsageError
from pulsetrain.core.json import JsonObject
from pulsetrain.records.batch import decode
from pulsetrain.records.schema import RECORDS
from pulsetrain.stream.kafka.client import KafkaConfig, client_options, one_line_errors
from pulsetrain.stream.kafka.partition_buffer import Message

log = structlog.get_logger()


def tail_rows(
    record: str, config: KafkaConfig, limit: int | None, *, from_start: bool
) -> Iterator[JsonObject]:
    """Rows as dictionaries: `limit` of them, or for ever where that is None. Times are text, see `_plain`.

    Reads outside any consumer group, so that nothing is taken from the ingest. Raises `UsageError` for an
    unknown record, `Unavailable` where no broker answers.
    """
    if record not in RECORDS:
        raise UsageError(f"unknown record {record!r}; allowed: {', '.join(RECORDS)}")
    with one_line_errors(config):
        consumer = KafkaConsumer(
            config.topic(record),
            auto_offset_reset="earliest" if from_start else "latest",
            **client_options(config),
        )
    try:
        with one_line_errors(config):
            yield from itertools.islice(_rows(consumer), limit)
    finally:
        consumer.close()


def _rows(messages: Iterable[Message]) -> Iterator[JsonObject]:
    """The rows of all messages. A message that cannot be read is logged and left out."""
    for message in messages:
        try:
            table = decode(message.value or b"").table
        except (CorruptData, SchemaMismatch) as error:
            log.warning(
                "unreadable_message", partition=message.partition, offset=message.offset, error=str(error)
            )
        else:
            yield from _plain(table).to_pylist()


def _plain(table: pa.Table) -> pa.Table:
    """The same rows with times as text, in nanoseconds of UTC. As objects they would need pandas."""
    for index, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            text = pc.replace_substring_regex(table[field.name].cast(pa.string()), "Z$", "+00:00")
            table = table.set_column(index, field.name, text)
    return table
