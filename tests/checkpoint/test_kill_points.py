"""A sample of the seeded kill points: a real job of real processes, killed and brought back bit-identical.

All hundred are `benchmarks/kill_points.py`.
"""

import json
import subprocess
import sys

import pytest

from tests.repository import ROOT


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_job_killed_at_seeded_points_ends_as_if_nothing_had_happened():
    run = subprocess.run(
        [
            *(sys.executable, "benchmarks/kill_points.py", "--seed", "28", "--points", "5"),
            *("--points-per-job", "5", "--budget-s", "50"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=560,
        check=False,
    )
    found = json.loads(run.stdout.splitlines()[-1]) if run.stdout else {}
    assert run.returncode == 0, f"{found}\n{run.stderr[-4000:]}"
    assert found["identical"]
    assert found["lost_with_replica_max"] <= 1
    assert found["points"] >= 1
