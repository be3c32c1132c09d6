"""The topic of messages that cannot be read."""

from __future__ import annotations

from collections.abc import Sequence

import structlog
from kafka import KafkaProducer, errors

from pulsetrain.stream.ingest_metrics import IngestMetrics
from pulsetrain.stream.kafka.client import KafkaConfig, client_options, one_line
from pulsetrain.stream.kafka.partition_buffer import Message

log = structlog.get_logger()

_MAX_MESSAGE_BYTES = 16 << 20
_KEPT_BYTES = 64 << 10
"""of a message that is too large for the topic of dead letters"""
_TOO_LARGE = (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError)


class DeadLetters:
    """Sends messages unchanged to the topic of dead letters. The reason and the origin are in headers.

    Of a message that is too large for the topic its first 64 KiB are sent. The header `cut_from_bytes` says
    how long it was. Connects at the first message.
    """

    def __init__(self, config: KafkaConfig, metrics: IngestMetrics) -> None:
        self._config, self._metrics = config, metrics
        self._producer: KafkaProducer | None = None

    def send(self, message: Message, reason: str) -> None:
        """Returns when the brokers have the message. Raises errors of the Kafka client."""
        self._metrics.refused.inc()
        origin = f"{message.topic}:{message.partition}:{message.offset}"
        log.warning("dead_letter", message=origin, reason=reason)
        headers = [(name, held or b"") for name, held in message.headers or []]  # the client sends no null
        headers += [("reason", reason.encode()), ("origin", origin.encode())]
        value = message.value or b""
        try:
            self._produce(message.key, message.value, headers)
        except _TOO_LARGE as error:
            log.warning("dead_letter_cut", message=origin, error=one_line(error))
            self.close()  # it takes no more messages
            self._producer = None
            headers.append(("cut_from_bytes", str(len(value)).encode()))
            self._produce(message.key, value[:_KEPT_BYTES], headers)

    def _produce(self, key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes]]) -> None:
        if self._producer is None:
            self._producer = KafkaProducer(
                acks="all", max_request_size=_MAX_MESSAGE_BYTES, **client_options(self._config)
            )
        sent = self._producer.send(self._config.dead_letters, key=key, value=value, headers=headers)
        sent.get(timeout=self._config.timeout_s)

    def close(self) -> None:
        """Disconnect."""
        if self._producer is not None:
            self._producer.close(timeout=2.0)
