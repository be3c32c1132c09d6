"""The all-gather of the pairwise check between real processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from pulsetrain.diagnostics import all_gather

MEASURED = ("seconds", "busbw_bytes_per_s", "reduce_busbw_bytes_per_s")
MEMBER = """
import json, os, signal, sys
from pulsetrain.diagnostics import all_gather
if sys.argv[3] == "die":
    os.kill(os.getpid(), signal.SIGKILL)
print(json.dumps(all_gather.run(index=int(sys.argv[1]), size=2, store_address="127.0.0.1",
    store_port=int(sys.argv[2]), prefix="t", timeout_s=float(sys.argv[4]), reduce=True)))
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
    assert all(answer[name] > 0 for answer in answers for name in MEASURED)
    assert all(0 < answer["compute_s"] <= answer["compute_mean_s"] for answer in answers)


@pytest.mark.integration
def test_a_dead_partner_is_a_failed_check_within_the_timeout(store):
    members = [member(0, store.port, "live", 2), member(1, store.port, "die", 2)]
    answer = json.loads(members[0].communicate(timeout=110)[0])
    members[1].communicate(timeout=60)
    assert members[1].returncode == -signal.SIGKILL
    assert answer["ok"] is False
    assert answer["error"]


def test_without_a_store_the_check_has_failed_with_a_reason():
    port = 1  # nobody listens there
    report = all_gather.run(
        index=0, size=2, store_address="127.0.0.1", store_port=port, prefix="t", timeout_s=0.2
    )
    assert report["ok"] is False
    assert report["error"]
