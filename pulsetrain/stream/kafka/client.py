"""What every client of Kafka shares: configuration, errors in one line, topics, and the check of a login.

Importing this module changes kafka-python (3.0.12) in two places: a faster checksum, and a transport that
keeps what it read before the connection ended.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import google_crc32c
import structlog
from kafka import KafkaAdminClient, errors
from kafka.net import KafkaConnectionManager, NetworkSelector
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport
from kafka.record import default_records
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from pulsetrain.core.errors import AuthError, PulsetrainError, Unavailable, UsageError
from pulsetrain.core.json import JsonObject
from pulsetrain.records.schema import RECORDS

log = structlog.get_logger()

_client_log = logging.getLogger("kafka")
_client_log.propagate = False  # the one line that we raise holds what it logs of a failure
_client_log.addHandler(logging.NullHandler())

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_LOGIN_S = 10.0
_NO_ANSWER = (errors.KafkaConnectionError, errors.KafkaTimeoutError, errors.RequestTimedOutError)


def _crc32c(view: memoryview) -> int:
    """Checksum of a Kafka record batch. The client's own is plain Python, at 3 MB/s."""
    return int(google_crc32c.value(bytes(view)))


default_records.calc_crc32c = _crc32c

_Receive = Callable[[object], tuple[bytes, Exception | None]]


def _keep_last_bytes(receive: _Receive) -> _Receive:
    """`receive` of a transport that does not lose bytes which arrived together with the connection's end.

    A broker says why it refuses a login and closes the connection in the same instant. kafka-python throws
    away what it read when it finds the end behind it. Here the next read finds the end.
    """

    def received(transport: object) -> tuple[bytes, Exception | None]:
        data, error = receive(transport)
        return data, None if data else error

    return received


for _transport in (KafkaTCPTransport, KafkaSSLTransport):
    _transport._sock_recv = _keep_last_bytes(_transport._sock_recv)


@dataclass(frozen=True, kw_only=True)
class KafkaConfig:
    """Table ``[kafka]``, environment ``PULSETRAIN_KAFKA_*``."""

    servers: str = "127.0.0.1:9092"
    """Brokers to begin with: host:port, comma-separated."""
    prefix: str = "pulsetrain."
    """What every topic's name begins with. The record's name follows."""
    compression: str = ""
    """Kafka's own compression (gzip, snappy, lz4, zstd). Batches are already zstd inside."""
    security_protocol: str = "PLAINTEXT"
    """PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
    ssl_cafile: str = ""
    """Certificate authority for the brokers' certificates."""
    ssl_certfile: str = ""
    """This client's certificate, for mutual TLS."""
    ssl_keyfile: str = ""
    """Key of that certificate."""
    sasl_mechanism: str = ""
    """PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512."""
    sasl_username: str = ""
    """User of the brokers' login."""
    sasl_password: str = ""
    """Password of that login. Give it in the environment rather than in a file."""
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

    def record_of(self, topic: str) -> str:
        """The record that a topic carries."""
        return topic.removeprefix(self.prefix)

    @property
    def dead_letters(self) -> str:
        """Topic of messages that could not be read, with the reason in a header."""
        return f"{self.prefix}dead-letter"


def client_options(config: KafkaConfig) -> JsonObject:
    """Options that every client of the cluster takes."""
    options: JsonObject = {
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


class _LoggedError(logging.Handler):
    """The error that the client logged while it tried to connect.

    The client raises only that its time is up. Why it got no connection is in its log alone.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.error: Exception | None = None

    def emit(self, record: logging.LogRecord) -> None:
        for arg in record.args or ():
            if isinstance(arg, Exception) and not isinstance(arg, errors.KafkaTimeoutError):
                self._keep(arg)

    def _keep(self, error: Exception) -> None:
        if isinstance(self.error, errors.SaslAuthenticationFailedError):
            return
        if self.error is not None and isinstance(error, errors.RequestTimedOutError):
            return  # the last attempt, cut short by the client's own deadline, says less than those before
        self.error = error


@contextlib.contextmanager
def one_line_errors(config: KafkaConfig) -> Iterator[None]:
    """The client's errors as ours: `AuthError`, `UsageError` for a permission, `Unavailable` for the rest."""
    logged = _LoggedError()
    _client_log.addHandler(logged)
    try:
        yield
    except (errors.KafkaTimeoutError, errors.RequestTimedOutError) as error:
        raise _translated(config, logged.error or error) from error
    except (errors.KafkaError, OSError) as error:
        raise _translated(config, error) from error
    finally:
        _client_log.removeHandler(logged)


def _translated(config: KafkaConfig, error: Exception) -> PulsetrainError:
    if isinstance(error, errors.SaslAuthenticationFailedError):
        return AuthError(f"Kafka {config.servers} refuses user {config.sasl_username!r}: {one_line(error)}")
    if isinstance(error, errors.AuthorizationError):
        return UsageError(f"Kafka {config.servers} gives no permission: {one_line(error)}")
    if isinstance(error, (errors.KafkaConfigurationError, errors.UnsupportedSaslMechanismError)):
        return UsageError(f"Kafka {config.servers}: {one_line(error)}")
    return Unavailable(f"Kafka {config.servers} does not answer: {one_line(error)}")


def one_line(error: BaseException) -> str:
    """The type and the text of an error, 200 characters at most."""
    name, text = type(error).__name__, str(error)
    return " ".join((text if name in text else f"{name} {text}").split())[:200]


def create_topics(config: KafkaConfig) -> None:
    """Create the topics that are missing, with the brokers' own defaults.

    A client without the permission to create them uses those that exist. A group that joins before its topics
    exist may wait long for them.
    """
    busy = retry_if_exception_type(errors.RequestTimedOutError)  # the client itself gives up at once
    retrying = Retrying(
        retry=busy, stop=stop_after_delay(config.timeout_s), wait=wait_fixed(0.2), reraise=True
    )
    with one_line_errors(config):
        retrying(_create_missing, config)


def _create_missing(config: KafkaConfig) -> None:
    with contextlib.closing(KafkaAdminClient(**client_options(config))) as admin:
        missing = {config.topic(record) for record in RECORDS} | {config.dead_letters}
        missing.difference_update(admin.list_topics())
        if missing:
            response = admin.create_topics(sorted(missing), raise_errors=False, timeout_ms=10_000)
            created = [topic["name"] for topic in response["topics"] if not topic["error_code"]]
            if created:
                log.info("topics_created", topics=created)


def refuse_credentials(config: KafkaConfig) -> None:
    """Raise `AuthError` or `UsageError` where the brokers refuse this client as it is configured.

    Each broker is asked once, until one answers. Where none answers, ten seconds at most, nothing is raised:
    what is sent waits for the brokers.
    """
    net = NetworkSelector()
    manager = KafkaConnectionManager(net, **client_options(config))
    try:
        with contextlib.suppress(Unavailable), one_line_errors(config):
            net.run(_log_in, manager, min(_LOGIN_S, config.timeout_s))
    finally:
        manager.close()
        net.close()


async def _log_in(manager: KafkaConnectionManager, within_s: float) -> None:
    brokers = manager.cluster.bootstrap_brokers()
    for broker in brokers:
        with contextlib.suppress(*_NO_ANSWER):
            await manager.get_connection(broker.node_id, timeout_ms=1000 * within_s / len(brokers))
            return
