"""How a new rank and its agent speak through the arena's first page."""

import os

import pytest

from pulsetrain.checkpoint.memory import arena as arenas
from pulsetrain.checkpoint.memory.arena import ArenaReader, ArenaWriter, create_arena
from pulsetrain.checkpoint.resharding import mailbox
from pulsetrain.checkpoint.resharding.saved_tensors import Offer
from pulsetrain.core.errors import CheckpointError, NotReshardable
from tests.checkpoint.resharding.shards import header_of, layout_of, save

OFFER = Offer(step=5, tensors={"w": ("float32", (2, 3))}, layout=b"{}", values=b"[]")


@pytest.fixture
def fd():
    fd = create_arena()
    yield fd
    os.close(fd)


def begun(fd):
    header, head = header_of(layout_of({}), 0, 5, world=1)
    writing = ArenaWriter(fd).begin(header)
    writing.bytes[: len(head)] = head
    return writing


class Agent:
    """Answers when the rank sleeps for the first time."""

    def __init__(self, fd, refusal=""):
        self.arena, self.refusal = ArenaReader(fd), refusal
        self.layout = None

    def sleep(self, _):
        self.layout, payload = mailbox.requested(self.arena)
        payload[:4] = b"full"
        mailbox.answer(self.arena, self.arena.asked, self.refusal)


def test_an_offer_is_seen_by_the_rank_and_by_nobody_who_looks_for_checkpoints(fd):
    save(fd, layout_of({}), 0, 4, world=1)
    mailbox.put_offer(ArenaWriter(fd), 0, OFFER)
    assert mailbox.read_offer(ArenaWriter(fd)) == OFFER
    assert [info.step for info in ArenaReader(fd).published()] == [4]
    mailbox.take_back_offer(ArenaWriter(fd))
    assert mailbox.read_offer(ArenaWriter(fd)) is None


def test_the_answer_to_an_earlier_request_does_not_answer_a_later_one(fd):
    """Of a rank of an attempt that has ended: its slot was half filled."""
    reader, rank = ArenaReader(fd), ArenaWriter(fd)
    rank.asked = 8
    mailbox.answer(reader, 8)
    rank.asked = 16
    mailbox.answer(reader, 8)
    assert rank.answered != rank.asked


def test_what_is_asked_for_is_filled_and_the_offer_is_gone(fd):
    mailbox.put_offer(ArenaWriter(fd), 0, OFFER)
    agent, writing = Agent(fd), begun(fd)
    mailbox.ask(ArenaWriter(fd), writing, timeout_s=5, sleep=agent.sleep)
    assert agent.layout == layout_of({})
    assert bytes(writing.bytes[writing.header.total_bytes - writing.header.payload_bytes :][:4]) == b"full"
    assert mailbox.requested(agent.arena) is None
    assert mailbox.read_offer(ArenaWriter(fd)) is None


def test_a_refusal_says_why(fd):
    with pytest.raises(NotReshardable, match="no rank has it"):
        mailbox.ask(ArenaWriter(fd), begun(fd), timeout_s=5, sleep=Agent(fd, "no rank has it").sleep)


def test_an_agent_that_does_not_answer_is_not_waited_for_without_end(fd):
    ticks = iter(range(100))
    with pytest.raises(CheckpointError, match="nothing of step 5 together for 7 s"):
        mailbox.ask(ArenaWriter(fd), begun(fd), timeout_s=7, clock=lambda: next(ticks), sleep=lambda _: None)


def test_an_agent_that_fills_in_more_and_more_is_waited_for(fd):
    agent, ticks, writing = Agent(fd), iter(range(0, 1000, 5)), begun(fd)

    def sleep(seconds):
        if agent.arena.filled_bytes < 40:
            agent.arena.filled_bytes += 1
        else:
            agent.sleep(seconds)

    mailbox.ask(ArenaWriter(fd), writing, timeout_s=7, clock=lambda: next(ticks), sleep=sleep)
    assert agent.layout == layout_of({})


def test_nothing_is_requested_of_a_new_arena(fd):
    assert mailbox.requested(ArenaReader(fd)) is None


def test_what_two_worlds_have_saved_of_a_large_state_stays_while_a_third_is_filled(fd, monkeypatch):
    monkeypatch.setattr(arenas, "slots_for", lambda size: 2 if size > 4096 else 6)
    for step, world in ((4, 8), (5, 8)):
        save(fd, layout_of({}), 0, step, world=world)
    for attempt, world in enumerate((7, 6, 5), start=1):
        mailbox.put_offer(ArenaWriter(fd), 0, OFFER)
        header, _ = header_of(layout_of({}), 0, 5, world=world, attempt=attempt)
        writing = ArenaWriter(fd).begin(header)
        assert 8 in [info.world for info in ArenaReader(fd).published() if info.step == 5]
        writing.commit()
