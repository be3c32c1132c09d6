"""Each item of an iterable once, whatever the number of ranks is and however often it changes."""

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.core.errors import UsageError
from pulsetrain.elastic import stream
from pulsetrain.elastic.stream import ElasticStream
from tests.elastic.test_sampler import stretches


class Counted:
    """Items of an epoch, from a source that keeps its own state. `read` counts what it has given out."""

    def __init__(self, items):
        self.items, self.at, self.read = items, 0, 0

    def __iter__(self):
        while self.at < self.items:
            self.at, self.read = self.at + 1, self.read + 1
            yield self.at - 1

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def ranks(world, state, source, **fields):
    made = [ElasticStream(source, rank=rank, world=world, **fields) for rank in range(world)]
    for each in made:
        if state is not None:
            each.load_state_dict(state)
    return made


def do_batches(streams, limit):
    """Every rank does up to `limit` batches of the epoch. Yields items of all ranks, and the state."""
    for shares in zip(*map(iter, streams), strict=True):
        if limit == 0:
            return
        limit -= 1
        for each, share in zip(streams, shares, strict=True):
            each.advance(share)
        used = [item for share in shares for micro in share.microbatches for item in micro]
        assert len(used) == shares[0].total
        states = [each.state_dict() for each in streams]
        assert all(state == states[0] for state in states)
        yield used, states[0]


@given(st.integers(1, 60), st.integers(1, 13), st.integers(1, 5), st.booleans(), stretches)
def test_each_item_of_an_epoch_is_used_once_for_any_schedule_of_world_sizes(
    items, batch, microbatch, stateful, schedule
):
    def source(epoch):
        return Counted(items) if stateful else range(items)

    fields = {"batch": batch, "microbatch": microbatch, "source": source}
    state, used = None, []
    for world, count, lost in [*schedule, (3, 10**9, False)]:
        if state is not None and state["epoch"]:
            break
        done = list(do_batches(ranks(world, state, **fields), count))
        if lost and done:
            done.pop()  # it was not saved, so the next attempt does it again
        used += [sorted(batch_used) for batch_used, _ in done]
        state = done[-1][1] if done else state
    assert sorted(item for batch_used in used for item in batch_used) == list(range(items))
    assert used == [list(range(at, min(at + batch, items))) for at in range(0, items, batch)]
    assert state == {"epoch": 1, "consumed": 0, "source": None}


@given(st.integers(1, 100), st.integers(1, 9), st.integers(1, 9))
def test_no_rank_does_more_microbatches_than_it_is_told(batch, world, microbatch):
    streams = ranks(world, None, lambda epoch: range(batch), batch=batch, microbatch=microbatch)
    counts = [len(share.microbatches) for each in streams for share in each]
    assert max(counts) == streams[0].accumulation


def test_a_source_with_a_state_is_not_read_again_from_its_beginning():
    first = ElasticStream(lambda epoch: Counted(100), batch=10, rank=0, world=1)
    for share in first:
        first.advance(share)
        if first.consumed == 90:
            break
    made = []

    def source(epoch):
        made.append(Counted(100))
        return made[-1]

    _, state = next(do_batches(ranks(2, first.state_dict(), source, batch=10), 1))
    assert [each.read for each in made] == [10, 10]
    assert state["epoch"] == 1


class Live(Counted):
    """Tells where it stands by something that it changes later."""

    def __init__(self, items):
        super().__init__(items)
        self.told = {"at": 0}

    def state_dict(self):
        self.told["at"] = self.at
        return {"inner": self.told}

    def load_state_dict(self, state):
        self.at = state["inner"]["at"]


def test_what_a_source_told_does_not_change_when_more_is_read():
    first = ElasticStream(lambda epoch: Live(100), batch=10, rank=0, world=1)
    for share in first:
        first.advance(share)
        if first.consumed == 20:
            break
    assert first.state_dict()["source"] == {"inner": {"at": 20}}


def test_each_epoch_has_a_source_of_its_own_and_an_epoch_that_fills_its_last_batch_ends():
    each = ElasticStream(lambda epoch: [f"{epoch}.{n}" for n in range(4)], batch=2, rank=0, world=1)
    seen = []
    while each.epoch < 2:
        for share in each:
            seen += [item for micro in share.microbatches for item in micro]
            each.advance(share)
    assert seen == ["0.0", "0.1", "0.2", "0.3", "1.0", "1.1", "1.2", "1.3"]


def test_a_loader_that_reads_ahead_consumes_nothing():
    each = ElasticStream(lambda epoch: range(10), batch=4, rank=0, world=1)
    assert [share.total for share in each] == [4, 4, 2]
    assert each.state_dict()["consumed"] == 0


def test_rank_and_world_are_those_of_the_environment(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert next(iter(ElasticStream(lambda epoch: range(4), batch=4))).microbatches == ((1, 3),)


def test_what_does_not_fit_is_one_line():
    each = ElasticStream(lambda epoch: range(8), batch=4, rank=0, world=1)
    first, _ = each
    each.advance(first)
    with pytest.raises(UsageError, match="batch at item 0: the next one is at 4"):
        each.advance(first)
    each.load_state_dict({"epoch": 0, "consumed": 9, "source": None})
    with pytest.raises(UsageError, match="no item 9 in epoch 0"):
        next(iter(each))
    with pytest.raises(UsageError, match="rank 3 of 2"):
        ElasticStream(lambda epoch: (), batch=4, rank=3, world=2)


def test_the_example_in_the_docstring_holds():
    assert doctest.testmod(stream).failed == 0


def test_every_rank_has_as_many_microbatches_where_they_shall_be_even():
    shares = [
        list(ElasticStream(lambda _: range(9), batch=6, microbatch=1, even=True, rank=rank, world=4))
        for rank in range(4)
    ]
    assert [[len(share.microbatches) for share in of_rank] for of_rank in shares] == [[2, 2]] * 4
    assert shares[3][0].microbatches == ((3,), ())
