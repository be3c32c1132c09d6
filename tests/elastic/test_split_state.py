"""State of ranks that hold units which are no neighbours: saved at some degrees, taken at others."""

import itertools

import pytest
import torch
from torch import nn

from pulsetrain.checkpoint.memory.layout import decode, decode_values, encode_values, rebuild
from pulsetrain.checkpoint.reshard import load_state
from pulsetrain.checkpoint.resharding.saved_tensors import SavedTensors, naming_ranks
from pulsetrain.checkpoint.saved_trees import SavedTrees
from pulsetrain.checkpoint.state_restore import put_back
from pulsetrain.checkpoint.statetree import collect, layout_of
from pulsetrain.core.errors import CheckpointError, UsageError
from pulsetrain.elastic.gradient_sync import ParameterLayout
from pulsetrain.elastic.saved_optimizer import SavedOptimizer, TensorName
from pulsetrain.elastic.split_state import split_state
from pulsetrain.elastic.unequal_replicas import UnequalReplicas
from tests.elastic.unequal_job import SPLIT, rows_of, whole_model

RATE = 0.125


class Rank:
    """One rank's share of a model that everybody changes alike."""

    def __init__(self, degrees, rank, *, seed=0.0):
        self.at = UnequalReplicas(degrees=degrees, rank=rank)
        self.layouts = {name: self.layout(name, tensor + seed) for name, tensor in whole_model().items()}
        parameters = [layout.parameter for layout in self.layouts.values()]
        self.optimizer = torch.optim.AdamW(parameters, lr=RATE)
        self.state = split_state(self.layouts, self.optimizer, self.at.local_rank)

    def layout(self, name, tensor):
        if name not in SPLIT:
            return ParameterLayout(parameter=nn.Parameter(tensor.clone()))
        axis, units, size = SPLIT[name]
        part = self.cut(name, tensor)
        mapping = self.at.mapping(units)
        return ParameterLayout(parameter=nn.Parameter(part), mapping=mapping, dim=axis, unit_size=size)

    def cut(self, name, tensor):
        axis, units, size = SPLIT[name]
        return tensor.index_select(axis, torch.tensor(rows_of(self.at.held(units), size), dtype=torch.long))

    def step(self):
        """A step whose gradients are those of the whole model, whatever the degrees."""
        for name, layout in self.layouts.items():
            gradient = whole_model()[name].sin()
            layout.parameter.grad = self.cut(name, gradient) if name in SPLIT else gradient
        self.optimizer.step()

    def content(self):
        """All that a checkpoint has, by name and place."""
        leaves = collect(self.state)
        layout = layout_of(self.state, leaves)
        found = {(e.name, e.box): t.clone() for e, t in zip(layout.entries, leaves.locals, strict=True)}
        return found, layout, leaves.values


class Saved:
    """What all ranks of a world have saved, as a restore reads it."""

    step = 1

    def __init__(self, ranks):
        self.contents = [rank.content() for rank in ranks]
        layouts = {n: decode(layout.encode()) for n, (_, layout, _) in enumerate(self.contents)}
        self.index = SavedTensors(layouts)
        self.index.check_whole()
        self.tensors = self.index.tensors
        self.wholes = {name: self.whole(name) for name in self.tensors}
        self.trees = SavedTrees(
            (layouts[rank], decode_values(encode_values(self.contents[rank][2])))
            for rank in naming_ranks(layouts)
        )

    def whole(self, name):
        kind = self.tensors[name]
        whole = torch.full(kind.shape, torch.nan, dtype=getattr(torch, kind.dtype))
        for (saved, (start, size, _)), tensor in itertools.chain(*(c[0].items() for c in self.contents)):
            if saved == name:
                place = tuple(slice(a, a + n) for a, n in zip(start, size, strict=True))
                assert torch.isnan(whole[place]).all() or torch.equal(whole[place], tensor)
                whole[place] = tensor
        assert not torch.isnan(whole).any(), name
        return whole

    def read(self, name, start=(), size=None):
        whole = self.wholes[name]
        ends = whole.shape if size is None else [a + n for a, n in zip(start, size, strict=True)]
        place = tuple(slice(a, end) for a, end in zip(start or [0] * whole.dim(), ends, strict=True))
        return whole[place].contiguous().numpy().tobytes()


def world(degrees, **more):
    return [Rank(degrees, rank, **more) for rank in range(sum(degrees))]


def trained(degrees, steps=2):
    ranks = world(degrees)
    for _ in range(steps):
        for rank in ranks:
            rank.step()
    return ranks


@pytest.mark.parametrize("before", [(4, 4), (4, 3), (3,)], ids=str)
@pytest.mark.parametrize("after", [(4, 3), (4, 4), (3, 2), (12,)], ids=str)
def test_ranks_of_other_degrees_get_what_they_hold_now_and_train_on_alike(before, after):
    saved = Saved(trained(before))
    ranks = world(after, seed=9.0)
    for rank in ranks:
        load_state(saved, rank.state, saved.trees)
        rank.step()
    for rank, expected in zip(ranks, trained(after, steps=3), strict=True):
        found, wanted = rank.content()[0], expected.content()[0]
        assert found.keys() == wanted.keys()
        assert all(torch.equal(found[key], wanted[key]) for key in wanted)


def test_names_are_those_of_a_model_that_is_split_otherwise():
    names = set(Saved(trained((4, 3))).tensors)
    assert {"model.up", "model.bias", "optimizer.state.up.exp_avg", "optimizer.state.up.step"} <= names
    assert not [name for name in names if "@" in name]


class Unsplit(Rank):
    """The same model in an ordinary module, which one rank holds whole."""

    def __init__(self, *, seed=0.0):
        self.module = nn.Module()
        for name, tensor in whole_model().items():
            self.module.register_parameter(name, nn.Parameter(tensor + seed))
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=RATE)
        self.state = {"model": self.module, "optimizer": self.optimizer}

    def step(self):
        for name, parameter in self.module.named_parameters():
            parameter.grad = whole_model()[name].sin()
        self.optimizer.step()


def test_an_ordinary_model_loads_what_ranks_of_unequal_replicas_have_saved_and_they_load_what_it_has():
    ordinary = Unsplit(seed=9.0)
    saved = Saved(trained((4, 3)))
    load_state(saved, ordinary.state, saved.trees)
    for (name, _), tensor in ordinary.content()[0].items():
        assert torch.equal(saved.wholes[name], tensor), name
    ordinary.step()
    saved = Saved([ordinary])
    for rank, expected in zip(world((4, 3), seed=9.0), trained((4, 3), steps=3), strict=True):
        load_state(saved, rank.state, saved.trees)
        found, wanted = rank.content()[0], expected.content()[0]
        assert all(torch.equal(found[key], wanted[key]) for key in wanted)


def test_a_rank_gets_back_what_it_has_saved_itself():
    ranks = trained((4, 3))
    for number, rank in enumerate(ranks):
        content, layout, values = rank.content()
        saved = rebuild(layout.tree, list(content.values()), values)
        again = Rank((4, 3), number, seed=5.0)
        put_back(again.state, saved)
        found = again.content()[0]
        assert all(torch.equal(found[key], tensor) for key, tensor in content.items())


def test_what_was_saved_at_other_degrees_is_refused_where_parts_cannot_be_read():
    content, layout, values = trained((4, 3))[3].content()
    saved = rebuild(layout.tree, list(content.values()), values)
    with pytest.raises(CheckpointError, match="qkv: saved at other degrees of tensor parallelism"):
        put_back(Rank((4, 4), 3).state, saved)


def test_a_parameter_whose_name_begins_another_one_takes_its_own_state_alone():
    class Kind:
        shape, dtype = (2,), "float32"

    parameters = {name: nn.Parameter(torch.zeros(2)) for name in ("a", "a.b")}
    optimizer = torch.optim.SGD(parameters.values(), lr=RATE, momentum=0.5)
    layouts = {name: ParameterLayout(parameter=p) for name, p in parameters.items()}
    kinds = {f"state.{name}.momentum_buffer": Kind() for name in parameters}
    state = split_state(layouts, optimizer, 0)["optimizer"]
    named = {n: {"momentum_buffer": TensorName(f"state.{n}.momentum_buffer")} for n in parameters}
    saved = SavedOptimizer(state=named, groups=optimizer.state_dict()["param_groups"])
    state.take_parts(kinds, lambda full, part: part.fill_(len(full)), saved)
    taken = {name: optimizer.state[parameter] for name, parameter in parameters.items()}
    lengths = {name: len(f"state.{name}.momentum_buffer") for name in parameters}
    assert {name: list(of) for name, of in taken.items()} == {n: ["momentum_buffer"] for n in parameters}
    assert {name: of["momentum_buffer"][0].item() for name, of in taken.items()} == lengths


def test_numbers_and_lists_of_an_optimizer_come_back_too():
    class Kind:
        shape, dtype = (2,), "float32"

    parameter = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([parameter], lr=RATE)
    state = split_state({"a": ParameterLayout(parameter=parameter)}, optimizer, 0)["optimizer"]
    named = {"step": 3, "factors": [TensorName("state.a.factors.0")]}
    saved = SavedOptimizer(state={"a": named}, groups=optimizer.state_dict()["param_groups"])
    state.take_parts({"state.a.factors.0": Kind()}, lambda _, part: part.fill_(5.0), saved)
    assert optimizer.state[parameter]["step"] == 3
    assert optimizer.state[parameter]["factors"][0].tolist() == [5.0, 5.0]


def test_a_learning_rate_that_is_a_tensor_comes_back_as_one_at_other_degrees():
    ranks = trained((4, 4))
    for rank in ranks:
        rank.optimizer.param_groups[0]["lr"] = torch.tensor(0.25)
    saved, live = Saved(ranks), world((4, 3), seed=9.0)[0]
    load_state(saved, live.state, saved.trees)
    rate = live.optimizer.param_groups[0]["lr"]
    assert isinstance(rate, torch.Tensor)
    assert float(rate) == 0.25
    live.step()


@pytest.mark.parametrize("by_itself", [True, False])
def test_state_keeps_more_digits_than_its_parameter(by_itself):
    def job():
        parameter = nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))
        optimizer = torch.optim.SGD([parameter], lr=RATE, momentum=0.5)
        return optimizer, split_state({"a": ParameterLayout(parameter=parameter)}, optimizer, 0)

    third = torch.tensor([1 / 3, 2 / 3])  # bfloat16 cannot hold them
    optimizer, state = job()
    [parameter] = optimizer.param_groups[0]["params"]
    optimizer.state[parameter]["momentum_buffer"] = third.clone()
    again, taking = job()
    if by_itself:
        taking["optimizer"].load_state_dict(state["optimizer"].state_dict())
    else:
        names = {"a": {"momentum_buffer": TensorName("state.a.momentum_buffer")}}
        saved = SavedOptimizer(state=names, groups=optimizer.state_dict()["param_groups"])
        kind = type("Kind", (), {"shape": (2,), "dtype": "float32"})
        taking["optimizer"].take_parts(
            {"state.a.momentum_buffer": kind}, lambda _, part: part.copy_(third), saved
        )
    [kept] = (state["momentum_buffer"] for state in again.state.values())
    assert kept.dtype == torch.float32
    assert torch.equal(kept, third)


def test_an_optimizer_with_a_parameter_that_nobody_named_is_refused():
    rank = Rank((4, 3), 0)
    other = torch.optim.SGD([nn.Parameter(torch.ones(2))])
    with pytest.raises(UsageError, match="1 parameters of the optimizer have no layout"):
        split_state(rank.layouts, other, 0)


def test_ranks_that_hold_other_parts_have_other_numbers_and_replicas_the_same():
    numbers = [rank.content()[1].shard for rank in trained((3, 3))]
    assert numbers[:3] == numbers[3:]
    assert len(set(numbers)) == 3
    assert 0 not in numbers


def test_copies_overlap_with_forward_and_backward_because_only_the_optimizer_changes_it():
    leaves = collect(trained((4, 3))[0].state)
    assert leaves.tensors
    assert all(leaves.optimizer_owned)
