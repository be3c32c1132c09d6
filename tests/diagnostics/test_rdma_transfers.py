"""One RDMA transfer between two ends, with a fake `ib_write_bw` on this machine, which has no RDMA."""

import contextlib
import json
import os
import socket
import threading
import time
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest

from pulsetrain.core.errors import Unavailable
from pulsetrain.diagnostics import perftest
from pulsetrain.diagnostics.perftest import RdmaEnd
from pulsetrain.diagnostics.rdma_transfers import host_servers, report

pytestmark = pytest.mark.integration
FAKE = Path(__file__).parent / "fake_perftest"
NAME = "mlx5_0/1"


@pytest.fixture
def log(monkeypatch, tmp_path):
    """Put the fake first in PATH. What it was started with, and which processes live."""
    monkeypatch.setenv("PATH", f"{FAKE}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log"))

    class Log:
        def entries(self):
            with contextlib.suppress(FileNotFoundError):
                return [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
            return []

        def live(self):
            pids = {entry["pid"] for entry in self.entries()}
            return [p for p in psutil.process_iter() if p.pid in pids and p.status() != psutil.STATUS_ZOMBIE]

        def wait_gone(self):
            end_s = time.monotonic() + 10
            while self.live() and time.monotonic() < end_s:
                time.sleep(0.05)
            assert self.live() == []

    return Log()


@pytest.fixture
def service(log):
    """The TCP port of a node that hosts servers. Its timer, which would end this process, is cancelled."""
    end = asdict(RdmaEnd(device="mlx5_0", port=1))
    last = asdict(RdmaEnd(device="mlx5_0", port=1, cpus=[max(os.sched_getaffinity(0))]))
    timers = set(threading.enumerate())
    running = host_servers(address="127.0.0.1", seconds=60, ends={NAME: {"": end, "1": last}})
    yield next(running)["port"]
    for _ in running:
        pass
    for timer in set(threading.enumerate()) - timers:
        if isinstance(timer, threading.Timer):
            timer.cancel()


def transfer(port, **changes):
    asked = {"name": NAME, "memory": "", "seconds": 0.5, "source": "127.0.0.1"} | changes
    end = asdict(RdmaEnd(device="mlx5_4", port=2, gid_index=3))
    return report(address="127.0.0.1", port=port, end=end, **asked)


def test_a_transfer_says_how_fast_it_was_and_both_processes_end(service, log, monkeypatch):
    monkeypatch.setenv("FAKE_RATE", "392.5")
    assert transfer(service) == {
        "bits_per_s": 392.5e9, "resent_share": 0.0, "error": "", "unmeasured": "",
    }  # fmt: skip
    server, client = log.entries()
    assert (server["client"], client["client"]) == (False, True)
    assert server["arguments"][:4] == ["-d", "mlx5_0", "-i", "1"]
    assert client["arguments"][:6] == ["-d", "mlx5_4", "-i", "2", "-x", "3"]
    log.wait_gone()


def test_a_server_runs_next_to_the_memory_that_is_asked_for(service, log):
    before = os.sched_getaffinity(0)
    assert transfer(service, memory="1")["error"] == ""
    assert log.entries()[0]["cpus"] == [max(before)]
    assert log.entries()[1]["cpus"] == sorted(before)
    assert os.sched_getaffinity(0) == before


def test_a_write_that_does_not_arrive_is_the_links_fault(service, log, monkeypatch):
    monkeypatch.setenv("FAKE_CLIENT", "status")
    found = transfer(service)
    assert found["error"].startswith("ib_write_bw: Completion with error at client; Failed status 12")
    assert (found["bits_per_s"], found["unmeasured"]) == (0.0, "")
    log.wait_gone()


def test_a_receiver_whose_port_is_down_is_the_links_fault(service, monkeypatch):
    monkeypatch.setenv("FAKE_SERVER", "down")
    assert transfer(service)["error"].startswith("ib_write_bw: Port number 1 state is Down")


def test_a_receiver_that_may_not_lock_memory_is_no_fault_of_the_link(service, log, monkeypatch):
    monkeypatch.setenv("FAKE_SERVER", "memory")
    found = transfer(service)
    assert found["error"] == ""
    assert found["unmeasured"].startswith("ib_write_bw: Couldn't allocate MR; failed to create mr")
    log.wait_gone()


def test_a_sender_that_may_not_lock_memory_says_so_itself(service, log, monkeypatch):
    monkeypatch.setenv("FAKE_CLIENT", "memory")
    with pytest.raises(Unavailable, match="Couldn't allocate MR"):
        transfer(service)
    log.wait_gone()


def test_a_transfer_without_an_end_is_killed_on_both_sides(service, log, monkeypatch):
    monkeypatch.setattr(perftest, "SETUP_S", 0.5)
    monkeypatch.setenv("FAKE_CLIENT", "hang")
    assert transfer(service)["error"] == "ib_write_bw: no end in 1.5 s"
    log.wait_gone()


def test_a_sender_that_goes_away_leaves_no_server_behind(service, log):
    with socket.create_connection(("127.0.0.1", service)) as control:
        control.sendall(b'{"name": "mlx5_0/1", "memory": "", "seconds": 1}\n')
        assert json.loads(control.recv(4096))["port"] > 0
        assert len(log.live()) == 1
    log.wait_gone()


def test_without_the_tool_the_receiver_takes_no_part(service, monkeypatch):
    monkeypatch.setattr(perftest, "TOOL", "no_such_tool")
    assert transfer(service)["unmeasured"].startswith("no_such_tool: ")


@pytest.mark.parametrize(
    "said", [b"nonsense\n", b'{"name": "mlx5_9/1", "memory": "", "seconds": 1}\n', b"[]\n"]
)
def test_what_is_no_question_starts_nothing(service, log, said):
    with socket.create_connection(("127.0.0.1", service)) as control:
        control.sendall(said)
        assert control.recv(4096) == b""
    assert log.entries() == []


def test_a_receiver_that_is_not_there_is_an_error_in_one_line():
    with socket.create_server(("127.0.0.1", 0)) as tried:
        port = tried.getsockname()[1]
    assert transfer(port)["error"] == "127.0.0.1: Connection refused"
