"""A batch that changes with the number of ranks, and its learning rate."""

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.core.errors import UsageError
from pulsetrain.elastic import batch_scaling
from pulsetrain.elastic.batch_scaling import scaled_batch
from pulsetrain.elastic.sampler import ElasticSampler


@given(st.integers(1, 9), st.integers(1, 16), st.integers(1, 16))
def test_each_rank_keeps_its_samples_and_the_rate_follows_the_batch(share, full_world, world):
    full = share * full_world
    linear = scaled_batch(full, full_world=full_world, world=world)
    root = scaled_batch(full, full_world=full_world, world=world, rule="sqrt")
    assert linear.batch == root.batch == share * world
    assert linear.learning_rate_factor == pytest.approx(linear.batch / full)
    assert root.learning_rate_factor**2 == pytest.approx(linear.learning_rate_factor)


def test_a_sampler_goes_on_with_another_batch_and_uses_each_sample_once():
    used, state = [], None
    for world, batches in ((4, 3), (3, 2), (4, 99)):
        batch = scaled_batch(8, full_world=4, world=world).batch
        sampler = ElasticSampler(50, batch=batch, rank=0, world=1)
        if state is not None:
            sampler.load_state_dict(state)
        for number, share in enumerate(sampler):
            if number == batches:
                break
            used += share.microbatches[0]
            sampler.advance(share)
        state = sampler.state_dict()
    assert state["epoch"] == 1
    assert sorted(used) == list(range(50))


def test_what_does_not_fit_is_one_line():
    with pytest.raises(UsageError, match="batch 10 of 4 ranks"):
        scaled_batch(10, full_world=4, world=2)
    with pytest.raises(UsageError, match="rule 'cubic': allowed: linear, sqrt"):
        scaled_batch(8, full_world=4, world=2, rule="cubic")


def test_the_example_in_the_docstring_holds():
    assert doctest.testmod(batch_scaling).failed == 0
