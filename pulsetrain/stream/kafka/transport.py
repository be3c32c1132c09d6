"""Kafka as a transport: one topic for each record, keyed by node, acknowledged by all replicas."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Protocol

from kafka import KafkaProducer, errors

from pulsetrain.core.errors import CorruptData, PulsetrainError, SchemaMismatch
from pulsetrain.records.batch import as_arrow_ipc, identify
from pulsetrain.records.encoding import Identity
from pulsetrain.records.schema import RECORDS
from pulsetrain.stream.kafka.client import KafkaConfig, client_options, one_line, one_line_errors
from pulsetrain.stream.spool.queue import Entry
from pulsetrain.stream.spool.transport import Rejection

MAX_MESSAGE_BYTES = 8 << 20


class Delivery(Protocol):
    """A message on its way, as the client's producer returns it."""

    def get(self, timeout: float) -> object:
        """Wait for the brokers. Raises errors of the client."""
        ...


def headers_of(identity: Identity) -> list[tuple[str, bytes]]:
    """What a message says of itself without being opened: schema version, source and row range."""
    return [
        ("schema", str(identity.version).encode()),
        ("source", identity.source.encode()),
        ("first_row", str(identity.first_row).encode()),
        ("rows", str(identity.rows).encode()),
    ]


class KafkaTransport:
    """Produces batches, idempotent and acknowledged by all replicas. See `transport.Transport`."""

    def __init__(self, config: KafkaConfig) -> None:
        self._config = config
        self._producer: KafkaProducer | None = None

    def send(self, entries: Sequence[Entry]) -> list[Rejection]:
        """Deliver all of `entries`. Returns those that no broker will ever take."""
        try:
            with one_line_errors(self._config):
                outcomes = self._deliver(entries)
        except PulsetrainError:
            self.close()  # an idempotent producer that has failed takes no more messages
            raise
        return [Rejection(entry=entry, why=why) for entry, why in outcomes if why]

    def close(self) -> None:
        """See `Transport`."""
        producer, self._producer = self._producer, None
        if producer is not None:
            with contextlib.suppress(errors.KafkaError, OSError):
                producer.close(timeout=2.0)

    def _deliver(self, entries: Sequence[Entry]) -> list[tuple[Entry, str]]:
        """Each entry and why no broker will ever take it; "" where it was taken."""
        producer = self._open()
        sent = [(entry, self._produce(producer, entry)) for entry in entries]
        producer.flush(timeout=self._config.timeout_s)
        return [(entry, self._refusal(delivery)) for entry, delivery in sent]

    def _open(self) -> KafkaProducer:
        if self._producer is None:
            self._producer = KafkaProducer(
                acks="all",
                enable_idempotence=True,
                compression_type=self._config.compression or None,
                max_request_size=MAX_MESSAGE_BYTES,
                batch_size=1 << 20,
                linger_ms=5,
                delivery_timeout_ms=int(self._config.timeout_s * 1000),
                request_timeout_ms=int(self._config.timeout_s * 500),
                max_block_ms=int(self._config.timeout_s * 1000),
                **client_options(self._config),
            )
        return self._producer

    def _produce(self, producer: KafkaProducer, entry: Entry) -> Delivery | str:
        """The message on its way, or why it will never be sent."""
        try:
            data = as_arrow_ipc(entry.data)
            identity = identify(data)
        except (CorruptData, SchemaMismatch) as error:
            return str(error)
        if identity.record not in RECORDS:
            return f"unknown record {identity.record!r} of schema version {identity.version}"
        try:
            delivery: Delivery = producer.send(
                self._config.topic(identity.record),
                key=identity.source.partition("/")[0].encode(),
                value=data,
                headers=headers_of(identity),
            )
        except errors.MessageSizeTooLargeError as error:
            return f"message of {len(data)} bytes: {error}"
        return delivery

    def _refusal(self, delivery: Delivery | str) -> str:
        """Why the brokers will never take the message; "" where they did. Raises where they may later."""
        if isinstance(delivery, str):
            return delivery
        try:
            delivery.get(timeout=self._config.timeout_s)
        except (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError) as error:
            return one_line(error)
        return ""
