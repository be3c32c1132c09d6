from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.records.counters import Counter, counters, every_counter, numbered, rate_bits_per_s


def counter(**more):
    fields = {
        "folder": "counters",
        "file": "f",
        "metric": "m",
        "unit": "bytes",
        "scale": 4,
        "bits": 32,
        "at_max": "wraps",
        "also_bits": 0,
        "reveals": "",
        "source": "",
    }
    return Counter(**{**fields, **more})


def test_every_counter_has_a_name_a_unit_and_a_source():
    families = [counters(family) for family in ("rdma", "nic", "nvlink")]
    assert sum(map(len, families)) == len(every_counter()) > 50
    for name, known in every_counter().items():
        assert name == known.metric
        assert known.unit
        assert known.source
        assert known.scale >= 1
        assert 1 < known.bits <= 64


@given(st.integers(0, 2**31 - 1), st.integers(0, 2**20))
def test_an_increase_is_what_was_counted_in_between(before, more):
    known = counter()
    assert known.increase(before * 4.0, (before + more) * 4.0) == more * 4.0


@pytest.mark.parametrize("missing", [None, math.nan])
def test_a_missing_sample_gives_no_increase(missing):
    assert counter().increase(missing, 5.0) is None
    assert counter().increase(5.0, missing) is None


def test_a_narrow_counter_goes_over_its_end():
    near_end = (2**32 - 10) * 4.0
    assert counter().increase(near_end, 20.0) == 10 * 4.0 + 20.0


def test_a_smaller_value_far_from_the_end_means_that_the_counter_was_reset():
    assert counter().increase(1000.0, 20.0) == 20.0
    assert counter(bits=64).increase(2.0**65, 20.0) == 20.0


def test_after_a_reboot_a_counter_began_at_zero():
    assert counter().increase(1000.0, 2000.0, rebooted=True) == 2000.0


def test_a_saturated_counter_is_blind():
    known = counter(at_max="saturates", bits=8, also_bits=4, scale=1)
    assert known.saturated(255)
    assert known.saturated(15)
    assert not known.saturated(254)
    assert known.increase(10.0, 255.0) is None
    assert not counter(bits=8, scale=1).saturated(255)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("400 Gb/sec (4X NDR)", 400e9),
        (" 2.5 Gb/sec (1X SDR)\n", 2.5e9),
        ("10 Mb/sec", None),
        ("", None),
    ],
)
def test_a_ports_rate_is_bits_per_second(text, rate):
    assert rate_bits_per_s(text) == rate


@pytest.mark.parametrize(
    ("text", "state"), [("4: ACTIVE\n", (4, "ACTIVE")), ("5:", (5, "")), ("ACTIVE", None), ("", None)]
)
def test_a_state_is_a_number_and_its_name(text, state):
    assert numbered(text) == state


@given(
    st.sampled_from(sorted(every_counter())),
    st.lists(st.sampled_from([0.0, 1.0, 15.0, 250.0, 255.0, 65_535.0, 2.0**32 - 1, 3e9, np.nan]), max_size=6),
)
def test_many_samples_count_as_they_do_one_after_the_other(metric, raw):
    counter = every_counter()[metric]
    values = np.array(raw) * counter.scale
    alone = [counter.increase(before, after) for before, after in pairwise(values.tolist())]
    together = [None if np.isnan(step) else step for step in counter.increases(values)]
    assert together == alone
