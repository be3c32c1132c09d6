"""The process that takes records from Kafka: its configuration."""

import contextlib
import socket

import pytest

from pulsetrain.core.errors import ConfigError, UsageError
from pulsetrain.hub.ingest import kafka_config, run_ingest


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
