"""Each tensor is copied to its place in the slot, and what stays the same is not made again."""

import os

import pytest
import torch

from pulsetrain.checkpoint.copying import HostCopier
from pulsetrain.checkpoint.memory.arena import ArenaWriter, SlotWriter, create_arena
from pulsetrain.checkpoint.memory.layout import encode_values
from pulsetrain.checkpoint.memory.slots import Header, payload_offset
from pulsetrain.checkpoint.slot_targets import LayoutCache, TargetCache
from pulsetrain.checkpoint.state_restore import views
from pulsetrain.checkpoint.statetree import collect


class Adopting(HostCopier):
    """Counts the regions that it was given."""

    def __init__(self) -> None:
        self.regions = []

    def adopt(self, region) -> None:
        self.regions.append(region)


class Saving:
    """Saves a state by hand, into one arena."""

    def __init__(self) -> None:
        self.fd = create_arena()
        self.arena, self.copier = ArenaWriter(self.fd), Adopting()
        self.layouts, self.targets = LayoutCache(), TargetCache(self.copier)

    def begin(self, state):
        leaves = collect(state)
        head, layout = self.layouts.of(state, leaves)
        values = encode_values(leaves.values)
        header = Header(
            step=1,
            attempt=0,
            rank=0,
            world=1,
            layout_bytes=len(head),
            values_bytes=len(values),
            payload_bytes=layout.payload_bytes,
        )
        writing = self.arena.begin(header)
        assert isinstance(writing, SlotWriter)
        return writing, self.targets.pairs(writing, leaves, layout), layout


@pytest.fixture
def saving():
    made = Saving()
    yield made
    os.close(made.fd)


def state() -> dict:
    model = torch.nn.BatchNorm1d(4)
    return {"model": model, "opt": torch.optim.SGD(model.parameters(), lr=0.1), "extra": torch.ones(3)}


def test_every_tensor_lands_at_its_offset(saving):
    live = state()
    writing, pairs, layout = saving.begin(live)
    saving.copier.begin(pairs)
    saving.copier.finish(pairs)
    offset = payload_offset(writing.header.layout_bytes, writing.header.values_bytes)
    stored = dict(zip((e.name for e in layout.entries), views(writing.bytes[offset:], layout), strict=True))
    assert torch.equal(stored["model.weight"], live["model"].weight)
    assert torch.equal(stored["model.running_var"], live["model"].running_var)
    assert torch.equal(stored["extra"], live["extra"])


def test_only_parameters_and_optimizer_state_are_copied_later(saving):
    _, pairs, _ = saving.begin(state())
    assert len(pairs.optimizer_owned[0]) == 2  # weight and bias
    assert len(pairs.volatile[0]) == 4  # three buffers, and the tensor of the script


def test_a_slot_that_is_used_again_keeps_its_targets(saving):
    live = state()
    first, pairs, _ = saving.begin(live)
    again, same_pairs, _ = saving.begin(live)  # the first was not committed: the slot is taken again
    assert again.slot == first.slot
    assert same_pairs.volatile[1][0].data_ptr() == pairs.volatile[1][0].data_ptr()
    assert len(saving.copier.regions) == 1


def test_a_state_that_grows_gets_new_targets(saving):
    live = state()
    saving.begin(live)
    live["more"] = torch.ones(5000)
    _, pairs, layout = saving.begin(live)
    assert len(layout.entries) == len(pairs.volatile[1]) + len(pairs.optimizer_owned[1])
    assert pairs.volatile[1][-1].shape == (5000,)
    assert len(saving.copier.regions) == 2


def test_a_layout_is_made_anew_only_where_the_structure_changes():
    cache, live = LayoutCache(), {"w": torch.zeros(3), "lr": 0.1}
    head, layout = cache.of(live, collect(live))
    live["lr"] = 0.2
    assert cache.of(live, collect(live))[1] is layout
    live["w"] = torch.zeros(4)
    other_head, other = cache.of(live, collect(live))
    assert other is not layout
    assert other_head != head


def test_a_new_optimizer_of_as_many_parameters_has_its_own_names():
    first, second = (torch.nn.Linear(2, 2, bias=False) for _ in range(2))
    layouts = LayoutCache()

    def names(layer) -> list[str]:
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
        layer(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        state = {"first": first, "second": second, "o": optimizer}
        return [entry.name for entry in layouts.of(state, collect(state))[1].entries][2:]

    assert names(first) == ["o.state.first.weight.momentum_buffer"]
    assert names(second) == ["o.state.second.weight.momentum_buffer"]
