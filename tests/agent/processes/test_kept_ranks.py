"""Which processes of ranks are kept for the next attempt: only those that say so in time."""

import os
import signal
import threading
from dataclasses import dataclass, field

import pytest

from pulsetrain.agent.processes import kept_ranks
from pulsetrain.agent.processes.kept_ranks import Seat
from pulsetrain.protocol import rank_channel


@dataclass
class Rank:
    rank: int
    local_rank: int = 0
    pid: int = 0
    code: int | None = None
    ended: threading.Event = field(default_factory=threading.Event)

    def end(self, code):
        self.code = code
        self.ended.set()


class Process:
    """The rank's end of a seat, which says what the test tells it to."""

    def __init__(self, rank, *says):
        self.seat = Seat(lambda of, code: of.end(code))
        self.seat.rank = Rank(rank, pid=1000 + rank)
        for op in says:
            self.seat.rank_end.send(op)

    def heard(self):
        packet = self.seat.rank_end.receive(0.0)
        return packet[0]["op"] if packet else None


LISTENING, PARKED, OUTSIDE = rank_channel.LISTENING, rank_channel.PARKED, rank_channel.OUTSIDE


@pytest.fixture
def processes():
    made = []

    def make(*says_of):
        made.extend(Process(rank, *says) for rank, says in enumerate(says_of))
        return made

    yield make
    for process in made:
        process.seat.forked()
        process.seat.close()


def park(processes, fresh=(), timeout_s=0.01, given_up=lambda: False):
    return kept_ranks.park({p.seat.rank.rank: p.seat for p in processes}, fresh, timeout_s, given_up)


def test_a_rank_that_parks_is_kept_and_the_others_are_refused_with_the_reason(processes):
    made = processes((LISTENING, PARKED), (), (LISTENING, OUTSIDE), (LISTENING,))
    result = park(made)
    assert list(result.kept) == [0]
    assert result.refused == {
        1: kept_ranks.NOT_RESTARTABLE,
        2: "it was outside the function that can be called again",
        3: "it did not give up its attempt in 0.01 s",
    }
    assert [p.heard() for p in made] == ["abort", None, "abort", "abort"]


def test_ranks_of_a_node_with_many_open_files_are_kept_too(only_high_descriptors, processes):
    made = processes((LISTENING, PARKED), (LISTENING, OUTSIDE))
    assert made[0].seat.channel.fileno() >= 1024
    assert list(park(made).kept) == [0]


def test_a_rank_at_fault_is_not_asked(processes):
    made = processes((LISTENING, PARKED))
    result = park(made, fresh=(0,))
    assert (result.kept, result.refused) == ({}, {0: "it is at fault"})
    assert made[0].heard() is None


def test_a_rank_that_died_meanwhile_is_refused(processes):
    made = processes((LISTENING,), (LISTENING,))
    made[0].seat.forked()
    assert 0 in park(made).refused


def test_who_ends_the_ranks_for_good_ends_the_wait(processes):
    made = processes((LISTENING,))
    assert park(made, timeout_s=600.0, given_up=lambda: True).kept == {}


def test_a_rank_goes_on_only_in_the_attempt_that_it_was_told(processes):
    made = processes((), ())
    made[0].seat.rank_end.send(rank_channel.RESUMED, attempt="4")
    made[1].seat.rank_end.send(rank_channel.RESUMED, attempt="3")
    seats = {p.seat.rank.rank: p.seat for p in made}
    assert kept_ranks.resumed(seats, 4, 0.01) == {0}


def test_a_parked_rank_gets_its_environment_and_files(processes, tmp_path):
    [process] = processes(())
    with (tmp_path / "out").open("w") as out:
        assert kept_ranks.resume(process.seat, {"RANK": "2"}, [out.fileno()] * 4)
    message, files = process.seat.rank_end.receive(1.0)
    assert message == {"op": "resume", "env": {"RANK": "2"}}
    assert len(files) == 4
    for fd in files:
        os.close(fd)


def test_the_end_of_a_process_is_that_of_the_rank_that_it_is_now(processes):
    [process] = processes(())
    before, process.seat.rank = process.seat.rank, Rank(5)
    process.seat.exited(3)
    assert (before.code, process.seat.rank.code) == (None, 3)


def test_what_was_kept_can_be_killed(processes):
    made = processes((), ())
    made[1].seat.rank.end(0)
    sent = []

    def send(pid, signum):
        sent.append((pid, signum))
        made[0].seat.exited(-signum)

    kept_ranks.kill([p.seat for p in made], send, 1.0)
    assert sent == [(1000, signal.SIGKILL)]
