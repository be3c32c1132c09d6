"""A process that begins another attempt writes to another ring, as one that has just begun."""

import os

import pytest

from pulsetrain.collectors.rank.handle import Handle
from pulsetrain.collectors.rank.renewal import end_attempt, renew
from pulsetrain.collectors.rank.ring import RingWriter, create_ring
from pulsetrain.collectors.reading.ring_reader import RingReader
from pulsetrain.core.errors import CorruptData


def ring(slots=64):
    fd = create_ring(slots)
    return fd, RingReader(fd)


@pytest.fixture
def attempts():
    """A handle that lives through two attempts, and the readers of both."""
    (first, before), (second, after) = ring(), ring()
    handle = Handle(RingWriter(first))
    yield handle, before, second, after
    os.close(first)
    os.close(second)


def test_records_of_the_new_attempt_are_in_the_new_ring_alone(attempts):
    handle, before, second, after = attempts
    with handle.phase("forward"):
        pass
    handle.step()
    renew(handle, second, 6)
    with handle.phase("forward"):
        pass
    handle.step(tokens=5)
    assert [list(of["step"]) for of in before.drain()] == [[0], [0]]
    assert [list(of["step"]) for of in after.drain()] == [[7], [7]]
    assert "forward" in after.names
    page = after.status()
    assert (page.last_step, page.resumed_step, page.pid, page.stack) == (7, 6, os.getpid(), ())


def test_a_phase_that_was_made_before_writes_under_its_name(attempts):
    handle, _, second, after = attempts
    phase = handle.phase("a name of the script's own")
    renew(handle, second, -1)
    with phase:
        pass
    [span] = after.drain()[0]
    assert after.names[span["name"]] == "a name of the script's own"


def test_phases_that_were_open_are_not_open_any_more(attempts):
    handle, _, second, after = attempts
    handle.phase("forward").__enter__()
    renew(handle, second, 3)
    with handle.phase("backward"):
        assert [open_.name for open_ in after.status().stack] == ["backward"]
    assert after.status().stack == ()


def test_groups_and_coordinates_are_those_of_the_new_attempt(attempts):
    handle, before, second, after = attempts
    handle.set_coordinates({"dp": 3})
    handle.state.ring.add_group(handle.state.ring.name_group("world"), range(8))
    renew(handle, second, -1)
    assert after.topology() is None
    assert after.status().groups == ()
    assert len(before.status().groups) == 1
    handle.state.ring.add_group(handle.state.ring.name_group("world"), range(4))
    assert [group.members for group in after.status().groups] == [(0, 1, 2, 3)]
    assert handle.infer_coordinates({"dp": 1})


def test_the_new_ring_fills_and_counts_by_itself(attempts):
    handle, before, second, after = attempts
    for _ in range(100):
        handle.step()
    renew(handle, second, -1)
    for _ in range(70):
        handle.step()
    assert before.dropped == 100 - 64
    assert after.dropped == 70 - 64
    assert list(after.drain()[1]["step"]) == list(range(64))


def test_without_a_step_to_go_on_from_steps_count_from_0(attempts):
    handle, _, second, after = attempts
    handle.resume(40)
    renew(handle, second, -1)
    handle.step()
    assert list(after.drain()[1]["step"]) == [0]
    assert after.status().resumed_step == -1


def test_the_description_is_told_again(attempts):
    handle, before, second, after = attempts
    handle.description.set("framework", "own")
    renew(handle, second, -1)
    assert after.description() == before.description() != ""


def test_a_ring_of_another_size_is_refused(attempts):
    fd, _ = ring(128)
    with pytest.raises(CorruptData, match="128 slots"):
        renew(attempts[0], fd, -1)
    os.close(fd)


def test_all_that_works_for_an_attempt_is_ended_even_if_one_fails(attempts):
    handle, before, _, _ = attempts
    ended = []
    handle.before_restart += [lambda: ended.append(1), lambda: 1 // 0, lambda: ended.append(2)]
    end_attempt(handle)
    assert ended == [1, 2]
    assert before.status().errors == 1


def test_without_an_agent_nothing_happens():
    renew(Handle(None), -1, 3)
