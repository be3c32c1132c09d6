"""Turns on a shared device: the protocol under any schedule, and one rank's side of it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsetrain.collectors.layout import W_DEVICE, W_DEVICE_ORDER
from pulsetrain.collectors.rank.device_turns import Act, DeviceTurns, taking
from pulsetrain.elastic.device_sharing import place

# -- the protocol, as a model --------------------------------------------------------------------------------


@dataclass
class ModelRank:
    """A rank that computes, waits for the members of a group, and so on. `program` yields what it does."""

    number: int
    groups: list[int]
    order: dict[int, int] = field(default_factory=lambda: {W_DEVICE: 0, W_DEVICE_ORDER: 0})
    held: int = -1
    follows: int = 0
    computes: bool = False
    joined: int = -1
    dead: bool = False
    act: object = None

    def program(self):
        for group in [*self.groups, None]:
            order = self.order[W_DEVICE_ORDER]
            self.held = yield from taking(self.order)
            self.follows, self.computes = order, True
            yield "compute"
            self.computes, held, self.held = False, self.held, -1
            if held >= 0:
                yield Act("give", held)
            self.follows = self.order[W_DEVICE_ORDER]
            if group is not None:
                self.joined = group
                yield ("join", group)


class Model:
    """Ranks, locks and an agent. `enabled` are the ranks that can go on now."""

    def __init__(self, ranks: int, groups: list[set[int]]) -> None:
        self.groups = groups
        self.ranks = [ModelRank(n, [g for g, who in enumerate(groups) if n in who]) for n in range(ranks)]
        self.locks: dict[int, int] = {}
        self.devices = 0
        self._programs = [rank.program() for rank in self.ranks]
        for rank in self.ranks:
            self._advance(rank)

    def _advance(self, rank: ModelRank) -> None:
        rank.act = next(self._programs[rank.number], None)

    def order(self, devices: int) -> None:
        self.devices = devices
        placed = place(range(len(self.ranks)), devices, {}) if devices else {}
        for rank in self.ranks:
            rank.order[W_DEVICE] = placed.get(rank.number, -1) + 1
            rank.order[W_DEVICE_ORDER] += 1

    def kill(self, rank: ModelRank) -> None:
        rank.dead, rank.act, rank.computes = True, None, False
        self.locks = {device: owner for device, owner in self.locks.items() if owner != rank.number}

    def can_go_on(self, rank: ModelRank) -> bool:
        match rank.act:
            case None:
                return False
            case Act("take", device):
                return device not in self.locks
            case ("join", group):
                return all(self.ranks[n].joined >= group for n in self.groups[group])
        return True

    def step(self, rank: ModelRank) -> None:
        match rank.act:
            case Act("take", device):
                self.locks[device] = rank.number
            case Act("give", device):
                assert self.locks.pop(device) == rank.number
        self._advance(rank)
        self.check()

    def check(self) -> None:
        """Nobody computes on a device that another one has. Once all follow, no more compute than devices."""
        computing = [rank for rank in self.ranks if rank.computes]
        for rank in computing:
            assert rank.held < 0 or self.locks[rank.held] == rank.number
        followed = all(r.follows == r.order[W_DEVICE_ORDER] or r.dead for r in self.ranks)
        if self.devices and followed:
            assert len(computing) <= self.devices

    def waits_for_the_dead(self, rank: ModelRank) -> bool:
        """Whether a killed rank is why this one waits, directly or through others that wait."""
        seen, left = set(), [rank.number]
        while left:
            other = self.ranks[left.pop()]
            if other.dead:
                return True
            if other.number in seen or not isinstance(other.act, tuple):
                continue
            seen.add(other.number)
            group = other.act[1]
            left += [n for n in self.groups[group] if self.ranks[n].joined < group]
        return False


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_schedule_ends_and_no_device_has_two_ranks_at_once(data):
    ranks = data.draw(st.integers(2, 6))
    members = st.sets(st.integers(0, ranks - 1), min_size=2)
    model = Model(ranks, data.draw(st.lists(members, max_size=6)))
    kills = data.draw(st.integers(0, 1))
    for _ in range(600):
        enabled = [rank for rank in model.ranks if model.can_go_on(rank)]
        if not enabled:
            break
        what = data.draw(st.integers(0, 11))
        if what == 0:
            model.order(data.draw(st.integers(0, ranks)))
        elif what == 1 and kills:
            kills -= 1
            model.kill(data.draw(st.sampled_from(enabled)))
        else:
            model.step(data.draw(st.sampled_from(enabled)))
    left = [rank for rank in model.ranks if rank.act is not None]
    assert all(model.can_go_on(rank) or model.waits_for_the_dead(rank) for rank in left)


# -- one rank's side -----------------------------------------------------------------------------------------


class Locks:
    """Notes what is taken and given. `before_take` is called first."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []
        self.before_take = lambda: None

    def take(self, device: int) -> None:
        self.before_take()
        self.seen.append(("take", device))

    def give(self, device: int) -> None:
        self.seen.append(("give", device))


@pytest.fixture
def locks() -> Locks:
    return Locks()


@pytest.fixture
def turns(watched, locks) -> DeviceTurns:
    return DeviceTurns(watched.handle.state, locks)


def test_a_rank_with_a_device_of_its_own_locks_nothing(turns, locks):
    turns.leave()
    turns.enter()
    assert (locks.seen, turns.held) == ([], -1)


def test_it_takes_its_device_after_a_wait_and_gives_it_at_the_next(turns, locks, watched):
    watched.reader.device.order(2)
    turns.leave()
    turns.enter()
    assert turns.held == 2
    assert watched.reader.device.followed
    turns.leave()
    assert (turns.held, locks.seen) == (-1, [("take", 2), ("give", 2)])


def test_waits_inside_a_wait_change_nothing(turns, locks, watched):
    watched.reader.device.order(0)
    turns.leave()
    turns.leave()
    turns.enter()
    assert locks.seen == []
    turns.enter()
    assert locks.seen == [("take", 0)]


def test_an_order_that_comes_while_it_waits_for_a_device_is_obeyed(turns, locks, watched):
    device = watched.reader.device
    device.order(0)
    orders = iter([3])
    locks.before_take = lambda: [device.order(d) for d in [next(orders, None)] if d is not None]
    turns.leave()
    turns.enter()
    assert locks.seen == [("take", 0), ("give", 0), ("take", 3)]
    assert turns.held == 3
    assert device.followed


def test_a_rank_that_has_not_come_to_a_wait_does_not_follow_yet(turns, watched):
    device = watched.reader.device
    device.order(1)
    assert not device.followed
    device.order(-1)
    assert device.followed, "it keeps nothing from others that it does not have"


def test_waits_of_other_threads_leave_the_device_alone(turns, locks, watched):
    watched.reader.device.order(0)
    turns.leave()
    turns.enter()
    other = threading.Thread(target=turns.leave)
    other.start()
    other.join()
    assert turns.held == 0


def test_the_wait_for_a_device_is_a_span_of_its_own_and_no_work_of_the_phase(turns, locks, watched, clock):
    watched.reader.device.order(0)
    locks.before_take = lambda: clock(5_000_000)
    with watched.handle.phase("forward"):
        turns.leave()
        turns.enter()
    names = watched.reader.names
    spans = {names[s["name"]]: s for s in watched.reader.drain()[0]}
    assert names[spans["device_wait"]["parent"]] == "forward"
    assert spans["device_wait"]["blocked"] >= 5_000_000
    assert spans["forward"]["blocked"] >= 5_000_000
    use = watched.reader.device.use()
    assert (use.turns, use.lent) == (1, 0)
    assert use.waited_ns >= 5_000_000


def test_who_waits_for_a_device_says_so_on_the_status_page(turns, locks, watched):
    watched.reader.device.order(0)
    seen = []
    locks.before_take = lambda: seen.append(watched.open())
    turns.leave()
    turns.enter()
    assert seen == [["device_wait"]]
    assert watched.open() == []


def test_a_lock_that_the_kernel_refuses_does_not_stop_the_rank(turns, locks, watched):
    watched.reader.device.order(0)

    def refuse() -> None:
        raise OSError(37, "no locks available")

    locks.before_take = refuse
    turns.leave()
    turns.enter()
    assert (turns.held, watched.errors) == (-1, 1)


@pytest.fixture
def clock(monkeypatch):
    """The clock of device turns. Calling it lets time pass."""
    from pulsetrain.collectors.rank import device_turns

    real, later = device_turns.perf_counter_ns, [0]
    monkeypatch.setattr(device_turns, "perf_counter_ns", lambda: real() + later[0])

    def passes(ns: int) -> None:
        later[0] += ns

    return passes


def test_a_rank_whose_groups_work_on_a_device_gives_its_turn_away_and_takes_none(turns, locks, watched):
    watched.reader.device.order(0)
    turns.leave()
    turns.enter()
    turns.refuse()
    turns.leave()
    turns.enter()
    assert (locks.seen, turns.held) == ([("take", 0), ("give", 0)], -1)
    assert watched.reader.device.followed


def test_a_signal_handler_that_raises_in_a_wait_for_a_device_leaves_nothing_locked_or_open(
    turns, locks, watched
):
    def handler():
        raise KeyboardInterrupt

    watched.reader.device.order(0)
    locks.before_take = handler
    turns.leave()
    with pytest.raises(KeyboardInterrupt):
        turns.enter()
    assert (locks.seen, watched.open()) == ([("give", 0)], [])


def test_a_wait_that_an_attempt_left_open_does_not_outlive_it(turns, locks, watched):
    watched.handle.state.words[W_DEVICE] = 1
    turns.leave()
    turns.begin_again()
    turns.leave()
    turns.enter()
    assert turns.held == 0
