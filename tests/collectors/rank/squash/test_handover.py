"""Tensors that come to another replica by shared pages: equal, and each with a life of its own afterwards."""

import pytest
import torch

from pulsetrain.collectors import squash_layout as layout
from pulsetrain.collectors.rank.squash import contents
from pulsetrain.collectors.rank.squash.contents import Contents, Entry
from pulsetrain.collectors.rank.squash.handover import SharedPages
from pulsetrain.collectors.reading.squash_words import SquashMemory
from tests.collectors.rank.squash.test_contents import trained


@pytest.fixture
def memory():
    found = SquashMemory(every=4)
    yield found
    found.close()


def values(optimizer):
    return [entry.tensor.detach().clone() for entry in contents.read(optimizer).entries]


def same(ours, theirs):
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.fixture
def ends(memory):
    """A root that has made one update more, its sharer, and their handovers."""
    at = layout.region_at(0, 0)
    return trained(steps=3), trained(steps=2), SharedPages(memory.fd, at), SharedPages(memory.fd, at)


def hand_over(ends, buffer):
    root, sharer, publishes, takes = ends
    now = contents.read(root)
    publishes.publish(now, buffer)
    assert takes.take(contents.read(sharer), buffer, len(now.numbers)) == now.numbers


def test_a_sharer_has_what_the_root_has_computed_and_its_tensors_stay_the_same_objects(ends):
    root, sharer, _, _ = ends
    parameter = sharer.param_groups[0]["params"][0]
    hand_over(ends, 1)
    assert same(values(root), values(sharer))
    address = parameter.data_ptr()
    with torch.no_grad():
        root.param_groups[0]["params"][0].add_(1)
    assert not same(values(root), values(sharer))
    hand_over(ends, 0)
    assert same(values(root), values(sharer))
    assert sharer.param_groups[0]["params"][0] is parameter
    assert parameter.data_ptr() == address, "no tensor moves twice"


def test_state_that_outgrew_its_buffer_is_not_published_into_the_other_one(ends):
    grown = torch.empty(layout.BUFFER_BYTES // 4 + 1, device="meta")
    with pytest.raises(ValueError, match="a buffer has"):
        ends[2].publish(Contents((Entry("exp_avg of parameter 0", grown, 0),), 0, (), b"[]"), 0)


def test_what_a_sharer_writes_is_its_own(ends):
    root, sharer, _, _ = ends
    before = values(root)
    hand_over(ends, 0)
    for parameter in sharer.param_groups[0]["params"]:
        parameter.grad = torch.ones_like(parameter)
    sharer.step()
    assert same(values(root), before)
    fresh = trained(steps=2)
    ends[3].take(contents.read(fresh), 0, 0)
    assert same(values(fresh), before)


@pytest.mark.parametrize("how", ["keep", "close"])
def test_a_sharer_that_keeps_what_it_has_depends_on_no_buffer(ends, how, memory):
    _, sharer, publishes, takes = ends
    hand_over(ends, 0)
    before = values(sharer)
    getattr(takes, how)()
    publishes.publish(contents.read(trained(steps=5)), 0)
    assert same(values(sharer), before)
    if how == "close":
        memory.reset()
        assert same(values(sharer), before)


def test_a_parameter_whose_memory_the_script_sees_elsewhere_stays_where_it_is(ends):
    root, sharer, _, _ = ends
    parameter = sharer.param_groups[0]["params"][0]
    seen = parameter.detach().view(-1)
    hand_over(ends, 0)
    assert torch.equal(seen, root.param_groups[0]["params"][0].detach().view(-1))


def test_what_is_saved_of_a_parameter_is_the_parameter_alone(ends, tmp_path):
    hand_over(ends, 0)
    parameter = ends[1].param_groups[0]["params"][0]
    assert parameter.untyped_storage().nbytes() == parameter.nbytes
