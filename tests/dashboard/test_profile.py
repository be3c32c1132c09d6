"""The part of Timeline that has ranks profiled."""

from __future__ import annotations

import base64
import gzip
import json
import threading
import time

import pytest

from pulsetrain.core.errors import CorruptData, UsageError
from pulsetrain.dashboard.profile import read
from tests.dashboard.models.timeline.rows import row

EVENT = {"ph": "X", "pid": 7, "tid": 1, "ts": 1.0, "name": "op"}


def trace():
    content = json.dumps({"baseTimeNanoseconds": 0, "traceEvents": [EVENT]})
    return base64.b64encode(gzip.compress(content.encode())).decode()


def answer(*ranks, failed=None):
    profiles = {str(rank): trace() for rank in ranks}
    return {"job": "gpt", "first_step": 12, "steps": 3, "profiles": profiles, "failed": failed or {}}


@pytest.fixture
def running(source):
    source.answers["status"]["jobs"][0]["state"] = "running"
    source.stored["jobs"] = [
        {"job": "gpt", "ranks": 16, "first_step": 0, "last_step": 119, "attempts": 1, "last_ns": 1}
    ]
    source.stored["spans"] = [row(10**18, 60_000_000, 3, node="node-1", step=118, spans_in_all=1)]
    return source


def drawn_until(shown, done):
    """Draw again until `done`, as the page does once a second."""
    until = time.monotonic() + 20
    while not done():
        assert time.monotonic() < until
        shown.app.run()
    return shown


def test_the_ranks_shown_are_profiled_and_the_file_is_offered(draw, running):
    running.answers["profile"] = answer(*range(8))
    shown = draw("timeline", ranks="0-11").click("profile")
    drawn_until(shown, lambda: shown.app.get("download_button")[-1].proto.label.startswith("Download steps"))
    assert running.profiled == [("gpt", list(range(8)), 3)]
    assert "steps 12 to 14" in shown.app.get("download_button")[-1].proto.label
    assert not shown.app.button(key="profile").disabled


def test_nobody_is_asked_twice_while_the_steps_run(draw, running, monkeypatch):
    over = threading.Event()

    def slow(job, ranks, steps):
        over.wait(20)
        return answer(*ranks)

    monkeypatch.setattr(running, "profile", slow)
    shown = draw("timeline", ranks="0-1").click("profile")
    assert "3 steps are being recorded" in shown.text
    assert shown.app.button(key="profile").disabled
    over.set()
    drawn_until(shown, lambda: not shown.app.button(key="profile").disabled)


def test_a_refusal_is_one_sentence(draw, running, monkeypatch):
    def refuse(job, ranks, steps):
        raise UsageError("job 'gpt' is being profiled; try again when that is over")

    monkeypatch.setattr(running, "profile", refuse)
    shown = draw("timeline", ranks="0-1").click("profile")
    drawn_until(shown, lambda: bool(shown.app.warning))
    assert shown.app.warning[0].value == (
        "No profile: job 'gpt' is being profiled; try again when that is over."
    )


def test_a_job_that_is_over_cannot_be_profiled(draw, running):
    running.answers["status"]["jobs"][0]["state"] = "finished"
    assert "profile" not in {button.key for button in draw("timeline").app.button}


def test_a_rank_without_a_profile_is_named_beside_the_file(draw, running):
    running.answers["profile"] = answer(0, failed={"1": "it has ended"})
    shown = draw("timeline", ranks="0-1").click("profile")
    drawn_until(shown, lambda: bool(shown.app.warning))
    assert shown.app.warning[0].value == "Rank 1 has no profile: it has ended."


def test_all_ranks_are_in_one_trace():
    events = json.loads(gzip.decompress(read(answer(0, 3)).data))["traceEvents"]
    assert [event["pid"] for event in events] == [0, 3000]


def test_without_any_profile_there_is_no_file():
    profile = read(answer(failed={"0": "it tells no steps"}))
    assert (profile.data, profile.failed) == (b"", {0: "it tells no steps"})


def test_what_is_no_profile_is_an_error():
    with pytest.raises(CorruptData, match="not a profile"):
        read({**answer(), "profiles": {"0": "???"}})
