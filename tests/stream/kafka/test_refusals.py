"""What cannot work is refused with one clear line, and nothing is lost by it."""

import os
import subprocess
import sys
import time
import uuid

import pytest
from kafka import KafkaAdminClient
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourceType,
)
from kafka.net import KafkaTCPTransport

from pulsetrain.core.errors import AuthError, UsageError
from pulsetrain.records.batch import decode
from pulsetrain.stream.kafka.client import KafkaConfig, create_topics, refuse_credentials
from pulsetrain.stream.kafka.transport import KafkaTransport
from pulsetrain.stream.spool.queue import Spool
from pulsetrain.stream.spool.shipper import Shipper, ShipperConfig
from tests.agent.real_processes import TRAIN
from tests.stream.kafka.conftest import PASSWORDS
from tests.stream.rows import columns

pytestmark = [pytest.mark.kafka, pytest.mark.integration]

NOWHERE = "127.0.0.1:9"


def login(broker, user, password=None):
    return KafkaConfig(
        servers=broker.sasl_servers,
        prefix=f"r{uuid.uuid4().hex[:8]}.",
        timeout_s=20,  # for one answer, also of a busy machine
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_username=user,
        sasl_password=password or PASSWORDS[user],
    )


def environ(config, folder):
    names = ("servers", "prefix", "security_protocol", "sasl_mechanism", "sasl_username", "sasl_password")
    given = {f"PULSETRAIN_KAFKA_{name.upper()}": getattr(config, name) for name in names}
    given["PULSETRAIN_KAFKA_TIMEOUT_S"] = str(config.timeout_s)
    return os.environ | {"PULSETRAIN_DATA": str(folder / "data")} | given


def command(*words, env):
    return subprocess.run(
        [sys.executable, "-m", "pulsetrain.cli", *map(str, words)],
        env=env,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def ingest(config, folder, store=None):
    words = ("ingest", "--store", store or f"chdb://{folder / 'store'}", "--group", config.prefix)
    return command(*words, env=environ(config, folder))


def run(config, folder, steps=3):
    (folder / "train.py").write_text(TRAIN)
    words = ("run", "--standalone", "--nproc-per-node", "1", "--job", "refused", folder / "train.py", steps)
    return command(*words, env=environ(config, folder))


def grant(broker, user, config):
    """Let `user` write to the topics of `config`."""
    pattern = ResourcePattern(ResourceType.TOPIC, config.prefix, ACLResourcePatternType.PREFIXED)
    rule = ACL(f"User:{user}", "*", ACLOperation.WRITE, ACLPermissionType.ALLOW, pattern)
    admin = KafkaAdminClient(bootstrap_servers=broker.servers)
    try:
        admin.create_acls([rule])
    finally:
        admin.close()


def only_line(done):
    """What the command tells its user, which must be one line; its log beside it is JSON."""
    lines = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert len(lines) == 1, done.stderr
    return lines[0]


def test_ingest_names_a_broker_that_does_not_answer(tmp_path):
    done = ingest(KafkaConfig(servers=NOWHERE, timeout_s=2), tmp_path)
    assert done.returncode == 1
    assert only_line(done).startswith(f"pulsetrain: Kafka {NOWHERE} does not answer")


def test_ingest_refuses_a_wrong_password(broker, tmp_path):
    done = ingest(login(broker, "alice", "wrong"), tmp_path)
    assert done.returncode == 2
    assert only_line(done).startswith(f"pulsetrain: Kafka {broker.sasl_servers} refuses user 'alice'")


def test_a_client_too_busy_to_read_at_once_hears_that_its_login_is_refused(broker, monkeypatch):
    """The broker's answer and the end of the connection are both there when it looks; one look must do."""
    read = KafkaTCPTransport._sock_recv

    def late(transport):
        time.sleep(0.3)
        return read(transport)

    monkeypatch.setattr(KafkaTCPTransport, "_sock_recv", late)
    with pytest.raises(AuthError, match="refuses user 'alice'"):
        refuse_credentials(login(broker, "alice", "wrong"))


def test_brokers_that_are_away_are_nothing_to_refuse():
    began = time.monotonic()
    refuse_credentials(KafkaConfig(servers=f"{NOWHERE},{NOWHERE}", timeout_s=50))
    assert time.monotonic() - began < 10  # it does not wait for them


def test_an_agent_refuses_a_wrong_password_before_it_starts_a_rank(broker, tmp_path):
    done = run(login(broker, "alice", "wrong"), tmp_path)
    assert done.returncode == 2
    *before, last = done.stderr.splitlines()
    assert last.startswith(f"pulsetrain: Kafka {broker.sasl_servers} refuses user 'alice'")
    assert all(line.startswith(("pulsetrain: dashboard", "pulsetrain: data")) for line in before)
    assert done.stdout == ""


def test_ingest_names_the_permission_it_lacks(broker, tmp_path):
    config = login(broker, "bob")
    create_topics(KafkaConfig(servers=broker.servers, prefix=config.prefix))
    done = ingest(config, tmp_path)
    assert done.returncode == 2
    assert only_line(done).startswith(f"pulsetrain: Kafka {broker.sasl_servers} gives no permission")


def test_ingest_names_a_folder_that_it_cannot_write(broker, tmp_path):
    (tmp_path / "file").write_text("")
    done = ingest(KafkaConfig(servers=broker.servers), tmp_path, f"chdb://{tmp_path}/file/store")
    assert done.returncode == 2
    assert f"{tmp_path}/file/store" in only_line(done)


def test_a_topic_without_permission_keeps_its_rows_spooled_until_it_is_granted(broker, tmp_path):
    config = login(broker, "alice")
    create_topics(KafkaConfig(servers=broker.servers, prefix=config.prefix))
    transport = KafkaTransport(config)
    spool = Spool(tmp_path)
    spool.append(columns("steps", 5))
    with pytest.raises(UsageError, match=f"gives no permission.*{config.topic('steps')}"):
        transport.send(spool.pending())
    assert spool.backlog == 1
    grant(broker, "alice", config)
    shipper = Shipper(spool, transport, config=ShipperConfig(first_backoff_s=0.1, max_backoff_s=0.5))
    shipper.start()
    assert shipper.flush(60), shipper.shipped.last_error
    shipper.stop()
    assert spool.dropped == {}
    spool.close()


def test_a_wrong_password_keeps_rows_spooled(broker, tmp_path):
    spool = Spool(tmp_path)
    spool.append(columns("steps", 5))
    transport = KafkaTransport(login(broker, "alice", "wrong"))
    with pytest.raises(AuthError, match="refuses user 'alice'"):
        transport.send(spool.pending())
    assert spool.backlog == 1
    spool.close()


def test_what_an_agent_could_not_send_waits_on_its_disk(tmp_path):
    """The brokers are away all the time: the job runs, the agent says so once, and every row is spooled."""
    done = run(KafkaConfig(servers=NOWHERE, timeout_s=2), tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(f"Kafka {NOWHERE} does not answer") == 1
    (folder,) = tmp_path.glob("data/**/spool")
    spool = Spool(folder)
    rows = [row for e in spool.pending() for row in decode(e.data).table.to_pylist() if "tokens" in row]
    assert [row["step"] for row in rows] == [0, 1, 2]
    spool.close()
