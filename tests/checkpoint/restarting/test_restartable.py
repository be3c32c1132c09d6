"""What a decorated function sees, with a stand-in for the process's side of a restart."""

import random

import pytest
import torch

from pulsetrain.checkpoint.restarting import restartable as module
from pulsetrain.checkpoint.restarting.parked_rank import ParkedRank, Restart
from pulsetrain.checkpoint.restarting.restartable import restartable
from pulsetrain.checkpoint.rng import NEW_PROCESS_SEED

LOST = RuntimeError("[gloo/transport/tcp/pair.cc] Connection closed by peer")


class Rank:
    """Notes what happens. `abort_comes`: the agent says that a peer is lost."""

    def __init__(self):
        self.happened, self.aborted, self.abort_comes = [], False, True

    def begin(self):
        self.happened.append("begin")
        return self.happened.count("begin") - self.happened.count("end") == 1

    def enter(self):
        self.happened.append("enter")

    def leave(self):
        pass

    def wait_for_abort(self, timeout_s):
        self.happened.append("wait")
        return self.abort_comes

    def end_attempt(self):
        self.happened.append("end_attempt")

    def park(self, reason):
        self.happened.append("park")
        self.aborted = False

    def end(self):
        self.happened.append("end")


@pytest.fixture
def rank(monkeypatch):
    rank = Rank()
    monkeypatch.setattr(module.ParkedRank, "of_process", staticmethod(lambda: rank))
    return rank


def failing(*errors):
    """A function that raises each of these once, and returns its arguments then."""
    left = list(errors)

    def train(*args, **kwargs):
        if left:
            raise left.pop(0)
        return args, kwargs

    return restartable(train)


def test_without_an_agent_it_is_a_plain_call(monkeypatch):
    monkeypatch.setattr(module.ParkedRank, "of_process", staticmethod(lambda: None))
    assert failing()(1, x=2) == ((1,), {"x": 2})
    with pytest.raises(RuntimeError, match="closed by peer"):
        failing(LOST)()


def test_a_lost_peer_calls_it_again_with_the_same_arguments(rank):
    assert failing(LOST)(1, x=2) == ((1,), {"x": 2})
    assert rank.happened == ["begin", "enter", "wait", "end_attempt", "park", "enter", "end"]


def test_each_fault_calls_it_once_more(rank):
    assert failing(LOST, Restart(), LOST)() == ((), {})
    assert rank.happened.count("park") == 3


@pytest.mark.parametrize("error", [ValueError("nan"), SystemExit(3), KeyboardInterrupt()])
def test_an_error_of_its_own_goes_to_the_caller(rank, error):
    with pytest.raises(type(error)):
        failing(error)()
    assert rank.happened == ["begin", "enter", "end"]


def test_an_error_that_looks_like_a_lost_peer_is_its_own_if_the_agent_knows_of_none(rank):
    rank.abort_comes = False
    with pytest.raises(RuntimeError, match="closed by peer"):
        failing(LOST)()
    assert "park" not in rank.happened


def test_whatever_it_raises_once_the_agent_has_ended_the_attempt_is_a_consequence(rank):
    rank.aborted = True
    assert failing(ValueError("half a batch"))() == ((), {})
    assert rank.happened.count("wait") == 0


def test_random_numbers_are_those_of_the_first_call(rank):
    drawn = []

    @restartable
    def train():
        drawn.append(random.random())
        if len(drawn) == 1:
            raise LOST

    train()
    assert drawn[0] == drawn[1]


def test_cuda_that_the_first_call_has_begun_to_use_begins_as_in_a_new_process(rank, monkeypatch):
    """There is no CUDA here: it is in use as soon as the function says so."""
    in_use, seeds = [], []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: bool(in_use))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)

    @restartable
    def train():
        in_use.append(True)
        if len(in_use) == 1:
            raise LOST

    train()
    assert seeds == [NEW_PROCESS_SEED]


def test_a_call_inside_a_call_counts_for_nothing(rank):
    outer = restartable(lambda: failing(LOST)())
    rank.abort_comes = False
    with pytest.raises(RuntimeError, match="closed by peer"):
        outer()
    assert rank.happened == ["begin", "enter", "begin", "wait", "end"]


def test_this_process_has_no_agent():
    ParkedRank.of_process.cache_clear()
    assert ParkedRank.of_process() is None
