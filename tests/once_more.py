"""Run tests beside each other. Those that failed, at most five, run once more: alone, one after another.

A test of real processes can be disturbed by its neighbours on a busy machine, and one that measures how soon
something happens by other work there. The second time it must pass. An error in collection, an interruption,
or more failures end the run at once.

Example: python tests/once_more.py -n 3 --dist loadfile -- -m integration
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

AT_MOST = 5
PYTEST = (sys.executable, "-m", "pytest")


def main(arguments: Sequence[str]) -> int:
    """`arguments` are those of the first run alone, "--", and those of both runs. Returns pytest's status."""
    at = arguments.index("--")
    beside, both = arguments[:at], arguments[at + 1 :]
    with tempfile.TemporaryDirectory() as folder:  # empty: nothing of an earlier run is in this cache
        cache, report = Path(folder) / "cache", Path(folder) / "report.xml"
        command = [*PYTEST, "-o", f"cache_dir={cache}", *both]
        status = subprocess.run([*command, *beside], check=False).returncode
        if status != pytest.ExitCode.TESTS_FAILED:
            return status
        failed = failed_tests(cache)
        reason = why_not(failed)
        if reason:
            say(f"{reason}, so none runs once more")
            return status
        say(f"failed beside other tests, so run once more alone: {len(failed)}", failed)
        again = ["--last-failed", "--last-failed-no-failures", "none", f"--junitxml={report}"]
        status = subprocess.run([*command, *again], check=False).returncode
        if status == pytest.ExitCode.OK and passed(report) == len(failed):
            say(f"failed beside other tests and passed alone: {len(failed)}", failed)
            return status
        say(f"failed beside other tests, and not all passed alone: {len(failed)}", failed)
        return status or int(pytest.ExitCode.TESTS_FAILED)


def failed_tests(cache: Path) -> list[str]:
    """What pytest's cache holds as failed: tests, and files that could not be collected."""
    path = cache / "v/cache/lastfailed"
    return sorted(json.loads(path.read_text())) if path.exists() else []


def why_not(failed: Sequence[str]) -> str:
    """Why what failed may not run once more. "": it may."""
    files = [name for name in failed if "::" not in name]
    if files:
        return f"could not be collected: {', '.join(files)}"
    if not failed:
        return "the failed tests are not known"
    return f"{len(failed)} tests failed, more than {AT_MOST}" if len(failed) > AT_MOST else ""


def passed(report: Path) -> int:
    """How many tests passed according to a JUnit report. One that was skipped did not."""
    cases = ElementTree.parse(report).iter("testcase")
    return sum(
        not len([child for child in case if child.tag in ("failure", "error", "skipped")]) for case in cases
    )


def say(line: str, names: Sequence[str] = ()) -> None:
    """Print for whoever reads the log."""
    print(f"\n==== {line}", *names, sep="\n     ", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
