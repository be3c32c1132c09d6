"""A live fleet asks its hub how the job is, and says when there is no hub."""

from __future__ import annotations

import os
import time

import pytest

from pulsetrain.core.errors import AuthError, Unavailable
from pulsetrain.protocol.client import HubAddress
from pulsetrain.simulate.live.hub_watch import CpuTimes, HubWatch, reachable
from tests.protocol.fake_hub import fake_hub


def status(job="simulated-live", pid=0):
    row = {"job": job, "verdict": {"state": "slow", "sentence": "Rank 3."}, "attempt": 1, "step": 9}
    return (200, {"hub": {"pid": pid or os.getpid()}, "jobs": [row]})


def ask(*answers):
    with fake_hub(*answers) as hub:
        watch = HubWatch(HubAddress(url=hub.url, token="t"), "simulated-live")
        try:
            return [watch.ask() for _ in answers]
        finally:
            watch.close()


def test_the_hub_is_asked_for_the_job_of_the_fleet():
    [said] = ask(status())
    assert (said.state, said.sentence, said.attempt, said.step, said.error) == ("slow", "Rank 3.", 1, 9, "")
    assert said.bytes > 50
    assert ask(status("other"))[0].state == ""


def test_the_processor_time_of_a_hub_on_this_machine_is_known_and_that_of_no_process_is_not():
    assert all(answer.cpu_ratio >= 0 for answer in ask(status(), status()))
    assert ask(status(pid=2**22 + 1))[0].cpu_ratio == -1


def test_a_wrong_token_ends_the_run_and_a_failing_hub_is_asked_again():
    with pytest.raises(AuthError):
        ask((401, {}))
    assert [answer.error for answer in ask((503, {}), status())] == ["status 503", ""]


def test_a_hub_that_is_not_there_is_said_before_thousands_of_agents_try():
    with fake_hub((200, {})) as hub:
        reachable(HubAddress(url=hub.url, token="t"))
    with pytest.raises(Unavailable):
        reachable(HubAddress(url=hub.url, token="t"))
    with fake_hub((500, {})) as hub, pytest.raises(Unavailable, match="500"):
        reachable(HubAddress(url=hub.url, token="t"))


def test_processor_time_is_a_share_of_a_core():
    began_s = time.process_time()
    times = CpuTimes(clock=iter((0.0, 10.0)).__next__)
    while time.process_time() < began_s + 0.1:
        sum(range(10_000))
    assert 0.005 < times.ratio() < 1
