"""The rank's side of a restart in its own process, with the agent's end of the channel in the test."""

import os
import signal
import threading
import time

import pytest

from pulsetrain.checkpoint.restarting import parked_rank as module
from pulsetrain.checkpoint.restarting.parked_rank import WAKE_SIGNAL, ParkedRank, Restart, take_over
from pulsetrain.collectors.rank.handle import RING_FD, Handle
from pulsetrain.collectors.rank.ring import RingWriter, create_ring
from pulsetrain.collectors.reading.ring_reader import RingReader
from pulsetrain.protocol import rank_channel


@pytest.fixture
def agent(monkeypatch):
    """The agent's end. `agent.rank` is the rank."""
    monkeypatch.setattr(module.GroupSockets, "watch", lambda self: None)
    ours, theirs = rank_channel.pair()
    ours.rank = ParkedRank(theirs)
    before = signal.getsignal(WAKE_SIGNAL)
    yield ours
    ours.close()
    signal.signal(WAKE_SIGNAL, before)


def heard(agent):
    packet = agent.receive(10.0)
    return packet[0] if packet else None


def sleep_inside(rank):
    try:
        rank.enter()
        time.sleep(60)
    finally:
        rank.leave()


def test_it_says_once_that_it_listens(agent):
    assert agent.rank.begin()
    assert heard(agent) == {"op": "listening"}
    agent.rank.end()
    assert agent.rank.begin()
    assert agent.receive(0.0) is None


def test_a_call_inside_a_call_or_on_another_thread_is_no_beginning(agent):
    said = []
    thread = threading.Thread(target=lambda: said.append(agent.rank.begin()))
    thread.start()
    thread.join()
    assert (said, agent.rank.begin(), agent.rank.begin()) == ([False], True, False)


def test_a_main_thread_that_sleeps_is_interrupted(agent):
    agent.rank.begin()
    agent.send(rank_channel.ABORT)
    began = time.monotonic()
    with pytest.raises(Restart):
        sleep_inside(agent.rank)
    assert time.monotonic() - began < 30
    assert agent.rank.aborted


def test_a_main_thread_that_is_out_is_not_interrupted(agent):
    agent.rank.begin()
    agent.rank.enter()
    agent.rank.leave()
    agent.send(rank_channel.ABORT)
    assert agent.rank.wait_for_abort(10.0)
    os.kill(os.getpid(), WAKE_SIGNAL)


def test_an_attempt_that_is_over_before_the_call_is_not_entered(agent):
    agent.rank.begin()
    agent.rank.leave()
    agent.send(rank_channel.ABORT)
    assert agent.rank.wait_for_abort(10.0)
    with pytest.raises(Restart):
        agent.rank.enter()
    agent.rank.leave()


def test_outside_of_a_call_it_says_so(agent):
    agent.rank.begin()
    assert heard(agent) == {"op": "listening"}
    agent.rank.end()
    agent.send(rank_channel.ABORT)
    assert heard(agent) == {"op": "outside"}


def test_a_function_that_ends_while_the_agent_aborts_says_so_too(agent):
    agent.rank.begin()
    heard(agent)
    agent.rank.leave()
    agent.send(rank_channel.ABORT)
    agent.rank.wait_for_abort(10.0)
    agent.rank.end()
    assert heard(agent) == {"op": "outside"}


def test_a_parked_rank_goes_on_with_what_it_is_given(agent, monkeypatch):
    taken = []
    monkeypatch.setattr(module, "take_over", lambda environment, files: taken.append((environment, files)))
    agent.rank.begin()
    heard(agent)
    agent.send(rank_channel.RESUME, [0, 0, 0, 0], env={"PULSETRAIN_ATTEMPT": "4"})
    agent.rank.park("a peer is lost")
    assert heard(agent) == {"op": "parked", "reason": "a peer is lost"}
    assert heard(agent) == {"op": "resumed", "attempt": "4"}
    [(environment, files)] = taken
    assert (environment, len(files)) == ({"PULSETRAIN_ATTEMPT": "4"}, 4)
    for fd in files:
        os.close(fd)


def test_a_parked_rank_without_an_agent_ends(agent):
    agent.rank.begin()
    agent.close()
    with pytest.raises(SystemExit):
        agent.rank.park("a peer is lost")


def test_the_files_of_the_new_attempt_take_the_place_of_the_old_ones(tmp_path, monkeypatch):
    names = ["out", "err", "ring", "arena"]
    old = [os.open(tmp_path / f"old_{name}", os.O_RDWR | os.O_CREAT) for name in names[:2]]
    rings = [create_ring(64), create_ring(64)]
    arenas = [os.memfd_create("old"), os.memfd_create("new")]
    handle = Handle(RingWriter(rings[0]))
    reader = RingReader(rings[1])
    monkeypatch.setattr(module, "process_handle", lambda: handle)
    monkeypatch.setenv(RING_FD, str(rings[0]))
    monkeypatch.setenv(module.ARENA_FD, str(arenas[0]))
    monkeypatch.setenv("PULSETRAIN_ATTEMPT", "0")
    new = [os.open(tmp_path / f"new_{name}", os.O_RDWR | os.O_CREAT) for name in names[:2]]
    inodes = [os.fstat(fd).st_ino for fd in (*new, rings[1], arenas[1])]
    saved = [os.dup(1), os.dup(2)]
    try:
        take_over({"PULSETRAIN_ATTEMPT": "1", "PULSETRAIN_RESTORE_STEP": "9"}, [*new, rings[1], arenas[1]])
        now = [os.fstat(fd).st_ino for fd in (1, 2, rings[0], arenas[0])]
    finally:
        for fd, number in zip(saved, (1, 2), strict=True):
            os.dup2(fd, number)
            os.close(fd)
    assert now == inodes
    assert os.environ["PULSETRAIN_ATTEMPT"] == "1"
    assert reader.status().resumed_step == 9
    for fd in (*old, rings[0], arenas[0]):
        os.close(fd)
