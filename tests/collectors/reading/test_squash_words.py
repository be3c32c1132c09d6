"""What the agent tells ranks of the others on their device, and what it reads of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.collectors import squash_layout as layout
from pulsetrain.collectors.rank.squash.cell import Page
from pulsetrain.collectors.reading.squash_words import SquashMemory


@pytest.fixture
def memory():
    found = SquashMemory(every=50)
    yield found
    found.close()


def masks(memory, ranks):
    return [Page(memory.fd, rank).words[layout.W_MASK] for rank in ranks]


@given(devices=st.lists(st.integers(0, 3), min_size=1, max_size=8))
def test_each_rank_is_told_of_those_on_its_device_and_of_no_others(devices):
    memory = SquashMemory(every=50)
    ranks = range(len(devices))
    memory.group([[rank for rank in ranks if devices[rank] == d] for d in range(4)])
    for rank, mask in enumerate(masks(memory, ranks)):
        together = [r for r in ranks if devices[r] == devices[rank]]
        assert mask == (sum(1 << r for r in together) if len(together) > 1 else 0)
    memory.close()


def test_each_group_has_a_new_number_and_the_period(memory):
    words = Page(memory.fd, 1).words
    seen = []
    for _ in range(3):
        memory.group([[0, 1]])
        seen.append((words[layout.W_GROUP], words[layout.W_EVERY]))
    assert seen == [(1, 50), (2, 50), (3, 50)]
    memory.group(())
    assert masks(memory, (0, 1)) == [0, 0]


def test_the_first_reason_of_a_rank_stays_and_a_reset_forgets_all(memory):
    page = Page(memory.fd, 2)
    assert memory.stopped(2) == ""
    page.stop("one differs")
    page.stop("another reason")
    page.words[layout.W_TAKEN_OVER] = 7
    assert (memory.stopped(2), memory.stopped(1)) == ("one differs", "")
    assert memory.use(2).taken_over == 7
    memory.reset()
    assert memory.stopped(2) == ""


def test_ranks_beyond_the_last_cell_never_squash(memory):
    memory.group([[60, 61, 62]])
    assert masks(memory, (60, 61)) == [0, 0]
    assert memory.stopped(62) == ""
