"""The check of one GPU, as far as it goes without one."""

import subprocess
import sys

import pytest
import torch
from gpucheck import __main__ as check
from gpucheck import parts

from tests.repository import ROOT


def test_every_part_has_a_limit_and_together_they_take_less_than_eight_minutes():
    assert set(check.LIMITS_S) == set(parts.PARTS) - {"stuck"}
    assert sum(check.LIMITS_S.values()) < 480


@pytest.mark.parametrize(
    ("text", "found"),
    [('noise\n{"ok": true}\nmore', {"ok": True}), ("[1]\n3", None), ("", None),
     ('{"a": 1}\n{"b": 2}', {"b": 2})],
)  # fmt: skip
def test_the_last_json_object_of_an_output_counts(text, found):
    assert check.last_object(text) == found


@pytest.mark.integration
def test_a_part_that_fails_or_takes_too_long_costs_only_itself(monkeypatch):
    monkeypatch.chdir(ROOT)
    failed = check.part("nosuch", 60)
    assert (failed["ok"], "nosuch" in str(failed["error"])) == (False, True)
    late = check.part("nvml", 0.01)
    assert (late["ok"], "longer than" in str(late["error"])) == (False, True)


@pytest.mark.integration
def test_without_a_device_it_is_one_line_and_status_2():
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    command = [sys.executable, "-m", "benchmarks.gpucheck"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr, done.stdout) == (2, "no CUDA device\n", "")
