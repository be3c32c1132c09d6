"""The books of a pool: what is free where, and going back."""

from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.recovery.pool.allocation import Allocation
from tests.recovery.pool.jobs import EAGER, job


def test_blocks_on_nodes_that_are_gone_are_lost():
    allocation = Allocation({"a": 4}, [job("j", "basic", 3, placed={"a": 1, "gone": 2})], EAGER)
    assert allocation.placed["j"] == {"a": 1}
    assert allocation.total_free == 3


def test_the_fullest_nodes_are_filled_first():
    each = job("j", "basic", 3)
    allocation = Allocation({"a": 4, "b": 2, "c": 2}, [each], EAGER)
    allocation.place(each, 3, "a test")
    assert allocation.placed["j"] == {"b": 2, "c": 1}


@given(st.lists(st.tuples(st.sampled_from("jk"), st.sampled_from("ab"), st.integers(1, 2))))
def test_undo_leads_back(changes):
    jobs = {"j": job("j", "basic", 9, placed={"a": 1}), "k": job("k", "basic", 9, unit=2)}
    allocation = Allocation({"a": 8, "b": 8}, jobs.values(), EAGER)
    before = (
        dict(allocation.free),
        {n: dict(p) for n, p in allocation.placed.items()},
        allocation.fits(jobs["k"]),
    )
    mark = allocation.mark()
    for name, node, blocks in changes:
        allocation.add(jobs[name], node, blocks)
    assert sum(allocation.free.values()) == allocation.total_free
    allocation.undo(mark)
    after = (
        dict(allocation.free),
        {n: dict(p) for n, p in allocation.placed.items()},
        allocation.fits(jobs["k"]),
    )
    assert after == before
    assert all(allocation.size(each) == sum(allocation.placed[each.name].values()) for each in jobs.values())
