"""Times of a ring in UTC: a shift of the wall clock counts for what begins after it was noticed."""

from __future__ import annotations

import numpy as np
import pytest

from pulsetrain.collectors.reading.ring_clock import SHIFTED_NS, RingClock

OFFSET = 1_000_000 * SHIFTED_NS


class Machine:
    """A ring's clock, and a wall clock that may be set."""

    def __init__(self) -> None:
        self.ring_ns, self.shift_ns, self.reading_takes_ns = 50 * SHIFTED_NS, 0, 0
        self.clock = RingClock(lambda: self.ring_ns + OFFSET + self.shift_ns)

    def told_ns(self) -> int:
        self.ring_ns += self.reading_takes_ns
        return self.ring_ns + OFFSET

    def look(self) -> None:
        self.clock.look(self.told_ns, OFFSET)


@pytest.fixture
def machine():
    return Machine()


def test_times_are_those_of_the_rank_while_its_clock_is_right(machine):
    machine.reading_takes_ns = 3 * SHIFTED_NS  # the agent was not run in between
    machine.look()
    assert machine.clock.utc(7, OFFSET) == OFFSET + 7


@pytest.mark.parametrize("shift", [-3600, -1, 1, 3600])
def test_a_shift_counts_for_what_begins_after_it_was_seen(machine, shift):
    machine.look()
    machine.shift_ns = shift * SHIFTED_NS
    machine.look()
    noticed = machine.ring_ns
    machine.ring_ns += 9
    machine.look()
    told = machine.clock.all_utc(np.array([noticed - 1, noticed, noticed + 5]), OFFSET) - OFFSET
    assert told.tolist() == [noticed - 1, noticed + machine.shift_ns, noticed + 5 + machine.shift_ns]
    machine.shift_ns = 0
    machine.look()
    assert machine.clock.utc(noticed + 5, OFFSET) == OFFSET + noticed + 5 + shift * SHIFTED_NS
    assert machine.clock.utc(machine.ring_ns, OFFSET) == OFFSET + machine.ring_ns


def test_a_look_before_the_rank_has_started_shifts_nothing(machine):
    machine.clock.look(lambda: machine.ring_ns, 0)
    assert machine.clock.utc(7, OFFSET) == OFFSET + 7


def test_small_corrections_are_no_shift(machine):
    machine.shift_ns = SHIFTED_NS - 1
    machine.look()
    assert machine.clock.utc(machine.ring_ns, OFFSET) == OFFSET + machine.ring_ns


def test_a_rank_whose_difference_was_written_anew_begins_again(machine):
    machine.shift_ns = 5 * SHIFTED_NS
    machine.look()
    machine.clock.forget()
    assert machine.clock.utc(machine.ring_ns, OFFSET) == OFFSET + machine.ring_ns
