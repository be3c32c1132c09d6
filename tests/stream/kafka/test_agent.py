"""An agent that is given brokers sends its records there; its commands still come from the hub."""

import os
import subprocess
import sys
import uuid

import pytest
from click.testing import CliRunner
from kafka import KafkaConsumer

from pulsetrain.cli import pulsetrain
from pulsetrain.records.batch import decode
from pulsetrain.records.schema import RECORDS
from tests.agent.real_processes import TRAIN

pytestmark = [pytest.mark.kafka, pytest.mark.integration]


def rows(servers, prefix, record, wanted):
    """Rows of a topic, at least `wanted` of them or what came until none came for forty seconds."""
    consumer = KafkaConsumer(
        f"{prefix}{record}",
        bootstrap_servers=servers,
        auto_offset_reset="earliest",
        consumer_timeout_ms=40_000,
    )
    found = []
    try:
        for message in consumer:
            found += decode(message.value).table.to_pylist()
            if len(found) >= wanted:
                break
    finally:
        consumer.close()
    return found


@pytest.mark.timeout(300)
def test_what_a_job_records_arrives_in_kafka(broker, tmp_path):
    prefix = f"a{uuid.uuid4().hex[:8]}."
    (tmp_path / "train.py").write_text(TRAIN)
    env = os.environ | {"PULSETRAIN_DATA": str(tmp_path / "data"), "PULSETRAIN_KAFKA_PREFIX": prefix}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pulsetrain.cli", "run", "--standalone", "--nproc-per-node", "2"),
            *("--kafka", broker.servers, "--job", "over-kafka", str(tmp_path / "train.py"), "10"),
        ],
        env=env,
        capture_output=True,
        text=True,
        timeout=160,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    steps = rows(broker.servers, prefix, "steps", 20)
    assert sorted((r["rank"], r["step"]) for r in steps) == [(r, s) for r in (0, 1) for s in range(10)]
    assert {r["job"] for r in steps} == {"over-kafka"}
    assert all(
        rows(broker.servers, prefix, record, 1) for record in RECORDS if record in ("spans", "metrics")
    )


def test_a_broker_that_is_no_address_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PULSETRAIN_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("PULSETRAIN_HUB", raising=False)
    script = tmp_path / "train.py"
    script.write_text("")
    words = ["agent", "--hub", "http://127.0.0.1:9", "--token", "t", "--kafka", "nohost", str(script)]
    result = CliRunner().invoke(pulsetrain, words, standalone_mode=False)
    assert "servers = 'nohost': not host:port" in str(result.exception)
