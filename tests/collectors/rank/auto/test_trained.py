"""What counts as training state, and how much of it."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pulsetrain.collectors.rank.auto import trained
from pulsetrain.collectors.rank.auto.trained import ALIKE, TrainedState, size, tensors_in


def model():
    return nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4))


def trained_by(*parameters, cls=torch.optim.Adam):
    state, optimizer = TrainedState(), cls(parameters, lr=0.1)
    state.add(optimizer)
    return state, optimizer


@pytest.fixture
def job():
    net = model()
    state, optimizer = trained_by(*net.parameters())
    net(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    return net, optimizer, state


def test_a_model_is_all_of_it_in_any_precision(job):
    net, _, state = job
    for saved in (
        net,
        net.state_dict(),
        {"model": net.state_dict()},
        [copy.deepcopy(net).half().state_dict()],
    ):
        assert state.share(saved) == pytest.approx(1.0)


def test_an_optimizer_adds_its_moments(job):
    net, optimizer, state = job
    assert state.share(optimizer.state_dict()) == pytest.approx(2.0)
    assert state.share({"model": net.state_dict(), "optimizer": optimizer.state_dict()}) == pytest.approx(3.0)


def test_a_list_of_very_many_numbers_is_not_walked_through():
    class Number(float):
        """A number that notes how often it is looked at."""

        looked = 0

        @property
        def __class__(self):
            Number.looked += 1
            return float

    weight = torch.ones(2)
    saved = {"losses": [Number()] * 500_000, "sizes": dict.fromkeys(range(500_000), 1), "weight": weight}
    assert list(tensors_in(saved)) == [weight]
    assert Number.looked <= 10 * ALIKE


@pytest.mark.parametrize(
    "saved",
    [
        None, {}, "text", b"bytes", {"vocabulary": list(range(10_000))}, {"step": torch.tensor(3)},
        torch.zeros(100_000, dtype=torch.long), {"embeddings": torch.zeros(999, 77)}, object(),
    ],
)  # fmt: skip
def test_other_things_are_none_of_it(job, saved):
    assert job[2].share(saved) == 0.0


def test_before_the_first_step_of_an_optimizer_nothing_is_known():
    assert TrainedState().share(model().state_dict()) == 0.0


def test_an_adapter_that_is_trained_alone_is_all_of_it():
    frozen, adapter = nn.Linear(100, 100), nn.Linear(4, 4)
    state, _ = trained_by(*adapter.parameters())
    assert state.share(adapter.state_dict()) == pytest.approx(1.0)
    assert state.share(frozen.state_dict()) == 0.0


def test_a_flat_buffer_is_saved_in_pieces_of_other_sizes():
    net = model()
    flat = nn.Parameter(torch.cat([p.detach().flatten() for p in net.parameters()]))
    state, _ = trained_by(flat)
    assert state.share(net.state_dict()) == pytest.approx(1.0)


def test_several_flat_buffers_are_saved_in_pieces_of_other_sizes():
    """FSDP1 makes one for each block."""
    state, _ = trained_by(*(nn.Parameter(torch.zeros(20_000)) for _ in range(3)))
    saved = {str(i): torch.zeros(100, 300) for i in range(2)}
    assert state.share(saved) == pytest.approx(1.0)


def test_biases_that_are_trained_alone_are_no_flat_buffers():
    biases = [nn.Parameter(torch.zeros(64)) for _ in range(3)]
    state, _ = trained_by(*biases)
    assert state.share({"embeddings": torch.zeros(999, 77)}) == 0.0
    assert state.share(biases) == pytest.approx(1.0)


def test_buffers_that_an_optimizer_holds_only_while_it_steps_are_all_remembered():
    """ZeRO-3 gives it one at a time, again in each step, and leaves it empty."""
    buffers = [nn.Parameter(torch.zeros(20_000)) for _ in range(3)]
    state, optimizer = TrainedState(), torch.optim.Adam(buffers, lr=0.1)
    for buffer in buffers * 2:
        optimizer.param_groups[0]["params"] = [buffer]
        optimizer.step()
        state.add(optimizer)
        optimizer.param_groups[0]["params"] = []
    assert state.share({"shard": torch.zeros(60_000)}) == pytest.approx(1.0)


def test_an_optimizer_that_is_gone_counts_no_more():
    net = model()
    state, optimizer = trained_by(*net.parameters())
    del optimizer
    assert state.share(net.state_dict()) == 0.0


def test_parameters_are_sized_once_a_step_and_only_for_what_may_be_a_checkpoint(job, monkeypatch):
    """Scripts save small things often, as one file for each sample."""
    net, optimizer, state = job
    sized = []
    monkeypatch.setattr(trained, "size", lambda p: sized.append(p) or size(p))
    for saved in ({"loss": 0.5}, {"tokens": torch.arange(160)}):
        assert state.share(saved) == 0.0
    assert sized == []
    for _ in range(3):
        assert state.share(net.state_dict()) == pytest.approx(1.0)
    assert len(sized) == 4
    state.add(optimizer)
    assert state.share(net.state_dict()) == pytest.approx(1.0)
    assert len(sized) == 8


def test_each_tensor_is_yielded_once_also_in_circles():
    tensor = torch.ones(3)
    circle = {"a": tensor, "b": [tensor, (tensor,)]}
    circle["self"] = circle
    assert list(tensors_in(circle)) == [tensor]


class Hostile(dict):
    def values(self):
        raise RuntimeError("the script's own code ran")


class HostileList(list):
    def __iter__(self):
        raise RuntimeError("the script's own code ran")


def test_no_code_of_the_script_runs():
    tensor = torch.ones(3)
    assert list(tensors_in(Hostile(a=tensor))) == [tensor]
    assert list(tensors_in(HostileList([tensor]))) == [tensor]


TREES = st.recursive(
    st.sampled_from([1, "x", None, torch.ones(2), torch.ones(5)]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=20,
)


@given(TREES)
def test_looking_changes_nothing(tree):
    before = repr(tree)
    assert {id(t) for t in tensors_in(tree)} <= {id(torch), *_ids(tree)}
    assert repr(tree) == before


def _ids(tree):
    if isinstance(tree, dict):
        tree = list(tree.values())
    return [i for item in tree for i in _ids(item)] if isinstance(tree, list) else [id(tree)]
