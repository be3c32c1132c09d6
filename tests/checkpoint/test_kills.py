"""A hundred seeded kills of ranks, nodes, and nodes together with the holders of their replicas."""

import json
import statistics
import subprocess
import sys

import pytest

from tests.repository import ROOT


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(500)
def test_after_every_kill_each_rank_has_exactly_the_bytes_of_the_restored_step(tmp_path):
    run = subprocess.run(
        [sys.executable, "-m", "tests.checkpoint.killed_nodes", str(tmp_path), "100", "7"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=460,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]  # the program itself compares the bytes
    rounds = [json.loads(line) for line in run.stdout.splitlines() if line.startswith('{"round"')]
    assert len(rounds) == 100
    assert {r["kind"] for r in rounds} == {"rank", "node", "apart", "holder"}
    assert sum(r["shared"] for r in rounds) > 100  # what is restored was for the most part never sent
    lost = {
        kind: [r["reached"] - r["restored"] for r in rounds if r["kind"] == kind]
        for kind in ("rank", "node", "apart")
    }
    for kind, steps in lost.items():  # a replica is left
        assert statistics.median(steps) <= 1, (kind, steps)
    loads = [ms for r in rounds for ms in r["load_ms"]]
    assert statistics.median(loads) < 200
