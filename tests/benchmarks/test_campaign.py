"""The campaign itself, quickly: four real faults in a real job of eight processes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.repository import ROOT

CAMPAIGN = ROOT / "benchmarks" / "campaign.py"


@pytest.mark.long
@pytest.mark.integration
def test_four_real_faults_are_named_and_nothing_before_them(tmp_path):
    kept = tmp_path / "sessions.jsonl"
    command = [sys.executable, CAMPAIGN, "--quick", "--resume", kept]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["lost"] == []
    assert (result["trials"], result["kind_correct"], result["false_alarms"]) == (4, 4, 0)
    assert result["overall"]["kind"]["hits"] == result["overall"]["top1"]["hits"] == 4
    assert result["overall"]["victim_root"] == 0
    assert result["clean"]["all"]["windows"] == 4
    again = subprocess.run(command, capture_output=True, text=True, timeout=110)
    repeated = json.loads(again.stdout.splitlines()[-1])
    assert repeated["by_kind"] == result["by_kind"]
