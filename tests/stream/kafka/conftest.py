"""A real Kafka broker for the tests of this folder; where it cannot run, CI fails and others skip."""

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import time

import pytest

from pulsetrain.stream.kafka.transport import KafkaTransport
from tests.repository import ROOT
from tests.stream.kafka.forked import Forker
from tests.stream.kafka.pipeline import Pipeline

START_S = 200
"""Where Maven has yet to fetch the broker, or all else on the machine is at work."""
PASSWORDS = {"alice": "right", "bob": "known"}
"""Users of the broker's SASL listener. Neither may do anything but what a test grants."""


class Broker:
    """Apache Kafka on loopback, which can be killed and started again on the same folder.

    On `port` everybody may do everything; on `sasl_port` users log in, and may do what they are granted.
    """

    def __init__(self, folder, *, gone_after_ms=15_000):
        self.folder, self.gone_after_ms = folder, gone_after_ms
        self.port, self.controller, self.sasl_port = free_port(), free_port(), free_port()
        self.process = None

    @property
    def servers(self):
        return f"127.0.0.1:{self.port}"

    @property
    def sasl_servers(self):
        return f"127.0.0.1:{self.sasl_port}"

    def start(self):
        env = os.environ | {
            "CONTROLLER_PORT": str(self.controller),
            "EXTRA_PROPERTIES": self._properties(),
            "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1",  # starts in half the time
        }
        with (self.folder.parent / f"{self.folder.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [ROOT / "deploy/kafka/start", str(self.port), str(self.folder)],
                env=env,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                pytest.fail(f"broker ended with {self.process.returncode}; see {log.name}")
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 0.2):
                return self
            time.sleep(0.1)
        self.stop()
        pytest.fail(f"broker did not listen within {START_S} s; see {log.name}")

    def stop(self, how=signal.SIGKILL):
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, how)
            self.process.wait(timeout=60)
            self.process = None

    def _properties(self):
        plain = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        users = " ".join(f'user_{name}="{password}"' for name, password in PASSWORDS.items())
        both = f"PLAINTEXT://127.0.0.1:{self.port},SASL_PLAINTEXT://127.0.0.1:{self.sasl_port}"
        return "\n".join(
            [
                f"listeners={both},CONTROLLER://127.0.0.1:{self.controller}",
                f"advertised.listeners={both}",
                "listener.security.protocol.map="
                "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
                "sasl.enabled.mechanisms=PLAIN",
                f"listener.name.sasl_plaintext.plain.sasl.jaas.config={plain} {users};",
                "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users=User:ANONYMOUS",
                f"broker.session.timeout.ms={self.gone_after_ms}",  # then its place is free again
                "broker.heartbeat.interval.ms=500",
            ]
        )


def end_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: also when a test run is killed


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def pytest_collection_modifyitems(items):
    missing = [tool for tool in ("java", "mvn") if shutil.which(tool) is None]
    if missing and not os.environ.get("CI"):
        skip = pytest.mark.skip(reason=f"no {' and no '.join(missing)}: the real broker cannot run")
        for item in items:
            if item.get_closest_marker("kafka"):
                item.add_marker(skip)
    for item in items:
        if item.get_closest_marker("kafka") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(120, func_only=True))  # the broker's start has its own limit


def pytest_collection_finish(session):
    """The minute of `away` begins with the first Kafka test, so that the others fill it."""
    waiting = [item for item in session.items if "away" in getattr(item, "fixturenames", ())]
    kafka = [item for item in session.items if item.get_closest_marker("kafka")]
    if waiting:
        kafka[0].fixturenames.append("away")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """In CI a Kafka test that is skipped has failed."""
    report = yield
    if report.skipped and os.environ.get("CI") and item.get_closest_marker("kafka"):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def broker(tmp_path_factory):
    broker = Broker(tmp_path_factory.mktemp("kafka") / "data").start()
    yield broker
    broker.stop()


@pytest.fixture(scope="session")
def forker():
    forker = Forker()
    yield forker
    forker.close()


@pytest.fixture
def pipeline(broker, tmp_path):
    """Between `broker` and a store; ingest is the command, started as an operator starts it."""
    pipeline = Pipeline(broker, tmp_path / "store")
    yield pipeline
    pipeline.close()


@pytest.fixture
def forked_pipeline(broker, tmp_path, forker):
    """The same with an ingest that starts in under a second."""
    pipeline = Pipeline(broker, tmp_path / "store", forker)
    yield pipeline
    pipeline.close()


class Away:
    """A pipeline whose ingest was stopped in the middle of its work; `until` is when a minute has passed."""

    def __init__(self, pipeline):
        self.pipeline = pipeline
        self._transport = KafkaTransport(pipeline.config)
        pipeline.start()
        deadline = time.monotonic() + 100
        while not pipeline.logged("partitions_assigned") and time.monotonic() < deadline:
            self.send()
        self.send()
        pipeline.process.send_signal(signal.SIGSTOP)
        self.until = time.monotonic() + 60

    def send(self):
        self._transport.send([self.pipeline.message(f"n{source}/1") for source in range(4)])

    def close(self):
        self._transport.close()
        self.pipeline.close()


@pytest.fixture(scope="session")
def away(broker, forker, tmp_path_factory):
    away = Away(Pipeline(broker, tmp_path_factory.mktemp("away") / "store", forker))
    yield away
    away.close()
