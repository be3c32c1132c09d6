"""The devices of a node: who is told to share which, and that a killed rank gives its device back."""

import os
import signal
import threading
from dataclasses import dataclass, field

import pytest

from pulsetrain.agent.processes.devices import SharedDevices
from pulsetrain.collectors import squash_layout as layout
from pulsetrain.collectors.layout import W_DEVICE_FOLLOWS, W_DEVICE_ORDER, W_DEVICE_REFUSED
from pulsetrain.collectors.rank.device_turns import FileLocks
from pulsetrain.collectors.rank.squash.cell import Page
from pulsetrain.collectors.reading.squash_words import SquashMemory
from pulsetrain.core.errors import UsageError
from tests.collectors.rank.watched import Watched

WORLD = {"world_size": 4, "program": 0}


@dataclass
class Rank:
    """A rank that was told of its device. `follow` obeys."""

    rank: int
    coordinates: dict[str, int] | None = None
    code: int | None = None
    ring: Watched = field(default_factory=lambda: Watched(slots=64))

    @property
    def device(self):
        return self.ring.reader.device

    def follow(self) -> None:
        words = self.ring.handle.state.words
        words[W_DEVICE_FOLLOWS] = words[W_DEVICE_ORDER]


@pytest.fixture
def devices():
    shared = SharedDevices()
    yield shared
    shared.close()


def test_ranks_are_told_to_share_and_to_share_no_more(devices):
    ranks = [Rank(n) for n in range(4)]
    assert devices.share(ranks, 2) == {0: 0, 1: 0, 2: 1, 3: 1}
    assert [rank.device.device for rank in ranks] == [0, 0, 1, 1]
    assert devices.number == 2
    assert devices.share(ranks, 4) == {}
    assert {rank.device.device for rank in ranks} == {-1}
    assert devices.number == 0


def test_orders_of_two_commands_do_not_mix(devices):
    ranks = [Rank(n) for n in range(4)]
    other = threading.Thread(target=devices.share, args=(ranks, 1))

    class First(Rank):
        """Another command comes while this rank is told."""

        @property
        def device(self):
            if other.ident is None and devices.number:
                other.start()
                other.join(0.1)
            return super().device

    ranks[0] = First(0)
    devices.share(ranks, 2)
    other.join(40)
    assert [rank.device.device for rank in ranks] == [0, 0, 0, 0]
    assert devices.number == 1


def test_the_mesh_decides_who_shares_and_is_remembered_for_the_next_attempt(devices):
    ranks = [Rank(n, {"tp": n % 2, "dp": n // 2}) for n in range(4)]
    expected = {0: 0, 2: 0, 1: 1, 3: 1}
    assert devices.share(ranks, 2) == expected
    assert devices.share([Rank(n) for n in range(4)], 2) == expected
    with pytest.raises(UsageError, match="2 different shards"):
        devices.share(ranks, 1)


def mesh_of(ranks):
    """They say that they are tp 2 x dp 2."""
    for rank in ranks:
        rank.coordinates = {"tp": rank.rank % 2, "dp": rank.rank // 2}


def masks(shared):
    return [Page(shared.squash.fd, local).words[layout.W_MASK] for local in range(4)]


@pytest.fixture
def squashing():
    shared = SharedDevices(SquashMemory(every=9))
    yield shared
    shared.close()


def test_ranks_that_start_on_shared_devices_are_placed_by_shard_once_they_say_it(squashing):
    ranks = [Rank(n) for n in range(4)]
    squashing.begin(ranks, 2, **WORLD)
    squashing.look(ranks, stepped=False)
    assert masks(squashing) == [0, 0, 0, 0]
    mesh_of(ranks)
    squashing.look(ranks, stepped=False)
    assert [rank.device.device for rank in ranks] == [0, 1, 0, 1]
    assert masks(squashing) == [0b0101, 0b1010, 0b0101, 0b1010]


@pytest.mark.parametrize("change", [{"world_size": 8}, {"program": 1}])
def test_where_ranks_were_in_another_world_or_program_says_nothing(squashing, change):
    squashing.begin(before := [Rank(n) for n in range(4)], 2, **WORLD)
    mesh_of(before)
    squashing.look(before, stepped=False)
    ranks = [Rank(n) for n in range(4)]
    squashing.begin(ranks, 2, **{**WORLD, **change})
    squashing.look(ranks, stepped=False)
    assert masks(squashing) == [0, 0, 0, 0]
    for rank in ranks:
        rank.coordinates = {"pp": rank.rank // 2, "dp": rank.rank % 2}
    squashing.look(ranks, stepped=False)
    assert masks(squashing) == [0b0011, 0b0011, 0b1100, 0b1100]


def test_ranks_that_could_not_share_are_asked_again_in_another_world(squashing):
    squashing.begin(before := [Rank(n) for n in range(4)], 1, **WORLD)
    mesh_of(before)
    squashing.look(before, stepped=True)
    assert squashing.number == 0
    ranks = [Rank(n) for n in range(4)]
    squashing.begin(ranks, 1, world_size=4, program=1)
    assert squashing.number == 1


def test_ranks_that_say_nothing_until_their_first_step_are_replicas(squashing):
    ranks = [Rank(n) for n in range(4)]
    squashing.begin(ranks, 2, **WORLD)
    squashing.look(ranks, stepped=True)
    assert [rank.device.device for rank in ranks] == [0, 0, 1, 1]
    assert masks(squashing) == [0b0011, 0b0011, 0b1100, 0b1100]


def test_ranks_whose_shards_need_more_devices_get_one_each(squashing):
    ranks = [Rank(n) for n in range(4)]
    squashing.begin(ranks, 1, **WORLD)
    mesh_of(ranks)
    squashing.look(ranks, stepped=True)
    assert {rank.device.device for rank in ranks} == {-1}
    assert masks(squashing) == [0, 0, 0, 0]
    assert squashing.number == 0


def test_ranks_that_are_where_they_should_be_are_told_nothing(devices):
    ranks = [Rank(n) for n in range(4)]
    mesh_of(ranks)
    devices.share(ranks, 2)
    orders = [rank.ring.handle.state.words[W_DEVICE_ORDER] for rank in ranks]
    devices.look(ranks, stepped=True)
    assert [rank.ring.handle.state.words[W_DEVICE_ORDER] for rank in ranks] == orders


def test_what_is_refused_changes_nothing(devices):
    ranks = [Rank(n) for n in range(2)]
    with pytest.raises(UsageError, match="devices = 3: this node runs 2 ranks"):
        devices.share(ranks, 3)
    ranks[1].ring.handle.state.words[W_DEVICE_REFUSED] = 1
    with pytest.raises(UsageError, match="rank 1 uses process groups that work on a GPU"):
        devices.share(ranks, 1)
    assert [rank.device.device for rank in ranks] == [-1, -1]


def test_ranks_that_do_not_follow_in_time_are_named(devices):
    ranks = [Rank(n) for n in range(3)]
    devices.share(ranks, 1)
    ranks[0].follow()
    ranks[2].code = -9
    assert devices.wait(ranks, 0.0) == [1]
    ranks[1].follow()
    assert devices.wait(ranks, 0.0) == []


def test_a_killed_process_gives_its_device_back(devices):
    reading, writing = os.pipe()
    locks = FileLocks(devices.fd)
    pid = os.fork()
    if pid == 0:
        locks.take(0)
        os.write(writing, b"x")
        signal.pause()
        os._exit(0)
    os.read(reading, 1)
    os.kill(pid, signal.SIGKILL)
    locks.take(0)
    locks.give(0)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    os.close(reading)
    os.close(writing)


def test_the_one_who_waits_longest_is_next(devices):
    reading, writing = os.pipe()
    locks = FileLocks(devices.fd)
    locks.take(0)
    children = []
    for number in range(4):
        pid = os.fork()
        if pid == 0:
            locks.take(0)
            os.write(writing, bytes([number]))
            locks.give(0)
            os._exit(0)
        children.append(pid)
        _until_blocked(pid)
    locks.give(0)
    for pid in children:
        os.waitpid(pid, 0)
    assert list(os.read(reading, 16)) == [0, 1, 2, 3]
    os.close(reading)
    os.close(writing)


def _until_blocked(pid: int) -> None:
    """Wait until the kernel lists the process among those that wait for a lock."""
    while True:
        with open("/proc/locks") as locks:
            if any("->" in line and f" {pid} " in line for line in locks):
                return
        os.sched_yield()
