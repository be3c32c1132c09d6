"""Training waits for its peers where that is asked for, and not for ever."""

import os

import pytest

from pulsetrain.checkpoint.memory.arena import ArenaReader, create_arena
from pulsetrain.checkpoint.peer_lag import LAG_TIMEOUT_S, PeerLag
from pulsetrain.checkpoint.save_result import SaveResult


class Training:
    """An arena, and a clock that only waiting moves. `answer` is called at each look."""

    def __init__(self, answer=lambda arena: None) -> None:
        self.fd, self.now, self.answer = create_arena(), 0.0, answer
        self.agent = ArenaReader(self.fd)
        self.lag = PeerLag(ArenaReader(self.fd), clock=lambda: self.now, sleep=self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 0.01)
        self.answer(self.agent)

    def waited(self, step: int, result: SaveResult | None = None) -> float:
        before = self.now
        self.lag.wait(SaveResult(step) if result is None else result)
        return self.now - before


@pytest.fixture
def training():
    made = Training()
    yield made
    os.close(made.fd)


def test_without_a_lag_there_is_no_wait(training):
    assert training.waited(100) == 0


@pytest.mark.parametrize(("lag", "held", "waits"), [(1, 5, False), (1, 4, True), (2, 4, False), (2, 3, True)])
def test_peers_may_be_that_many_steps_behind(training, lag, held, waits):
    training.agent.lag_steps, training.agent.replicated_step = lag, held
    assert (training.waited(5) > 0) is waits


def test_it_goes_on_as_soon_as_peers_have_the_step(training):
    training.agent.lag_steps = 1
    training.answer = lambda agent: setattr(agent, "replicated_step", 5)
    assert 0 < training.waited(5) < 0.1
    assert not training.lag.gave_up


def test_a_peer_that_never_comes_is_waited_for_once(training):
    training.agent.lag_steps = 1
    assert LAG_TIMEOUT_S <= training.waited(5) < LAG_TIMEOUT_S + 0.1
    assert training.waited(6) < 0.1
    training.agent.replicated_step = 7
    training.waited(7)
    assert training.waited(8) >= LAG_TIMEOUT_S  # it was back in between


def test_the_wait_ends_when_the_agent_sets_the_lag_to_zero(training):
    training.agent.lag_steps = 1
    training.answer = lambda agent: setattr(agent, "lag_steps", 0)
    assert training.waited(5) < 0.1


def test_a_save_that_failed_is_not_waited_for(training):
    training.agent.lag_steps = 1
    failed = SaveResult(5)
    failed.mark_failed(RuntimeError("no"))
    assert training.waited(5, failed) == 0
