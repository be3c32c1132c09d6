"""`pulsetrain ingest` as a process: configuration, signals, metrics."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from wsgiref.simple_server import WSGIServer

from prometheus_client import start_http_server

from pulsetrain.core.clock import SystemClock
from pulsetrain.core.config import load, read_toml
from pulsetrain.core.errors import UsageError
from pulsetrain.core.json import JsonObject
from pulsetrain.hub.certificate import CertificateFiles, ServerCertificate
from pulsetrain.records.ddl import Engine
from pulsetrain.stream.ingest_metrics import IngestMetrics
from pulsetrain.stream.kafka.catch_up import CatchUp
from pulsetrain.stream.kafka.client import KafkaConfig
from pulsetrain.stream.kafka.group_member import GroupMember
from pulsetrain.stream.kafka.ingest_config import IngestConfig
from pulsetrain.stream.store.clickhouse import open_store


def run_ingest(
    url: str,
    path: Path | None,
    kafka: Mapping[str, object],
    ingest: Mapping[str, object],
    metrics_port: int | None,
    say: Callable[[str], None],
) -> None:
    """Run one member of the consumer group until SIGINT or SIGTERM.

    Raises `UsageError` for bad configuration, a store or broker that refuses, or a port in use. Raises
    `Unavailable` where a broker or the store does not answer at the start. Later it waits for them.
    """
    config = load(IngestConfig, "ingest", file=_file(path), environ=os.environ, flags=ingest)
    engine = load(Engine, "store", file=_file(path), environ=os.environ)
    brokers = kafka_config(path, kafka)
    metrics = IngestMetrics()
    if metrics_port is not None:
        files = CertificateFiles.of(config.tls_certificate, config.tls_key)
        serve_metrics(metrics, config.metrics_host, metrics_port, files)
    with contextlib.closing(open_store(url, engine=engine)) as store, CatchUp(SystemClock()) as catch_up:
        store.migrate()
        member = GroupMember(brokers, store, SystemClock(), config, metrics, catch_up.look)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: member.stop())
        say(f"ingest     {brokers.servers} -> {url.rpartition('@')[2]} as {config.group}")
        member.run()


def kafka_config(path: Path | None, flags: Mapping[str, object]) -> KafkaConfig:
    """The ``[kafka]`` table, environment and flags. Raises `ConfigError`."""
    return load(KafkaConfig, "kafka", file=_file(path), environ=os.environ, flags=flags)


def _file(path: Path | None) -> JsonObject:
    return read_toml(path) if path else {}


def serve_metrics(
    metrics: IngestMetrics, host: str, port: int, files: CertificateFiles | None = None
) -> WSGIServer:
    """Serve metrics on a thread, over TLS where `files` are given. Raises `UsageError`."""
    certificate = key = None
    if files is not None:
        ServerCertificate(files)  # what cannot be used is one line
        certificate, key = str(files.certificate), str(files.key)
    try:
        server, _ = start_http_server(
            port, addr=host, registry=metrics.registry, certfile=certificate, keyfile=key
        )
    except OSError as error:
        raise UsageError(f"--metrics-port {port}: {error.strerror}") from error
    return server
