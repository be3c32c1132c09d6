"""The all-gather between real processes, and the command that runs everything."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from pulsetrain.core.errors import UsageError
from pulsetrain.diagnostics import suite

MEMBER = """
import json, os, signal, sys
from pulsetrain.diagnostics import pairwise
if sys.argv[3] == "die":
    os.kill(os.getpid(), signal.SIGKILL)
print(json.dumps(pairwise.all_gather(index=int(sys.argv[1]), size=2, store_address="127.0.0.1",
    store_port=int(sys.argv[2]), prefix="t", timeout_s=float(sys.argv[4]))))
"""


@pytest.fixture
def store():
    from torch.distributed import TCPStore

    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def member(index: int, port: int, mood: str, timeout_s: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", MEMBER, str(index), str(port), mood, str(timeout_s)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


@pytest.mark.integration
def test_two_processes_gather_and_compare(store):
    members = [member(i, store.port, "live", 30) for i in range(2)]
    answers = [json.loads(m.communicate(timeout=110)[0]) for m in members]
    assert all(a["ok"] and a["backend"] == "gloo" for a in answers)
    assert all(a["busbw_bytes_per_s"] > 0 and a["compute_seconds"] > 0 for a in answers)


@pytest.mark.integration
def test_a_dead_partner_is_a_failed_check_within_the_timeout(store):
    members = [member(0, store.port, "live", 2), member(1, store.port, "die", 2)]
    answer = json.loads(members[0].communicate(timeout=110)[0])
    members[1].communicate(timeout=60)
    assert members[1].returncode == -signal.SIGKILL
    assert answer["ok"] is False
    assert answer["error"]


@pytest.mark.parametrize("seconds", [0, -1, 601])
def test_seconds_out_of_range_are_refused(seconds):
    with pytest.raises(UsageError, match="allowed above 0, at most 600"):
        suite.run(seconds=seconds)


@pytest.mark.integration
def test_diagnose_passes_here_and_prints_json():
    command = [sys.executable, "-m", "pulsetrain.cli", "diagnose", "--seconds", "0.2", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False, env=os.environ)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["ok"]
    assert [c["check"] for c in report["checks"]][-1] == "all_gather"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(2.5e12, "FLOP/s", "2.5 TFLOP/s"), (950.0, "B/s", "950.0 B/s"), (3, "errors", "3 errors")],
)
def test_quantities_for_people(value, unit, text):
    assert suite.quantity(value, unit) == text
