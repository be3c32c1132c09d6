"""The demo's options and folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsetrain.core.errors import PulsetrainError, UsageError
from pulsetrain.demo.main import DemoOptions, Timeline, usual_steps, work_folder


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 10}, "--steps 10: at least 100"),
        ({"report": Path("/nowhere/report.json")}, "--report /nowhere/report.json"),
        ({"report": Path("/proc")}, "--report /proc: is a folder; give a file"),
        ({"keep": Path("/proc")}, "--keep /proc: must be a new or an empty folder"),
        ({"keep": Path("/proc/version")}, "--keep /proc/version: must be a new or an empty folder"),
    ],
)
def test_bad_usage_names_the_value(options, message):
    with pytest.raises(UsageError, match=message):
        DemoOptions(**options)


def test_a_report_that_may_not_be_written_is_refused_before_the_demo(tmp_path, monkeypatch):
    report = tmp_path / "report.json"
    report.write_text("")
    monkeypatch.setattr("os.access", lambda path, mode: path != report)  # root may write everywhere
    with pytest.raises(UsageError, match="this file is there and cannot be written"):
        DemoOptions(report=report)
    monkeypatch.setattr("os.access", lambda path, mode: path == report)
    assert DemoOptions(report=report).report == report


@pytest.mark.parametrize(("cores", "steps"), [(1, 120), (2, 120), (8, 480), (64, 720)])
def test_more_cores_train_more_steps(cores, steps):
    assert usual_steps(cores) == steps


def test_a_temporary_folder_goes_with_the_demo():
    with work_folder(None) as folder:
        (folder / "log").touch()
    assert not folder.exists()


def test_an_interrupted_demo_leaves_no_folder():
    with pytest.raises(KeyboardInterrupt), work_folder(None) as folder:
        raise KeyboardInterrupt
    assert not folder.exists()


def test_a_demo_that_fails_says_where_its_logs_are():
    with pytest.raises(PulsetrainError, match="boom; logs are in /") as failure, work_folder(None) as folder:
        raise PulsetrainError("boom")
    assert str(folder) in str(failure.value)
    assert folder.exists()
    folder.rmdir()


def test_a_folder_to_keep_stays(tmp_path):
    with work_folder(tmp_path / "kept") as folder:
        pass
    assert folder.is_dir()


@pytest.mark.parametrize("folder", ["/proc/version/kept", "/proc/kept"])
def test_a_folder_that_cannot_be_made_is_one_line(folder):
    with pytest.raises(UsageError, match=f"--keep {folder}: "), work_folder(Path(folder)):
        pass


def test_the_timeline_shows_the_time_who_and_what():
    lines = []
    Timeline(lines.append)("fault", "SIGSTOP to rank 3")
    assert lines[0].split()[1:] == ["s", "fault", "SIGSTOP", "to", "rank", "3"]
