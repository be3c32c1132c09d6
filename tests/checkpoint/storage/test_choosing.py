"""All ranks persist the same steps: rank 0 chooses, the others follow what it has begun."""

import dataclasses

import pytest

from pulsetrain.checkpoint.memory.header_page import SLOT_WORDS
from pulsetrain.checkpoint.memory.slots import DURABLE, PINNED, SlotInfo
from pulsetrain.checkpoint.storage.backend import open_storage
from pulsetrain.checkpoint.storage.choosing import ANNOUNCEMENT_S, StepChooser
from pulsetrain.checkpoint.storage.manifest import Checkpoints, folder_of
from pulsetrain.checkpoint.storage.rank_files import file_stem


def waiting(*steps: int, durable: tuple[int, ...] = (), rank: int = 0) -> list[SlotInfo]:
    """Pinned checkpoints, oldest first."""
    empty = SlotInfo(slot=0, **dict.fromkeys(SLOT_WORDS, 0))
    return [
        dataclasses.replace(
            empty, step=step, generation=i, rank=rank, flags=PINNED | DURABLE * (step in durable)
        )
        for i, step in enumerate(steps, start=1)
    ]


class Node:
    """A chooser over a folder, with a clock."""

    def __init__(self, folder) -> None:
        self.now = 100.0
        self.checkpoints = Checkpoints(open_storage(str(folder)), "j")
        self.chooser = StepChooser(self.checkpoints, 0.01, clock=lambda: self.now)

    def announce(self, info: SlotInfo) -> None:
        """Rank 0 writes its table."""
        path = f"{folder_of(info.step)}/{file_stem(info, 0)}.table.json"
        self.checkpoints.storage.put(self.checkpoints.path(path), [b"{}"])

    def choose(self, rank: int, infos: list[SlotInfo]) -> tuple[int | None, list[int]]:
        chosen, overtaken = self.chooser.choose(rank, infos)
        return chosen and chosen.step, [info.step for info in overtaken]


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


def test_rank_0_takes_the_newest_and_gives_the_older_ones_up(node):
    assert node.choose(0, waiting(10)) == (10, [])
    assert node.choose(0, waiting(10, 20, 30)) == (30, [10, 20])


def test_durable_steps_come_first_and_are_never_given_up(node):
    assert node.choose(0, waiting(10, 15, 20, durable=(15,))) == (15, [10])
    assert node.choose(0, waiting(5, 10, durable=(5,))) == (5, [])


def test_another_rank_waits_for_rank_0_to_begin(node):
    infos = waiting(10, 20, rank=1)
    assert node.choose(1, infos) == (None, [])
    node.announce(infos[1])
    assert node.choose(1, infos) == (None, [])  # storage is not asked at every look
    node.now += ANNOUNCEMENT_S
    assert node.choose(1, infos) == (20, [10])


def test_another_rank_takes_the_oldest_that_has_begun(node):
    infos = waiting(10, 20, rank=1)
    node.announce(infos[0])
    node.announce(infos[1])
    assert node.choose(1, infos) == (10, [])


def test_a_step_of_another_attempt_is_not_the_same(node):
    (info,) = waiting(10, rank=1)
    node.announce(dataclasses.replace(info, attempt=3))
    assert node.choose(1, [info]) == (None, [])


def test_of_many_that_wait_only_the_newest_two_may_still_begin(node):
    assert node.choose(1, waiting(10, 20, 30, 40, rank=1)) == (None, [10, 20])
