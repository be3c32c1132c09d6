"""A member that Kafka fails comes back, and one that is misconfigured says so."""

from __future__ import annotations

import threading
import time

import pytest

from pulsetrain.core.clock import SystemClock
from pulsetrain.core.errors import AuthError, PulsetrainError, Unavailable, UsageError
from pulsetrain.stream.kafka import group_member
from pulsetrain.stream.kafka.group_member import GroupMember


class Script:
    """Makes `Ingest`s that do what a list says: an error at the start ("start", error), or at their end."""

    def __init__(self, *outcomes):
        self.outcomes = list(outcomes)
        self.made = 0
        self.exhausted = threading.Event()

    def __call__(self, *_):
        kind, error = self.outcomes[0] if self.outcomes else ("run", None)
        if kind == "start":
            self.outcomes.pop(0)
            raise error
        self.made += 1
        return self

    def backlog(self):
        return f"backlog {self.made}"

    def run(self, polled):
        polled()
        _, error = self.outcomes.pop(0) if self.outcomes else ("run", None)
        if error is not None:
            raise error
        self.exhausted.wait(timeout=10)

    def stop(self):
        self.exhausted.set()


@pytest.fixture
def member(monkeypatch):
    def make(*outcomes, watch=None, waits=False):
        script = Script(*outcomes)
        monkeypatch.setattr(group_member, "Ingest", script)
        monkeypatch.setattr(group_member, "_RESTART_S", 0.0)
        return GroupMember(None, None, SystemClock(), watch=watch, waits=waits), script

    return make


def end(made, script, times):
    """Stop it once everything on the list has happened and it has begun so many `times`."""
    deadline = time.monotonic() + 10
    while (script.outcomes or script.made < times) and time.monotonic() < deadline:
        time.sleep(0.001)
    made.stop()


def test_brokers_that_go_away_are_waited_for(member):
    away = Unavailable("away")
    made, script = member(("run", away), ("start", away), ("start", away), ("run", away))
    ending = threading.Thread(target=end, args=(made, script, 3))
    ending.start()
    made.run()
    ending.join(timeout=10)
    assert script.made == 3


def test_what_cannot_get_better_ends_it(member):
    made, _ = member(("run", AuthError("refused")))
    with pytest.raises(AuthError):
        made.run()


@pytest.mark.parametrize("error", [Unavailable("no broker"), PulsetrainError("memory limit exceeded")])
def test_brokers_or_a_store_that_are_away_are_no_error_once_it_is_stopped(member, error):
    made, script = member()
    script.run = lambda polled: made.stop() or polled() or raise_(error)
    made.run()


def raise_(error):
    raise error


def test_a_wrong_address_is_the_callers_error(member):
    with pytest.raises(UsageError, match="nowhere"):
        member(("start", UsageError("nowhere")))


def test_on_a_thread_of_its_own_it_survives_everything_that_has_a_name(member):
    made, script = member(
        ("run", AuthError("refused")), ("start", UsageError("no")), ("run", Unavailable("x"))
    )
    made.start()
    end(made, script, 3)
    assert script.made == 3
    assert not made._thread.is_alive()


def test_who_watches_is_told_the_backlog_after_each_look(member):
    seen = []
    made, script = member(("run", Unavailable("away")), watch=seen.append)
    ending = threading.Thread(target=end, args=(made, script, 2))
    ending.start()
    made.run()
    ending.join(timeout=10)
    assert seen == ["backlog 1", "backlog 2"]


def test_one_that_waits_takes_messages_once_the_brokers_are_there(member):
    away = [("start", Unavailable("no brokers"))] * 3
    made, script = member(*away, waits=True)
    assert (made.status().failures, made.status().last_error) == (1, "Unavailable: no brokers")
    made.start()
    end_deadline = time.monotonic() + 10
    while made.status().turns == 0 and time.monotonic() < end_deadline:
        time.sleep(0.01)
    made.stop()
    assert (script.made, made.status().turns) == (1, 1)


def test_one_that_waits_does_not_wait_for_a_wrong_password(member):
    with pytest.raises(AuthError):
        member(("start", AuthError("refused")), waits=True)


def test_one_that_waits_can_be_stopped_before_the_brokers_came(member):
    made, script = member(("start", Unavailable("no brokers")), waits=True)
    made.stop()
    made.run()
    assert script.made == 0
