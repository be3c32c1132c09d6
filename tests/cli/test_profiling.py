"""`pulsetrain profile`."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path

import pytest

from pulsetrain.core.errors import PulsetrainError, UsageError

PATH = "POST /v1/jobs/gpt/profile"
EVENT = {"ph": "X", "pid": 7, "tid": 1, "ts": 1.0, "name": "op"}


def trace():
    content = json.dumps({"baseTimeNanoseconds": 0, "traceEvents": [EVENT]})
    return base64.b64encode(gzip.compress(content.encode())).decode()


def answer(*ranks, **failed):
    profiles = {str(rank): trace() for rank in ranks}
    told = {"job": "gpt", "attempt": 0, "first_step": 12, "steps": 3}
    return {**told, "profiles": profiles, "failed": {name[1:]: why for name, why in failed.items()}}


def test_the_ranks_are_in_one_file_that_a_viewer_opens(ask, canned_hub, tmp_path):
    canned_hub.answers[PATH] = answer(0, 1)
    file = tmp_path / "p.json.gz"
    done = ask("profile", "gpt", "--ranks", "0-1", "-o", file)
    assert done.exit_code == 0, done.output
    assert "steps 12 to 14 of 2 rank(s)" in done.output
    assert canned_hub.requests[-1][1]["ranks"] == [0, 1]
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    assert [event["pid"] for event in events] == [0, 1000]


def test_a_rank_that_could_not_be_profiled_is_named(ask, canned_hub, tmp_path):
    canned_hub.answers[PATH] = answer(0, r1="it has ended")
    done = ask("profile", "gpt", "--ranks", "0,1", "-o", tmp_path / "p.json.gz")
    assert done.return_value == 1
    assert "rank 1: it has ended" in done.output


def test_without_any_profile_nothing_is_written(ask, canned_hub, tmp_path):
    canned_hub.answers[PATH] = answer(r0="it tells no steps")
    done = ask("profile", "gpt", "-o", tmp_path / "p.json.gz")
    assert isinstance(done.exception, PulsetrainError)
    assert "it tells no steps" in str(done.exception)
    assert not list(tmp_path.glob("*.gz"))


def test_a_file_that_cannot_be_written_is_one_line_before_anything_is_profiled(ask, canned_hub, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: path != Path("/etc"))  # root may write everywhere
    done = ask("profile", "gpt", "-o", "/etc/p.json.gz")
    assert "--output /etc/p.json.gz: cannot be written by this user" in str(done.exception)
    assert canned_hub.requests == []


def test_a_disk_that_is_full_at_last_is_one_line(ask, canned_hub):
    canned_hub.answers[PATH] = answer(0)
    done = ask("profile", "gpt", "-o", "/dev/full")
    assert isinstance(done.exception, PulsetrainError)
    assert str(done.exception) == "--output /dev/full: No space left on device"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("--ranks", ""), "--ranks is empty"), (("-o", "/nonexistent/p.gz"), "there is no folder")],
)
def test_bad_usage_is_one_line(ask, canned_hub, arguments, words):
    done = ask("profile", "gpt", *arguments)
    assert isinstance(done.exception, UsageError)
    assert words in str(done.exception)
