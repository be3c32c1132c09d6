"""The node's counters, from a /proc of our own and from the real one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pulsetrain.collectors.machine.host import HostSampler, process_state
from pulsetrain.records.encoding import encode

FILES = {
    "stat": "cpu  100 0 50 800 10 0 5 1 0 0\nctxt 123\nprocs_running 3\n",
    "loadavg": "0.52 0.58 0.59 1/95 7977\n",
    "meminfo": "MemTotal:  1000 kB\nMemFree:  1 kB\nMemAvailable:  400 kB\nHugePages_Total:  0\n",
    "pressure/cpu": "some avg10=0.07 avg60=0.36 avg300=13.10 total=2500000\n",
    "net/dev": "Inter-|\n face |\n eth0:10 2 0 1 0 0 0 0 20 3 0 0 0 0 0 0\n",
    "diskstats": " 259 0 nvme0n1 1 0 8 0 1 0 16 0 0 30 0\n 259 1 nvme0n1p1 1 0 8 0 1 0 16 0 0 30 0\n",
    "42/stat": "42 (a (b) c) T 1 1 1 0 -1 0 9 0 7 0 150 50 0 0 20 0 1 0 9 4096 3 0\n",
    "42/schedstat": "1000 2000000000 3\n",
}


@pytest.fixture
def root(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / "proc" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def samples(root: Path, **processes: int) -> dict[tuple[str, str], float]:
    sampler = HostSampler(root, node="n1")
    sampler.watch(processes)
    batch = sampler.sample(5)
    encode(batch, source="s", first_row=0)
    rows = batch.to_rows()
    assert {(row["node"], row["ts"]) for row in rows} <= {("n1", 5)}
    return {(row["device"], row["name"]): row["value"] for row in rows}


def test_counters_are_read_with_their_units(root):
    got = samples(root, rank=42)
    tick, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    assert got["", "cpu_user_s"] == 100 / tick
    assert got["", "memory_available_bytes"] == 400 * 1024
    assert got["", "pressure_cpu_some_s"] == 2.5
    assert got["eth0", "net_receive_bytes"] == 10
    assert got["eth0", "net_transmit_bytes"] == 20
    assert got["nvme0n1", "disk_write_bytes"] == 16 * 512
    assert ("nvme0n1p1", "disk_write_bytes") not in got
    assert got["rank", "process_cpu_s"] == 200 / tick
    assert got["rank", "process_resident_bytes"] == 3 * page
    assert got["rank", "process_run_delay_s"] == 2.0


@pytest.mark.parametrize("name", sorted(FILES))
@pytest.mark.parametrize("text", ["", "rubbish\n", "cpu x y\n\n:::\n"])
def test_a_file_that_is_missing_or_rubbish_gives_no_sample_and_leaves_the_rest(root, name, text):
    whole = samples(root, rank=42)
    (root / "proc" / name).write_text(text)
    spoilt = samples(root, rank=42)
    assert spoilt.items() <= whole.items()
    (root / "proc" / name).unlink()
    assert samples(root, rank=42).items() <= whole.items()


def test_state_of_a_process_whose_name_holds_brackets(root):
    assert process_state(42, root) == "stopped"
    assert process_state(43, root) == "gone"


@pytest.mark.integration
def test_states_of_a_real_process():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        process.send_signal(signal.SIGSTOP)
        _until(lambda: process_state(process.pid) == "stopped")
        process.kill()
        _until(lambda: process_state(process.pid) == "zombie")
    finally:
        process.kill()
        process.wait()
    assert process_state(process.pid) == "gone"


def test_the_real_node_has_the_counters_that_matter():
    got = samples(Path("/"), me=os.getpid())
    assert got["", "memory_total_bytes"] > got["", "memory_available_bytes"] > 0
    assert got["", "cpu_idle_s"] > 0
    assert got["me", "process_resident_bytes"] > 1 << 20


def _until(condition, limit_s: float = 40.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
