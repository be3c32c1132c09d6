"""The processes of the benchmark: a real broker, `pulsetrain ingest`, and children that own a store."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pulsetrain.stream.kafka.client import KafkaConfig

ROOT = Path(__file__).resolve().parents[2]
INGEST_ROWS = 250_000  # rows of one insert, here and in the raw limit
GROUP = "bench"


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextlib.contextmanager
def broker(folder: Path) -> Iterator[tuple[str, int]]:
    """A real broker; its address and its process. It ends with this process, however that ends."""
    port, controller = free_port(), free_port()
    with (folder / "kafka.log").open("wb") as log:
        process = subprocess.Popen(
            [ROOT / "deploy/kafka/start", str(port), str(folder / "kafka")],
            env=os.environ | {"CONTROLLER_PORT": str(controller)},
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )
        try:
            _await_port(port, process, folder / "kafka.log")
            yield f"127.0.0.1:{port}", process.pid
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def cpu_s(pid: int) -> float:
    """CPU seconds that a process has taken so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _await_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
            return
        time.sleep(0.1)
    raise SystemExit(f"broker does not listen: {log.read_text()[-500:]}")


class IngestProcess:
    """`pulsetrain ingest` into a chDB folder."""

    def __init__(self, config: KafkaConfig, folder: Path) -> None:
        self.port = free_port()
        self._log = (folder / "ingest.log").open("wb")
        environ = {"PULSETRAIN_KAFKA_PREFIX": config.prefix, "PULSETRAIN_INGEST_ROWS": str(INGEST_ROWS)}
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "pulsetrain.cli", "ingest", "--kafka", config.servers),
                *("--store", f"chdb://{folder / 'store'}", "--metrics-port", str(self.port)),
                *("--group", GROUP, "--member", "only"),
            ],
            env=os.environ | environ,
            stdout=subprocess.DEVNULL,
            stderr=self._log,
            preexec_fn=_end_with_parent,
        )
        self.pid = self._process.pid

    def rows(self) -> int:
        """Span rows stored so far."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
                text = answer.read().decode()
        except OSError:
            if self._process.poll() is not None:
                raise SystemExit(
                    f"ingest ended with {self._process.returncode}; see {self._log.name}"
                ) from None
            return 0
        lines = [line for line in text.splitlines() if line.startswith("pulsetrain_ingest_rows_total{")]
        return int(sum(float(line.split()[-1]) for line in lines if 'record="spans"' in line))

    def await_rows(self, rows: int, seconds: float) -> None:
        """Wait until `rows` are stored, or no more than `seconds`."""
        deadline = time.monotonic() + seconds
        while self.rows() < rows and time.monotonic() < deadline:
            time.sleep(0.1)

    def peak_mib(self) -> float:
        """Peak resident memory of the process."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 1024

    def stop(self) -> None:
        """End it in order."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._log.close()


def in_child(target: Any, *args: Any) -> Any:
    """What `target` puts into a queue, run in a new process: a chDB folder has one owner."""
    context = multiprocessing.get_context("spawn")
    result = context.Queue()
    child = context.Process(target=target, args=(*args, result))
    child.start()
    try:
        return result.get(timeout=300)
    finally:
        child.join(timeout=60)
