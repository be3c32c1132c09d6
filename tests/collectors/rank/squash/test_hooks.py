"""Squashing inside an optimizer's step: between the hooks of the script, where the agent wants it."""

import os

import pytest
import torch

from pulsetrain.collectors.rank.squash import hooks
from pulsetrain.collectors.rank.squash.cell import Page
from pulsetrain.collectors.rank.squash.squasher import Squasher
from pulsetrain.collectors.reading.squash_words import SquashMemory


@pytest.fixture
def memory(monkeypatch):
    found = SquashMemory(every=9)
    monkeypatch.setenv(hooks.SQUASH_FD, str(found.fd))
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setattr(torch.optim.Optimizer, "profile_hook_step", torch.optim.Optimizer.profile_hook_step)
    yield found
    found.close()


class Replaced:
    """A squasher that leaves every update out."""

    def __init__(self):
        self.seen = []

    def step(self, optimizer, compute, *, plain):
        self.seen.append(plain)


def test_an_update_that_is_left_out_still_has_the_hooks_around_it(memory, watched):
    squasher = Replaced()

    class Fresh(torch.optim.SGD):
        def step(self, closure=None):
            raise AssertionError("it is left out")

    Fresh.step = torch.optim.Optimizer.profile_hook_step(
        hooks.squashed(Fresh.step, squasher, Page(memory.fd, 0), watched.handle)
    )
    Fresh.step.hooked = True
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    optimizer = Fresh([parameter], lr=0.1)
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    optimizer.step()
    optimizer.step(lambda: 1.0)
    assert seen == ["before", "after"] * 2
    assert squasher.seen == [True, False], "one with a closure is computed"


def test_an_optimizer_made_after_the_install_computes_as_ever_while_nobody_shares(memory, watched):
    hooks.install(watched.handle)

    class Later(torch.optim.SGD):
        def step(self, closure=None):
            return "computed"

    assert Later([torch.nn.Parameter(torch.ones(1))], lr=0.1).step() == "computed"
    assert len(watched.handle.before_restart) == 1
    assert memory.use(0).taken_over == 0


def test_in_a_forked_child_every_update_is_computed(memory, watched):
    squasher = Replaced()
    step = hooks.squashed(lambda optimizer: "computed", squasher, Page(memory.fd, 0), watched.handle)
    watched.handle.state = None
    assert step(None) == "computed"
    assert squasher.seen == []


def test_without_the_agents_memory_nothing_is_hooked(watched, monkeypatch):
    monkeypatch.delenv(hooks.SQUASH_FD, raising=False)
    original = torch.optim.Optimizer.profile_hook_step
    hooks.install(watched.handle)
    assert torch.optim.Optimizer.profile_hook_step is original


def test_forks_of_the_rank_are_announced_to_it_and_those_of_its_children_are_not(
    memory, watched, monkeypatch
):
    registered, forks = [], []
    monkeypatch.setattr(os, "register_at_fork", lambda **hooks: registered.append(hooks["before"]))
    monkeypatch.setattr(Squasher, "before_fork", lambda self: forks.append(self))
    hooks.install(watched.handle)
    (before,) = registered
    before()
    watched.handle.state = None
    before()
    assert len(forks) == 1
