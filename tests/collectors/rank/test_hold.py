"""A rank stands still between two steps while its agent asks for it."""

import itertools
import time
from types import SimpleNamespace

import pytest

from pulsetrain.collectors.checkpoint_cell import CheckpointCell, write_cell
from pulsetrain.collectors.layout import SAVED_AT, W_RAN_ON
from pulsetrain.collectors.rank.hold import HoldPoint, in_flight

FAR = 1 << 62


class Standing:
    """A rank whose sleep calls `meanwhile`: what the agent does while it stands."""

    def __init__(self, watched):
        self.watched, self.state, self.reader = watched, watched.handle.state, watched.reader
        self.looks, self.meanwhile, self.now_ns = 0, lambda: None, 10
        self.point = HoldPoint(sleep=self.sleep, clock_ns=self.clock_ns)
        watched.handle.hold = self.point

    def clock_ns(self):
        self.now_ns += 1
        return self.now_ns

    def sleep(self, seconds):
        self.looks += 1
        assert self.looks < 1000, "it stands for ever"
        self.meanwhile()

    def step(self):
        """End a step. Returns how often the agent looked meanwhile."""
        before = self.looks
        self.watched.handle.step()
        return self.looks - before

    def save(self):
        before = self.looks
        self.point.after_save(self.state)
        return self.looks - before


@pytest.fixture
def rank(watched):
    return Standing(watched)


def test_it_stands_until_the_agent_lets_it_run(rank):
    assert rank.step() == 0
    rank.reader.hold(7, 0, FAR)
    assert not rank.reader.stands
    seen = []

    def look():
        seen.append((rank.reader.stands, rank.reader.position().arrivals, rank.watched.open()))
        if len(seen) == 3:
            rank.reader.hold(0, 0, 0)

    rank.meanwhile = look
    assert rank.step() == 3
    assert seen[0] == (True, 1, ["hold"])
    assert not rank.reader.stands
    assert rank.step() == 0
    assert rank.watched.errors == 0


def test_it_runs_on_to_its_next_step_when_it_is_told_to(rank):
    rank.reader.hold(7, 0, FAR)
    rank.meanwhile = lambda: rank.reader.hold(7, 1, FAR)
    assert rank.step() == 1
    rank.meanwhile = lambda: rank.reader.hold(7, 2, FAR)
    assert rank.step() == 1
    rank.reader.hold(8, 0, FAR)  # another barrier counts anew
    rank.meanwhile = lambda: rank.reader.hold(0, 0, 0)
    assert rank.step() == 1


def test_it_goes_past_as_many_arrivals_as_it_is_told(rank):
    rank.reader.hold(7, 2, FAR)
    rank.meanwhile = lambda: rank.reader.hold(0, 0, 0)
    assert [rank.step() for _ in range(3)] == [0, 0, 1]


def test_it_runs_on_by_itself_once_its_time_is_over_and_does_not_stand_again(rank):
    rank.reader.hold(7, 0, 100)
    assert 0 < rank.step() < 100
    assert rank.reader.position().ran_on == 1
    assert rank.state.words[W_RAN_ON] == 1
    assert rank.step() == 0
    rank.reader.hold(8, 0, FAR)
    rank.meanwhile = lambda: rank.reader.hold(0, 0, 0)
    assert rank.step() == 1


def test_where_each_step_is_saved_it_stands_after_the_save(rank):
    rank.step()
    assert rank.save() == 0
    rank.reader.hold(7, 0, FAR)
    rank.meanwhile = lambda: rank.reader.hold(0, 0, 0)
    assert rank.step() == 0
    assert rank.save() == 1


def test_where_saves_are_seldom_it_stands_at_a_step(rank):
    rank.save()
    rank.reader.hold(7, 0, FAR)
    rank.meanwhile = lambda: rank.reader.hold(0, 0, 0)
    assert [rank.step(), rank.step()] == [0, 1]


def test_a_hold_belongs_to_no_step(rank):
    rank.step()
    rank.reader.hold(7, 0, FAR)

    def later():
        rank.now_ns += 10**12
        rank.reader.hold(0, 0, 0)

    rank.meanwhile = later
    rank.step()
    rank.step()
    _, steps = rank.reader.drain()
    assert max(int(step["duration"]) for step in steps) < 10**12


def test_a_rank_that_stands_is_not_silent(rank):
    """Its agent sees that it lives, so nobody takes it for hung."""
    last = []

    def look():
        rank.now_ns += 10**10
        last.append(rank.reader.status().last_ns)
        if len(last) == 4:
            rank.reader.hold(0, 0, 0)

    rank.now_ns = time.perf_counter_ns()
    rank.reader.hold(7, 0, FAR)
    rank.meanwhile = look
    rank.step()
    assert all(after - before > 10**9 for before, after in itertools.pairwise(last))


def test_other_threads_never_stand(rank):
    rank.point._main += 1
    rank.reader.hold(7, 0, FAR)
    assert rank.step() == 0


def save_by_itself(rank, step):
    cell = CheckpointCell(
        step=step, bytes=1, files=1, start_ns=1, end_ns=2, path="/c.pt", file_bytes=1, file_mtime_ns=1
    )
    write_cell(rank.state.ring.memory, SAVED_AT, cell)


def backward(rank):
    before = rank.looks
    rank.watched.handle.hold_at_backward()
    return rank.looks - before


def test_a_script_that_saves_by_itself_stands_before_the_backward_pass_behind_its_save(rank):
    rank.step(), rank.step()  # 0 and 1
    assert backward(rank) == 0
    rank.reader.hold(7, 0, FAR, saved_step=2)
    rank.meanwhile = lambda: rank.reader.hold(0, 0, 0)
    assert (backward(rank), rank.step(), rank.save()) == (0, 0, 0)  # nothing is saved yet
    save_by_itself(rank, 1)
    assert backward(rank) == 0  # that is older than what is asked for
    save_by_itself(rank, 2)
    assert backward(rank) == 1
    assert rank.watched.errors == 0


def test_a_save_that_is_older_than_the_last_step_holds_nobody(rank):
    rank.step(), rank.step(), rank.step()
    rank.reader.hold(7, 0, FAR, saved_step=0)
    save_by_itself(rank, 1)
    assert backward(rank) == 0


def operation(*, host_only=True, peer=-1, output=0):
    return (SimpleNamespace(group=SimpleNamespace(host_only=host_only), peer=peer, output=output), 1)


def test_what_tells_its_end_only_to_who_waits_is_not_counted_as_in_flight():
    pending = {
        1: operation(),
        2: operation(peer=3),
        3: operation(output=9),
        4: operation(host_only=False, peer=3),
    }
    assert in_flight(pending) == 2


def test_a_rank_that_stands_gives_its_device_to_the_others(rank):
    told = []
    rank.state.turns = SimpleNamespace(
        leave=lambda: told.append("leaves"), enter=lambda: told.append("enters")
    )
    rank.reader.hold(7, 0, FAR)

    def look():
        told.append("stands")
        rank.reader.hold(0, 0, 0)

    rank.meanwhile = look
    rank.step()
    rank.step()
    assert told == ["leaves", "stands", "enters"]


@pytest.mark.parametrize("error", [TimeoutError, KeyboardInterrupt, SystemExit])
def test_what_a_signal_handler_of_the_script_raises_goes_to_the_script(rank, error):
    def handler():
        raise error

    rank.reader.hold(7, 0, FAR)
    rank.meanwhile = handler
    with pytest.raises(error):
        rank.watched.handle.step()
    assert not rank.reader.stands
    assert rank.watched.open() == []
    rank.reader.hold(0, 0, 0)
    assert rank.step() == 0
    assert rank.watched.errors == 0
