"""Tests that failed beside others get one more chance, alone, and nothing else does."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.repository import ROOT

pytestmark = pytest.mark.integration

RACE = """
import pathlib

def test_steady():
    pass

def test_race():
    mark = pathlib.Path(__file__).with_suffix(".mark")
    seen = mark.exists()
    mark.touch()
    assert seen
"""


@pytest.fixture
def run(tmp_path):
    """Run `text` as a file of tests. Returns (status, output)."""

    environ = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # many short runs

    def run(text, *both, other=""):
        (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p xdist\n")
        (tmp_path / "test_it.py").write_text(text)
        if other:
            (tmp_path / "test_other.py").write_text(other)
        command = [sys.executable, ROOT / "tests/once_more.py", "-n", "2", "--", "-q", *both]
        done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
        assert not (tmp_path / ".pytest_cache").exists()
        return done.returncode, done.stdout

    return run


def test_a_test_that_passes_alone_is_named_and_no_failure(run):
    status, output = run(RACE)
    assert status == 0
    assert "==== failed beside other tests, so run once more alone: 1\n     test_it.py::test_race" in output
    assert "==== failed beside other tests and passed alone: 1\n     test_it.py::test_race" in output
    assert "1 passed" in output


def test_a_test_that_fails_again_is_a_failure(run):
    status, output = run("def test_wrong():\n    assert False\n")
    assert status == 1
    assert "not all passed alone: 1\n     test_it.py::test_wrong" in output


def test_a_test_that_is_skipped_the_second_time_has_not_passed(run):
    skips = "    assert seen\n    import pytest\n    pytest.skip('gone')"
    status, output = run(RACE.replace("    assert seen", skips))
    assert status == 1
    assert "not all passed alone" in output


def test_more_than_five_failures_fail_at_once(run):
    text = "import pytest\n@pytest.mark.parametrize('n', range({}))\ndef test_wrong(n):\n    assert False\n"
    status, output = run(text.format(6))
    assert status == 1
    assert "6 tests failed, more than 5, so none runs once more" in output
    assert output.count("6 failed") == 1
    assert "run once more alone: 5" in run(text.format(5))[1]


def test_a_file_that_cannot_be_collected_fails_at_once(run):
    status, output = run(RACE, other="import nothing_of_this_name\n")
    assert status in (1, 2)
    assert "run once more alone" not in output


@pytest.mark.parametrize(("text", "both", "status"), [("def test_it(): pass", (), 0), ("", (), 5)])
def test_what_has_no_failure_runs_once(run, text, both, status):
    assert run(text, *both)[0] == status


def test_without_a_cache_nothing_runs_once_more(run):
    status, output = run(RACE, "-p", "no:cacheprovider")
    assert status == 1
    assert "the failed tests are not known" in output
