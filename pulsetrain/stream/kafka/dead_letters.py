"""The topic of messages that cannot be read."""

from __future__ import annotations

import structlog
from kafka import KafkaProducer

from pulsetrain.stream.ingest_metrics import IngestMetrics
from pulsetrain.stream.kafka.client import KafkaConfig, client_options
from pulsetrain.stream.kafka.partition_buffer import Message

log = structlog.get_logger()

_MAX_MESSAGE_BYTES = 16 << 20


class DeadLetters:
    """Sends messages unchanged to the topic of dead letters. The reason and the origin are in headers.

    Connects at the first message.
    """

    def __init__(self, config: KafkaConfig, metrics: IngestMetrics) -> None:
        self._config, self._metrics = config, metrics
        self._producer: KafkaProducer | None = None

    def send(self, message: Message, reason: str) -> None:
        """Returns when the brokers have the message. Raises errors of the Kafka client."""
        self._metrics.refused.inc()
        origin = f"{message.topic}:{message.partition}:{message.offset}"
        log.warning("dead_letter", message=origin, reason=reason)
        if self._producer is None:
            self._producer = KafkaProducer(
                acks="all", max_request_size=_MAX_MESSAGE_BYTES, **client_options(self._config)
            )
        headers = [*(message.headers or []), ("reason", reason.encode()), ("origin", origin.encode())]
        sent = self._producer.send(
            self._config.dead_letters, key=message.key, value=message.value, headers=headers
        )
        sent.get(timeout=self._config.timeout_s)

    def close(self) -> None:
        """Disconnect."""
        if self._producer is not None:
            self._producer.close(timeout=2.0)
