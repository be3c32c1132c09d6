"""A real Kafka broker for the tests of this folder; where it cannot run, CI fails and others skip."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


class Broker:
    """Apache Kafka on loopback, which can be killed and started again on the same folder."""

    def __init__(self, folder, extra=""):
        self.folder, self.extra = folder, extra
        self.port, self.controller = free_port(), free_port()
        self.process = None

    @property
    def servers(self):
        return f"127.0.0.1:{self.port}"

    def start(self):
        env = os.environ | {"CONTROLLER_PORT": str(self.controller), "EXTRA_PROPERTIES": self.extra}
        with (self.folder.parent / f"{self.folder.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [ROOT / "deploy/kafka/start", str(self.port), str(self.folder)],
                env=env,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + 50
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                pytest.fail(f"broker ended with {self.process.returncode}; see {log.name}")
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 0.2):
                return self
            time.sleep(0.1)
        pytest.fail("broker did not listen within 50 s")

    def stop(self, how=signal.SIGKILL):
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, how)
            self.process.wait(timeout=20)
            self.process = None


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def pytest_collection_modifyitems(items):
    if not os.environ.get("PULSETRAIN_LONG"):
        slow = pytest.mark.skip(reason="stalls now and then on two cores: set PULSETRAIN_LONG=1")
        for item in items:
            if item.path.name in ("test_contract.py", "test_ingest.py") and item.get_closest_marker("kafka"):
                item.add_marker(slow)
    missing = [tool for tool in ("java", "mvn") if shutil.which(tool) is None]
    if missing and not os.environ.get("CI"):
        skip = pytest.mark.skip(reason=f"no {' and no '.join(missing)}: the real broker cannot run")
        for item in items:
            if item.get_closest_marker("kafka"):
                item.add_marker(skip)


@pytest.fixture(scope="session")
def broker(tmp_path_factory):
    broker = Broker(tmp_path_factory.mktemp("kafka") / "data").start()
    yield broker
    broker.stop()
