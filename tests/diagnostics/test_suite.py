"""The command that runs all checks of one machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from pulsetrain.core.errors import UsageError
from pulsetrain.diagnostics import suite


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
    assert "all_to_all" in {c["check"] for c in report["checks"]}


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(2.5e12, "FLOP/s", "2.5 TFLOP/s"), (950.0, "B/s", "950.0 B/s"), (3, "errors", "3 errors")],
)
def test_quantities_for_people(value, unit, text):
    assert suite.quantity(value, unit) == text
