"""Kafka as a transport: one topic for each record, keyed by node, acknowledged by all replicas."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import google_crc32c
import structlog
from kafka import KafkaAdminClient, KafkaProducer, errors
from kafka.net import KafkaConnectionManager, NetworkSelector
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport
from kafka.record import default_records
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from pulsetrain.core.errors import (
    AuthError,
    CorruptData,
    PulsetrainError,
    SchemaMismatch,
    Unavailable,
    UsageError,
)
from pulsetrain.records.batch import as_arrow_ipc, identify
from pulsetrain.records.encoding import Identity
from pulsetrain.records.schema import RECORDS, SCHEMA_VERSION
from pulsetrain.stream.spool.queue import Entry
from pulsetrain.stream.spool.transport import Rejection

log = structlog.get_logger()

_client_log = logging.getLogger("kafka")
_client_log.propagate = False  # what it says of a failure is in the one line that we raise
_client_log.addHandler(logging.NullHandler())

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MAX_MESSAGE_BYTES = 8 << 20
_LOGIN_S = 10.0
_NO_ANSWER = (errors.KafkaConnectionError, errors.KafkaTimeoutError, errors.RequestTimedOutError)


def _crc32c(view: memoryview) -> int:
    """Checksum of a Kafka record batch; the client's own is plain Python, at 3 MB/s."""
    return int(google_crc32c.value(bytes(view)))


default_records.calc_crc32c = _crc32c

_Receive = Callable[[Any], tuple[bytes, Exception | None]]


def _not_losing_the_last_words(receive: _Receive) -> _Receive:
    """`receive` of a transport, which throws away what it read when it finds the connection's end behind it.

    A broker says why it refuses a login and hangs up in the same instant. Here the next read finds the end.
    """

    def received(transport: Any) -> tuple[bytes, Exception | None]:
        data, error = receive(transport)
        return data, None if data else error

    return received


for _transport in (KafkaTCPTransport, KafkaSSLTransport):
    _transport._sock_recv = _not_losing_the_last_words(_transport._sock_recv)


@dataclass(frozen=True, kw_only=True)
class KafkaConfig:
    """Table ``[kafka]``, environment ``PULSETRAIN_KAFKA_*``."""

    servers: str = "127.0.0.1:9092"
    """Brokers to begin with: host:port, comma-separated."""
    prefix: str = "pulsetrain."
    """What every topic's name begins with; the record's name follows."""
    compression: str = ""
    """Kafka's own compression (gzip, snappy, lz4, zstd); batches are already zstd inside."""
    security_protocol: str = "PLAINTEXT"
    """PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
    ssl_cafile: str = ""
    """Certificate authority for the brokers' certificates."""
    ssl_certfile: str = ""
    """This client's certificate, for mutual TLS."""
    ssl_keyfile: str = ""
    """Its key."""
    sasl_mechanism: str = ""
    """PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512."""
    sasl_username: str = ""
    """User name for SASL."""
    sasl_password: str = ""
    """Password for SASL. Give it in the environment rather than in a file."""
    timeout_s: float = 30.0
    """How long a broker may take to acknowledge."""

    def __post_init__(self) -> None:
        if self.security_protocol not in PROTOCOLS:
            allowed = ", ".join(PROTOCOLS)
            raise ValueError(f"security_protocol = {self.security_protocol!r}; allowed: {allowed}")
        for server in self.servers.split(","):
            host, _, port = server.strip().rpartition(":")
            if not host or not port.isdigit():
                raise ValueError(f"servers = {server!r}: not host:port")

    def topic(self, record: str) -> str:
        """The record's topic."""
        return f"{self.prefix}{record}"

    @property
    def dead_letters(self) -> str:
        """Topic of messages that could not be read, with the reason in a header."""
        return f"{self.prefix}dead-letter"


def record_of(topic: str, config: KafkaConfig) -> str:
    """The record that a topic carries."""
    return topic.removeprefix(config.prefix)


def client_options(config: KafkaConfig) -> dict[str, Any]:
    """Options that every client of the cluster takes."""
    options: dict[str, Any] = {
        "bootstrap_servers": [s.strip() for s in config.servers.split(",")],
        "security_protocol": config.security_protocol,
        "bootstrap_timeout_ms": int(min(10.0, config.timeout_s) * 1000),
        "reconnect_backoff_max_ms": 1_000,
    }
    given = {
        "ssl_cafile": config.ssl_cafile,
        "ssl_certfile": config.ssl_certfile,
        "ssl_keyfile": config.ssl_keyfile,
        "sasl_mechanism": config.sasl_mechanism,
        "sasl_plain_username": config.sasl_username,
        "sasl_plain_password": config.sasl_password,
    }
    return options | {k: v for k, v in given.items() if v}


class _Heard(logging.Handler):
    """What the client logged of a failure: only there does it tell why it got no connection, while it tries
    until its time is up."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.error: Exception | None = None

    def emit(self, record: logging.LogRecord) -> None:
        for arg in record.args or ():
            if isinstance(arg, Exception) and not isinstance(arg, errors.KafkaTimeoutError):
                self._hear(arg)

    def _hear(self, error: Exception) -> None:
        if isinstance(self.error, errors.SaslAuthenticationFailedError):
            return
        if self.error is not None and isinstance(error, errors.RequestTimedOutError):
            return  # the last attempt, cut short by the client's own deadline: it says less than those before
        self.error = error


@contextlib.contextmanager
def one_line_errors(config: KafkaConfig) -> Iterator[None]:
    """The client's errors as ours: `AuthError`, `UsageError` for a permission, `Unavailable` for the rest."""
    heard = _Heard()
    _client_log.addHandler(heard)
    try:
        yield
    except (errors.KafkaTimeoutError, errors.RequestTimedOutError) as error:
        raise _ours(config, heard.error or error) from error
    except (errors.KafkaError, OSError) as error:
        raise _ours(config, error) from error
    finally:
        _client_log.removeHandler(heard)


def _ours(config: KafkaConfig, error: Exception) -> PulsetrainError:
    if isinstance(error, errors.SaslAuthenticationFailedError):
        return AuthError(f"Kafka {config.servers} refuses user {config.sasl_username!r}: {_reason(error)}")
    if isinstance(error, errors.AuthorizationError):
        return UsageError(f"Kafka {config.servers} gives no permission: {_reason(error)}")
    if isinstance(error, (errors.KafkaConfigurationError, errors.UnsupportedSaslMechanismError)):
        return UsageError(f"Kafka {config.servers}: {_reason(error)}")
    return Unavailable(f"Kafka {config.servers} does not answer: {_reason(error)}")


def _reason(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__} {error}".split())[:200]


def headers_of(said: Identity) -> list[tuple[str, bytes]]:
    """What a message says of itself without being opened: schema version, source and row range."""
    return [
        ("schema", str(said.version).encode()),
        ("source", said.source.encode()),
        ("first_row", str(said.first_row).encode()),
        ("rows", str(said.rows).encode()),
    ]


class KafkaTransport:
    """Produces batches, idempotent and acknowledged by all replicas. See `transport.Transport`."""

    def __init__(self, config: KafkaConfig) -> None:
        self._config = config
        self._producer: Any = None

    def send(self, entries: Sequence[Entry]) -> list[Rejection]:
        """Deliver all of `entries`; returns those that no broker will ever take."""
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
        return [(entry, self._refusal(future)) for entry, future in sent]

    def _open(self) -> Any:
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

    def _produce(self, producer: Any, entry: Entry) -> Any:
        """The future of one message, or why it will never be sent."""
        try:
            data = as_arrow_ipc(entry.data)
            said = identify(data)
        except (CorruptData, SchemaMismatch) as error:
            return str(error)
        if said.record not in RECORDS or said.version > SCHEMA_VERSION:
            return f"unknown record {said.record!r} of schema version {said.version}"
        try:
            return producer.send(
                self._config.topic(said.record),
                key=said.source.partition("/")[0].encode(),
                value=data,
                headers=headers_of(said),
            )
        except errors.MessageSizeTooLargeError as error:
            return f"message of {len(data)} bytes: {error}"

    def _refusal(self, future: Any) -> str:
        """Why the broker will never take the message; "" where it did. Raises where it may later."""
        if isinstance(future, str):
            return future
        try:
            future.get(timeout=self._config.timeout_s)
        except (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError) as error:
            return _reason(error)
        return ""


def create_topics(config: KafkaConfig) -> None:
    """Make the topics that are missing, with the brokers' own defaults; who may not make them uses those
    that are there. A group that joins before its topics exist may wait long for them."""
    patiently = Retrying(
        retry=retry_if_exception_type(
            errors.RequestTimedOutError
        ),  # a busy broker; the client gives up at once
        stop=stop_after_delay(config.timeout_s),
        wait=wait_fixed(0.2),
        reraise=True,
    )
    with one_line_errors(config):
        patiently(_create_missing, config)


def _create_missing(config: KafkaConfig) -> None:
    with contextlib.closing(KafkaAdminClient(**client_options(config))) as admin:
        missing = {config.topic(record) for record in RECORDS} | {config.dead_letters}
        missing.difference_update(admin.list_topics())
        if missing:
            answer = admin.create_topics(sorted(missing), raise_errors=False, timeout_ms=10_000)
            made = [topic["name"] for topic in answer["topics"] if not topic["error_code"]]
            if made:
                log.info("topics_created", topics=made)


def refuse_credentials(config: KafkaConfig) -> None:
    """Raise `AuthError` or `UsageError` where the brokers refuse this client as it is configured.

    Each broker is asked once, until one answers. Where none does, ten seconds at most, there is nothing to
    refuse: what is sent waits for them.
    """
    net = NetworkSelector()
    manager = KafkaConnectionManager(net, **client_options(config))
    try:
        with contextlib.suppress(Unavailable), one_line_errors(config):
            net.run(_log_in, manager, min(_LOGIN_S, config.timeout_s))
    finally:
        manager.close()
        net.close()


async def _log_in(manager: Any, within_s: float) -> None:
    brokers = manager.cluster.bootstrap_brokers()
    for broker in brokers:
        with contextlib.suppress(*_NO_ANSWER):
            await manager.get_connection(broker.node_id, timeout_ms=1000 * within_s / len(brokers))
            return
