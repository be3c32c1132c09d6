"""Something that appears late is found, and what never appears is an error."""

from threading import Event

import pytest

from pulsetrain.checkpoint.storage.polling import LONGEST_PAUSE_S, Poller
from pulsetrain.core.errors import CheckpointError


class Time:
    """A clock, and an event that moves it by waiting."""

    def __init__(self) -> None:
        self.now, self.pauses, self.ended = 0.0, [], False

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        self.pauses.append(seconds)
        return self.ended


@pytest.fixture
def time():
    return Time()


@pytest.fixture
def poller(time):
    return Poller(0.1, time, clock=time)


def test_an_answer_at_the_first_look_needs_no_pause(poller, time):
    assert poller.wait(lambda: 0, 5.0, "it") == 0  # also a false value is an answer
    assert time.pauses == []


def test_looks_become_rarer_up_to_a_limit(poller, time):
    answers = iter([None] * 12 + ["there"])
    assert poller.wait(lambda: next(answers), 60.0, "it") == "there"
    assert time.pauses[0] == 0.1
    assert time.pauses == sorted(time.pauses)
    assert time.pauses[-1] == LONGEST_PAUSE_S


def test_a_timeout_names_what_is_missing(poller, time):
    with pytest.raises(CheckpointError, match=r"tables of step 3: not complete after 5.0 s"):
        poller.wait(lambda: None, 5.0, "tables of step 3")
    assert 5.0 < time.now < 7.0


def test_a_storage_that_refuses_for_a_moment_is_asked_again_and_named_where_it_goes_on(poller):
    answers = iter([OSError(5, "EIO"), ValueError("half a file"), "there"])

    def look():
        answer = next(answers, OSError(116, "stale handle"))
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert poller.wait(look, 5.0, "it") == "there"
    with pytest.raises(CheckpointError, match=r"it: not complete after 5.0 s: OSError.*stale handle"):
        poller.wait(look, 5.0, "it")


def test_what_the_look_itself_refuses_ends_the_wait_at_once(poller, time):
    def look():
        raise CheckpointError("another run writes here")

    with pytest.raises(CheckpointError, match="another run"):
        poller.wait(look, 5.0, "it")
    assert time.pauses == []


def test_the_end_of_the_service_ends_the_wait(poller, time):
    time.ended = True
    with pytest.raises(CheckpointError, match="it: the checkpoint service ended"):
        poller.wait(lambda: None, 60.0, "it")


def test_a_real_event_serves_too():
    stop = Event()
    stop.set()
    with pytest.raises(CheckpointError, match="ended"):
        Poller(10.0, stop).wait(lambda: None, 60.0, "it")
