"""Each sample once, whatever the number of ranks is and however often it changes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from pulsetrain.core.errors import UsageError
from pulsetrain.elastic.sampler import ElasticSampler, accumulation_steps

stretches = st.lists(st.tuples(st.integers(1, 7), st.integers(0, 5), st.booleans()), min_size=1, max_size=8)
"""Attempts: number of ranks, batches that are done, and whether the last of them is lost and done again."""


def ranks(world, state, **fields):
    made = [ElasticSampler(rank=rank, world=world, **fields) for rank in range(world)]
    for sampler in made:
        if state is not None:
            sampler.load_state_dict(state)
    return made


def do_batches(samplers, limit):
    """Every rank does up to `limit` batches of the epoch. Yields samples of all ranks, and the state."""
    epoch = samplers[0].epoch
    for shares in zip(*[iter(s) for s in samplers], strict=True):
        if limit == 0 or samplers[0].epoch != epoch:
            return
        limit -= 1
        for sampler, share in zip(samplers, shares, strict=True):
            sampler.advance(share)
        used = [index for share in shares for micro in share.microbatches for index in micro]
        assert len(used) == shares[0].total
        assert len({sampler.state_dict()["consumed"] for sampler in samplers}) == 1
        yield used, samplers[0].state_dict()


@given(st.integers(1, 60), st.integers(1, 13), st.integers(1, 5), st.integers(0, 2**40), stretches)
def test_each_sample_of_an_epoch_is_used_once_for_any_schedule_of_world_sizes(
    samples, batch, microbatch, seed, schedule
):
    fields = {"batch": batch, "microbatch": microbatch, "seed": seed, "samples": samples}
    state, used = None, []
    for world, count, lost in [*schedule, (3, 10**9, False)]:
        if state is not None and state["epoch"]:
            break
        done = list(do_batches(ranks(world, state, **fields), count))
        if lost and done:
            done.pop()  # it was not saved, so the next attempt does it again
        used += [sorted(batch_used) for batch_used, _ in done]
        state = done[-1][1] if done else state
    assert sorted(index for batch_used in used for index in batch_used) == list(range(samples))
    alone = [sorted(batch_used) for batch_used, _ in do_batches(ranks(1, None, **fields), 10**9)]
    assert used == alone


attempts = st.lists(
    st.tuples(st.integers(1, 6), st.integers(1, 13), st.integers(1, 5), st.integers(0, 5)), max_size=6
)
"""Number of ranks, global batch, microbatch, and steps that are done."""


@given(st.integers(1, 60), attempts)
def test_each_sample_is_used_once_by_loaders_where_the_batch_changes_with_the_ranks(samples, attempts):
    state, used = None, []
    for world, batch, microbatch, limit in [*attempts, (2, 7, 2, 10**9)]:
        samplers = ranks(world, state, samples=samples, batch=batch, microbatch=microbatch, even=True)
        if samplers[0].epoch:
            break
        loaders = [
            iter(DataLoader(range(samples), batch_sampler=each.microbatches(), collate_fn=list))
            for each in samplers
        ]
        left = samplers[0].microbatches_left() // samplers[0].accumulation
        for _ in range(min(limit, left)):
            total = min(batch, samples - samplers[0].consumed)
            step = [
                index for loader in loaders for _ in range(samplers[0].accumulation) for index in next(loader)
            ]
            assert len(step) == total
            used += step
            for each in samplers:
                each.advance()
        state = samplers[0].state_dict()
        assert all(each.state_dict() == state for each in samplers)
    assert sorted(used) == list(range(samples))


@given(st.integers(1, 100), st.integers(1, 9), st.integers(1, 9))
def test_no_rank_does_more_microbatches_than_it_is_told(batch, world, microbatch):
    samplers = ranks(world, None, samples=batch, batch=batch, microbatch=microbatch)
    counts = [len(share.microbatches) for sampler in samplers for share in sampler]
    assert max(counts) == accumulation_steps(batch, world, microbatch) == samplers[0].accumulation


def test_epochs_and_seeds_have_orders_of_their_own():
    def order(seed, epoch):
        sampler = ElasticSampler(50, batch=50, seed=seed, rank=0, world=1)
        sampler.epoch = epoch
        return next(iter(sampler)).microbatches

    assert order(0, 0) == order(0, 0)
    assert len({order(0, 0), order(0, 1), order(1, 0), order(2**33, 0)}) == 4


def test_a_loader_that_reads_ahead_consumes_nothing():
    sampler = ElasticSampler(10, batch=4, microbatch=2, rank=0, world=1, shuffle=False)
    assert list(sampler.microbatches()) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert sampler.state_dict()["consumed"] == 0


def test_a_loader_that_is_made_once_yields_every_epoch_from_where_it_stands():
    sampler = ElasticSampler(6, batch=4, microbatch=2, rank=0, world=1, shuffle=False)
    loader = DataLoader(range(6), batch_sampler=sampler.microbatches(), collate_fn=list)
    assert (len(loader), list(loader)) == (3, [[0, 1], [2, 3], [4, 5]])
    sampler.advance()
    assert (sampler.consumed, list(loader)) == (4, [[4, 5]])
    sampler.advance()
    assert (sampler.epoch, sampler.consumed) == (1, 0)
    assert list(loader) == [[0, 1], [2, 3], [4, 5]]


@given(
    st.integers(1, 60),
    st.integers(1, 13),
    st.integers(1, 5),
    st.integers(1, 9),
    st.integers(0, 5),
    st.booleans(),
)
def test_the_length_of_a_loader_is_what_it_yields(samples, batch, microbatch, world, done, even):
    for sampler in ranks(world, None, samples=samples, batch=batch, microbatch=microbatch, even=even):
        for _ in range(done):
            sampler.advance()
        assert len(sampler.microbatches()) == sum(1 for _ in sampler.microbatches())


def test_ranks_have_unequal_numbers_of_microbatches_unless_they_shall_be_even():
    fields = {"samples": 80, "batch": 64, "microbatch": 2, "shuffle": False}
    unequal = [next(iter(sampler)) for sampler in ranks(6, None, **fields)]
    assert [len(share.microbatches) for share in unequal] == [6, 6, 6, 6, 5, 5]
    for sampler, share in zip(ranks(6, None, **fields, even=True), unequal, strict=True):
        assert [len(one.microbatches) for one in sampler] == [sampler.accumulation] * 2 == [6, 6]
        first = next(iter(sampler))
        assert first.samples == share.samples
        assert [micro for micro in first.microbatches if micro] == list(share.microbatches)
        assert len(list(sampler.microbatches())) == 12


def test_rank_and_world_are_those_of_the_environment(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert next(iter(ElasticSampler(4, batch=4, shuffle=False))).microbatches == ((1, 3),)


def test_what_does_not_fit_is_one_line():
    sampler = ElasticSampler(10, batch=4, rank=0, world=1)
    with pytest.raises(UsageError, match="9 samples, the data set has 10"):
        sampler.load_state_dict({"seed": 0, "epoch": 0, "consumed": 4, "samples": 9})
    first, second, _ = sampler
    sampler.advance(first)
    with pytest.raises(UsageError, match="batch at sample 0: the next one is at 4"):
        sampler.advance(first)
    sampler.advance(second)
    with pytest.raises(UsageError, match="rank 3 of 2"):
        ElasticSampler(10, batch=4, rank=3, world=2)
    with pytest.raises(UsageError, match="microbatch 0"):
        accumulation_steps(4, 2, 0)
