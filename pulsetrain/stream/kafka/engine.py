"""SQL for ClickHouse's own Kafka engine, which reads the topics without `pulsetrain ingest`.

The statements are derived from the schema, for an administrator to run. This way stores a message at least
once. It knows neither row ranges nor the quarantine. See docs/kafka-engine.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from pulsetrain.records.ddl import literal
from pulsetrain.records.schema import RECORDS, Record
from pulsetrain.stream.kafka.client import KafkaConfig


@dataclass(frozen=True, kw_only=True)
class KafkaEngine:
    """How the engine's tables consume."""

    group: str = "clickhouse"
    """Consumer group. It must not be that of `pulsetrain ingest`, or they would share the partitions."""
    consumers: int = 1
    """Consumers of each table, at most as many as the topic has partitions."""
    flush_ms: int = 500
    """Longest time rows wait for their insert."""

    def __post_init__(self) -> None:
        if self.consumers < 1:
            raise ValueError(f"consumers = {self.consumers}: allowed 1 or more")


def statements(config: KafkaConfig, engine: KafkaEngine | None = None) -> list[str]:
    """Statements that create, for every record, a queue over its topic and a view that feeds its table.

    The tables of the records must exist (`Store.migrate`). Running them again changes nothing.
    """
    settings = engine or KafkaEngine()
    return [sql for record in RECORDS.values() for sql in (queue(record, config, settings), feed(record))]


def queue(record: Record, config: KafkaConfig, engine: KafkaEngine) -> str:
    """The CREATE TABLE of the engine's queue over a record's topic."""
    # a queue keeps nothing, so that its columns need no codec
    columns = ",\n  ".join(f"`{f.name}` {f.kind.clickhouse}" for f in record.fields)
    settings = {
        "kafka_broker_list": config.servers,
        "kafka_topic_list": config.topic(record.name),
        "kafka_group_name": engine.group,
        "kafka_format": "ArrowStream",
        "kafka_num_consumers": engine.consumers,
        "kafka_flush_interval_ms": engine.flush_ms,
        "kafka_handle_error_mode": "stream",
        **_security(config),
    }
    listed = ",\n  ".join(f"{name} = {literal(value)}" for name, value in settings.items())
    return (
        f"CREATE TABLE IF NOT EXISTS `{record.name}_queue` (\n  {columns}\n) ENGINE = Kafka\n"
        f"SETTINGS\n  {listed}"
    )


def feed(record: Record) -> str:
    """The materialised view that moves a queue's rows into the record's table."""
    names = ", ".join(f"`{f.name}`" for f in record.fields)
    return (
        f"CREATE MATERIALIZED VIEW IF NOT EXISTS `{record.name}_feed` TO `{record.name}` AS\n"
        f"SELECT {names} FROM `{record.name}_queue` WHERE length(_error) = 0"
    )


def drop(record: Record) -> list[str]:
    """Statements that drop both. Stored rows stay."""
    return [f"DROP VIEW IF EXISTS `{record.name}_feed`", f"DROP TABLE IF EXISTS `{record.name}_queue`"]


def _security(config: KafkaConfig) -> dict[str, str]:
    """The brokers' security. Certificates are named in the server's own configuration."""
    given = {
        "kafka_security_protocol": config.security_protocol.lower(),
        "kafka_sasl_mechanism": config.sasl_mechanism,
        "kafka_sasl_username": config.sasl_username,
        "kafka_sasl_password": config.sasl_password,
    }
    return {k: v for k, v in given.items() if v and v != "plaintext"}
