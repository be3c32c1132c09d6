"""Kafka as a transport: one topic for each record, keyed by node, acknowledged by all replicas."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import Protocol

from kafka import KafkaProducer, errors

from pulsetrain.core.errors import CorruptData, PulsetrainError, SchemaMismatch
from pulsetrain.records.batch import as_arrow_ipc, decode, encode, identify
from pulsetrain.records.encoding import Identity
from pulsetrain.records.schema import RECORDS
from pulsetrain.stream.kafka.client import KafkaConfig, client_options, one_line, one_line_errors
from pulsetrain.stream.spool.queue import Entry
from pulsetrain.stream.spool.transport import Rejection

MAX_MESSAGE_BYTES = 8 << 20
TOO_LARGE = (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError)


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
    """Produces batches, idempotent and acknowledged by all replicas. See `transport.Transport`.

    A batch that the brokers find too large is sent as several messages. What size they refuse is remembered,
    so that later batches are divided before they are sent.
    """

    def __init__(self, config: KafkaConfig) -> None:
        self._config = config
        self._producer: KafkaProducer | None = None
        self._refused_bytes = sys.maxsize

    def send(self, entries: Sequence[Entry]) -> list[Rejection]:
        """Deliver all of `entries`. Returns those that no broker will ever take, or not all rows of them."""
        try:
            with one_line_errors(self._config):
                return self._deliver(entries)
        except PulsetrainError:
            self.close()  # an idempotent producer that has failed takes no more messages
            raise

    def close(self) -> None:
        """See `Transport`."""
        producer, self._producer = self._producer, None
        if producer is not None:
            with contextlib.suppress(errors.KafkaError, OSError):
                producer.close(timeout=2.0)

    def _deliver(self, entries: Sequence[Entry]) -> list[Rejection]:
        rejected: dict[int, Rejection] = {}
        sent: list[tuple[Entry, bytes, Delivery | errors.KafkaError]] = []
        for entry in entries:
            try:
                sent += [(entry, data, self._produce(data)) for data in self._messages(entry.data)]
            except (CorruptData, SchemaMismatch) as error:
                rejected[id(entry)] = Rejection(entry=entry, why=str(error))
        self._open().flush(timeout=self._config.timeout_s)
        results = [(entry, data, self._failure(delivery)) for entry, data, delivery in sent]
        failed = [(entry, data, error) for entry, data, error in results if error is not None]
        if failed and not any(isinstance(error, TOO_LARGE) for _, _, error in failed):
            raise failed[0][2]
        if failed:
            self.close()  # one message that is too large ends the producer, and fails those behind it
        for entry, data, _ in failed:
            why = self._send_alone(data)
            if why:
                rejected.setdefault(id(entry), Rejection(entry=entry, why=why))
        return list(rejected.values())

    def _send_alone(self, data: bytes) -> str:
        """Send a message, in parts where it is too large. Why no broker will take a part, "" for none."""
        error = self._failure(self._produce(data))
        if error is None:
            return ""
        if not isinstance(error, TOO_LARGE):
            raise error
        self.close()
        self._refused_bytes = min(self._refused_bytes, len(data))
        parts = _halves(data)
        whys = [self._send_alone(part) for part in parts]
        return next(filter(None, whys), "") if parts else f"message of {len(data)} bytes: {one_line(error)}"

    def _messages(self, data: bytes) -> list[bytes]:
        """The messages of a batch, below the size that brokers have refused where rows can be divided.

        Raises `CorruptData` or `SchemaMismatch` for one that no reader will ever take.
        """
        data = as_arrow_ipc(data)
        identity = identify(data)
        if identity.record not in RECORDS:
            raise SchemaMismatch(f"unknown record {identity.record!r} of schema version {identity.version}")
        return self._divided(data)

    def _divided(self, data: bytes) -> list[bytes]:
        parts = _halves(data) if len(data) >= self._refused_bytes else []
        return [piece for part in parts for piece in self._divided(part)] or [data]

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

    def _produce(self, data: bytes) -> Delivery | errors.KafkaError:
        """The message on its way, or why the client did not take it. Raises where it may later."""
        identity = identify(data)
        try:
            delivery: Delivery = self._open().send(
                self._config.topic(identity.record),
                key=identity.source.partition("/")[0].encode(),
                value=data,
                headers=headers_of(identity),
            )
        except errors.RetriableError:
            raise
        except errors.KafkaError as error:
            return error
        return delivery

    def _failure(self, delivery: Delivery | errors.KafkaError) -> errors.KafkaError | None:
        """Why the brokers have not taken the message. None: they have."""
        if isinstance(delivery, errors.KafkaError):
            return delivery
        try:
            delivery.get(timeout=self._config.timeout_s)
        except errors.KafkaError as error:
            return error
        return None


def _halves(data: bytes) -> list[bytes]:
    """A batch as two, each with its own identity. Nothing where it cannot be divided."""
    try:
        batch = decode(data)
    except (CorruptData, SchemaMismatch):
        return []
    middle = batch.rows // 2
    if not middle:
        return []
    cuts = ((0, middle), (middle, batch.rows - middle))
    return [
        encode(batch.record, batch.table.slice(at, rows), source=batch.source, first_row=batch.first_row + at)
        for at, rows in cuts
    ]
