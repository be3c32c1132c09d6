"""An agent dumps its ranks as they stand, or says why it cannot. CRIU is a fake here."""

import os
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from pulsetrain.agent import image_commands
from pulsetrain.agent.commands import Commands
from pulsetrain.agent.processes.process_images import Manifest
from pulsetrain.core.errors import RanksRun, Unavailable, UsageError
from pulsetrain.protocol.messages import DumpRanks, Start, Stop, WorldNode
from tests.agent.fakenode import FakeCheckpoints, FakeZygote


@dataclass
class Rank:
    """A rank that stands, or not."""

    rank: int
    stands: bool = True
    dumped: bool = False
    stopping: bool = False
    code: int | None = None
    standing_number: tuple[int, int] = (3, 9)
    holds: list = field(default_factory=list)

    @property
    def pid(self):
        return 100 + self.rank

    @property
    def out(self):
        return Path(f"{self.rank}.out")

    @property
    def err(self):
        return Path(f"{self.rank}.err")

    def hold(self, number, past, until_ns, saved_step=-1):
        self.holds.append((number, past, until_ns))


@dataclass
class Ranks:
    alive: list
    attempt: int = 2
    all: list = field(default_factory=list)


@dataclass
class Images:
    """Notes what is dumped, or refuses."""

    refuses: str = ""
    dumped: dict = field(default_factory=dict)
    meanwhile: object = None
    cleared: bool = False

    def clear(self):
        self.cleared = True

    def keeps(self, name):
        return not self.cleared

    def dump(self, name, attempt, processes, outputs, *, why_end):
        if self.refuses:
            raise Unavailable(self.refuses)
        self.dumped = dict(processes)
        if self.meanwhile:
            self.meanwhile()
        return Manifest(
            name=name, host="h", boot="b", attempt=attempt, processes=self.dumped, outputs=outputs,
            files={}, bytes=77,
        )  # fmt: skip


COMMAND = DumpRanks(id=1, attempt=2, name="attempt-2-3")


def dump(ranks, images, store=50, **more):
    return image_commands.dump(COMMAND, Ranks(ranks), images, store, clock_ns=lambda: 1000, **more)


def test_all_ranks_and_the_store_are_dumped_and_stand_for_a_bounded_time():
    ranks, images = [Rank(0), Rank(1)], Images()
    answer = dump(ranks, images)
    assert images.dumped == {"rank_0": 100, "rank_1": 101, "store": 50}
    assert (answer["bytes"], answer["processes"]) == (77, 3)
    assert all(rank.dumped for rank in ranks)
    assert [rank.holds[-1] for rank in ranks] == [(3, 9, 1000 + int(image_commands.STOPPED_S * 1e9))] * 2


def test_ranks_that_cannot_be_dumped_stand_on_for_a_bounded_time():
    rank = Rank(0)
    with pytest.raises(Unavailable, match="no space"):
        dump([rank], Images("no space left"))
    assert not rank.dumped
    assert rank.holds[-1][2] == 1000 + int(image_commands.STOPPED_S * 1e9)


class SlowImages(Images):
    """Each process takes a second. `begun` are those of which the dump began."""

    def __init__(self, meanwhile=lambda: None):
        super().__init__()
        self.begun, self.now_ns, self.meanwhile = [], 0, meanwhile

    def clock_ns(self):
        return self.now_ns

    def dump(self, name, attempt, processes, outputs, *, why_end):
        for process in processes:
            if why := why_end():
                raise Unavailable(why)
            self.begun.append(process)
            self.now_ns += 10**9
            self.meanwhile()
        return super().dump(name, attempt, processes, outputs, why_end=why_end)


def test_a_dump_ends_once_the_hub_does_not_wait_for_it_any_more():
    rank, images = Rank(0), SlowImages()
    command = replace(COMMAND, limit_s=1.5)
    with pytest.raises(Unavailable, match=r"it takes longer than 1\.5 s"):
        image_commands.dump(command, Ranks([rank, Rank(1)]), images, 50, clock_ns=images.clock_ns)
    assert images.begun == ["rank_0", "rank_1"]
    assert not rank.dumped


def test_a_dump_ends_once_the_ranks_are_to_run():
    rank = Rank(0)

    def released():
        rank.standing_number = (0, 9)

    images = SlowImages(released)
    with pytest.raises(Unavailable, match="wants the ranks to run"):
        image_commands.dump(COMMAND, Ranks([rank, Rank(1)]), images, 50, clock_ns=images.clock_ns)
    assert images.begun == ["rank_0"]
    assert not rank.dumped


@pytest.mark.parametrize(
    ("ranks", "more", "why"),
    [
        ([Rank(0), Rank(1, stands=False)], {}, "rank 1 does not stand"),
        ([], {}, "no rank runs here"),
        ([Rank(0)], {"store": None}, "not on this node"),
        ([Rank(0)], {"devices": 1}, "take turns on devices"),
    ],
)
def test_what_cannot_be_dumped_is_refused_before_anything_is_held(ranks, more, why):
    with pytest.raises(UsageError, match=why):
        dump(ranks, Images(), **more)
    assert not any(rank.holds or rank.dumped for rank in ranks)


def test_another_attempt_is_not_dumped():
    with pytest.raises(UsageError, match="attempt 2 does not run here; attempt 5 does"):
        image_commands.dump(COMMAND, Ranks([Rank(0)], attempt=5), Images(), 50)


class Node:
    def __init__(self, *ranks):
        self.ranks = Ranks(list(ranks))
        self.ranks.devices = SimpleNamespace(number=0)
        self.identity = SimpleNamespace(job="j")

    def drain(self):
        pass


def commands(node, images):
    made = Commands(node, None, images=images)
    made._stores["j"] = 50
    return made


@pytest.mark.parametrize(("number", "goes_on"), [(3, False), (4, True), (0, True)])
def test_dumped_ranks_run_on_once_another_hub_asks_for_something_else(monkeypatch, number, goes_on):
    let_go = []
    monkeypatch.setattr(image_commands, "let_go", let_go.extend)
    rank, images = Rank(0, dumped=True), Images()
    commands(Node(rank), images)._let_dumped_go(number)
    assert (let_go, images.cleared, rank.dumped) == ([100, 50] * goes_on, goes_on, not goes_on)


@pytest.mark.parametrize(
    ("image", "keeps", "ends"), [("one", True, True), ("one", False, False), ("", False, True)]
)
def test_ranks_are_not_ended_without_the_image_that_they_were_dumped_to(image, keeps, ends):
    ended, images = [], Images()
    images.keeps = lambda _: keeps
    node = Node(Rank(0))
    node.zygote, node.stopped = None, lambda: ended.append("told")
    node.ranks.stop = node.ranks.stop_dumped = lambda *_: ended.append("ranks")
    node.ranks.drop_kept = lambda *_: None
    node.ranks.close = lambda: None
    made = Commands(node, SimpleNamespace(follow=lambda _: None), images=images)
    stop = Stop(id=1, reason="pre-empted", image=image)
    if ends:
        made._end_ranks(stop)
    else:
        with pytest.raises(RanksRun, match="image 'one' is gone"):
            made._end_ranks(stop)
    assert ended == ["ranks", "told"] * ends


def test_ranks_that_were_asked_for_something_else_while_they_were_dumped_run_on(monkeypatch):
    def asked(*_):
        rank.standing_number = (4, 9)

    let_go = []
    monkeypatch.setattr(image_commands, "let_go", let_go.extend)
    rank, images = Rank(0), Images(meanwhile=asked)
    made = commands(Node(rank), images)
    with pytest.raises(Unavailable, match="another hub"):
        made._dump_ranks(COMMAND)
    assert (let_go, images.cleared, rank.dumped) == ([100, 50], True, False)


def test_the_time_of_an_earlier_dump_ends_no_later_one(monkeypatch):
    ended = []
    monkeypatch.setattr(image_commands, "let_go", lambda _: None)
    monkeypatch.setattr(
        threading,
        "Timer",
        lambda _, call, args: ended.append(lambda: call(*args)) or SimpleNamespace(start=int),
    )
    rank, images = Rank(0), Images()
    made = commands(Node(rank), images)
    made._dump_ranks(COMMAND)
    made._let_dumped_go(0)
    made._dump_ranks(COMMAND)
    images.cleared = False
    ended[0]()
    assert (images.cleared, rank.dumped) == (False, True)
    ended[1]()
    assert (images.cleared, rank.dumped) == (True, False)


def test_a_rank_that_dies_slowly_does_not_cost_the_image_it_was_dumped_to(monkeypatch):
    timers, let_go = [], []
    monkeypatch.setattr(image_commands, "let_go", let_go.extend)
    monkeypatch.setattr(
        threading, "Timer", lambda _, call, args: timers.append((call, args)) or SimpleNamespace(start=int)
    )
    ranks, images = [Rank(0), Rank(1)], Images()
    node = Node(*ranks)
    node.zygote, node.stopped, node.ranks.close = None, lambda: None, lambda: None
    node.ranks.drop_kept = lambda *_: None

    def stop(*_):
        ranks[0].code, ranks[0].stopping, ranks[1].stopping = -9, True, True

    node.ranks.stop_dumped = stop
    made = Commands(node, SimpleNamespace(follow=lambda _: None), images=images)
    made._stores["j"] = 50
    made._dump_ranks(COMMAND)
    told = Stop(id=1, reason="pre-empted", image="attempt-2-3")
    made._end_ranks(told)
    [(call, args)] = timers
    call(*args)
    made._let_dumped_go(0)
    assert (images.cleared, let_go) == (False, [])
    images.cleared = True
    made._end_ranks(told)  # none of them runs on


START = Start(
    id=1,
    job="j",
    attempt=3,
    node_rank=0,
    world=(WorldNode(node="a", node_rank=0, address="h", peer_port=1, nproc=1),),
    store_address="",
    store_port=0,
    image="i",
)


class Restoring:
    """An agent whose image has one rank, this process. `restore` is what CRIU does."""

    def __init__(self, monkeypatch, restore=lambda: None):
        self.holds, self.happened = [], []
        rank = SimpleNamespace(rank=0, pid=os.getpid(), ring_fd=-1, hold=lambda *how: self.holds.append(how))
        self.node, self.checkpoints, self.images = Node(), FakeCheckpoints(), Images()
        manifest = Manifest(
            name="i", host="h", boot="b", attempt=2, processes={"store": 5}, outputs={}, files={}, bytes=1
        )
        monkeypatch.setattr(image_commands, "read", lambda *_: manifest)
        ranks, self.node.zygote = self.node.ranks, FakeZygote()
        self.node.identity.nproc_per_node, self.node.identity.node = 1, "a"

        def bring_back(*_):
            restore()
            ranks.all = [rank]

        ranks.restore, ranks.close = bring_back, lambda: setattr(ranks, "all", [])
        ranks.stop = lambda *_: self.happened.append("ended")
        self.node.launched = lambda *_: self.happened.append("launched")
        self.node.stopped, self.said = lambda: None, []
        self.node.send_heartbeat = lambda: self.said.append(self.commands.restoring)
        self.commands = Commands(
            self.node,
            self.checkpoints,
            lambda: os.open(os.devnull, os.O_RDONLY),
            images=self.images,
        )

    def start(self):
        """The reply to the command."""
        replies = []
        self.commands.execute(START, replies.append)
        deadline_s = time.monotonic() + 10
        while not replies and time.monotonic() < deadline_s:
            time.sleep(0.001)
        self.commands.close()
        return replies[0]


def test_what_restored_ranks_save_is_seen_in_the_arena_that_came_back_with_them(monkeypatch):
    arena = os.memfd_create("pulsetrain-arena")
    agent = Restoring(monkeypatch)
    agent.commands._restore_ranks(START, 0, 0)
    assert os.path.samestat(os.fstat(agent.checkpoints.attached[0]), os.fstat(arena))
    agent.commands.close()
    os.close(arena)


def test_an_image_is_gone_once_its_ranks_run_on(monkeypatch):
    agent = Restoring(monkeypatch)
    assert agent.start().error == ""
    assert (agent.images.cleared, agent.checkpoints.cleared) == (True, 1)
    assert agent.holds == [(0, 0, 0)]


def test_a_restore_that_failed_leaves_the_image_and_what_was_saved(monkeypatch):
    def fails():
        raise Unavailable("pid 77 is in use")

    agent = Restoring(monkeypatch, fails)
    reply = agent.start()
    assert (reply.error, reply.data) == ("pid 77 is in use", {"image_kept": True})
    assert (agent.images.cleared, agent.checkpoints.cleared) == (False, 0)
    assert agent.node.ranks.all == []


def test_ranks_that_were_restored_too_late_are_ended_before_they_run_on(monkeypatch):
    def is_overtaken():
        agent.commands._epoch += 1

    agent = Restoring(monkeypatch, is_overtaken)
    reply = agent.start()
    assert "was stopped while it started" in reply.error
    assert reply.data == {"image_kept": True}
    assert (agent.images.cleared, agent.holds, agent.happened[-1]) == (False, [], "ended")


def test_ranks_without_which_the_agent_cannot_go_on_are_ended(monkeypatch):
    agent = Restoring(monkeypatch)

    def broken(*_):
        raise OSError("the log folder is gone")

    agent.node.launched = broken
    reply = agent.start()
    assert (reply.error, reply.data) == ("OSError: the log folder is gone", {"image_kept": True})
    assert (agent.holds, agent.happened[-1]) == ([], "ended")


@pytest.mark.parametrize("fails", [True, False])
def test_an_agent_says_that_it_restores_until_the_ranks_run_or_none_is_left(monkeypatch, fails):
    def restore():
        if fails:
            raise Unavailable("pid 77 is in use")

    agent = Restoring(monkeypatch, restore)
    agent.start()
    assert agent.said == [START, None]


def test_ranks_of_a_restore_that_failed_late_are_no_ranks_of_the_node(monkeypatch):
    agent = Restoring(monkeypatch)

    def broken(*_):
        raise OSError("the log folder is gone")

    agent.node.launched = broken
    agent.start()
    assert agent.node.ranks.all == []
