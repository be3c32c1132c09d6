"""The process that takes records from Kafka: its configuration."""

import contextlib
import socket
import urllib.request

import pytest

from pulsetrain.core.errors import ConfigError, UsageError
from pulsetrain.hub.certificate import CertificateFiles
from pulsetrain.hub.ingest import kafka_config, run_ingest, serve_metrics
from pulsetrain.protocol import tls
from pulsetrain.stream.ingest_metrics import IngestMetrics
from tests.protocol.tls_server import issued


def test_flags_win_over_the_file(tmp_path, monkeypatch):
    monkeypatch.delenv("PULSETRAIN_KAFKA_SERVERS", raising=False)
    file = tmp_path / "p.toml"
    file.write_text("[kafka]\nservers = 'a:1'\n")
    assert kafka_config(file, {"servers": None}).servers == "a:1"
    assert kafka_config(file, {"servers": "b:2"}).servers == "b:2"
    with pytest.raises(ConfigError, match="nosuch"):
        kafka_config(tmp_path / "nosuch.toml", {})


def test_a_metrics_port_in_use_is_one_line():
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"--metrics-port {port}"):
            run_ingest("chdb://unused", None, {}, {}, port, print)


def test_metrics_are_served_over_tls_with_a_certificate(tmp_path):
    files = CertificateFiles.of(str(issued(tmp_path).certificate))
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    server = serve_metrics(IngestMetrics(), "127.0.0.1", port, files)
    context = tls.client_context(files.ca)
    with urllib.request.urlopen(f"https://127.0.0.1:{port}/metrics", context=context, timeout=10) as answer:
        assert b"pulsetrain_" in answer.read()
    server.shutdown()
    server.server_close()
