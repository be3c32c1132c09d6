"""Which descriptors can be read, also those that select() does not know."""

import os
import time

import pytest

from pulsetrain.core.readable import readable


@pytest.fixture
def pipes(only_high_descriptors):
    made = [os.pipe() for _ in range(3)]
    yield made
    for pair in made:
        for end in pair:
            os.close(end)


def test_what_can_be_read_is_told_whatever_its_number_is(pipes):
    os.write(pipes[2][1], b"x")
    assert pipes[0][0] >= 1024
    assert readable([reading for reading, _ in pipes], 10) == [pipes[2][0]]


def test_an_end_counts_as_something_to_read(only_high_descriptors):
    reading, writing = os.pipe()
    os.close(writing)
    assert readable([reading], 10) == [reading]
    os.close(reading)


def test_nothing_in_time_is_nothing(pipes):
    begun_s = time.monotonic()
    assert readable([pipes[0][0]], 0.01) == []
    assert time.monotonic() - begun_s >= 0.01
    assert readable([pipes[0][0]], -1.0) == []
