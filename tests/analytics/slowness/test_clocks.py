"""Planted offsets and drifts of nodes' clocks are recovered within the stated error."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.analytics.slowness import clocks

SECOND = 1e9


def ends(seed, offsets, drifts, *, collectives=60, jitter_ns=50_000.0, members=None):
    """(collective, node, end) of collectives whose members leave them within an exponential jitter."""
    rng = np.random.default_rng(seed)
    true = np.sort(rng.uniform(0, 30 * SECOND, collectives))
    rows = []
    for number, time in enumerate(true):
        for node in members(number) if members else range(len(offsets)):
            seen = time + rng.exponential(jitter_ns)
            rows.append((number, node, seen + offsets[node] + drifts[node] * seen))
    collective, node, end = (np.array(column) for column in zip(*rows, strict=True))
    return collective, node, end


def miss(found, node, reference, time):
    """By how much an alignment errs for a moment of true time."""
    (offset, drift), (first_offset, first_drift) = node, reference
    shown = np.array([time + offset + drift * time])
    planted = (offset + drift * time) - (first_offset + first_drift * time)
    return abs(float(found.offset(shown)[0]) - planted)


@given(
    st.integers(0, 10**6),
    st.lists(st.floats(-5e8, 5e8), min_size=2, max_size=5),
    st.floats(-1e-4, 1e-4),
    st.floats(1e3, 1e6),
)
def test_planted_offsets_and_drift_are_recovered_within_the_error(seed, offsets, drift, jitter_ns):
    drifts = [0.0, *[drift * (i % 2) for i in range(1, len(offsets))]]
    found = clocks.align(*ends(seed, offsets, drifts, jitter_ns=jitter_ns))
    assert sorted(found) == list(range(len(offsets)))
    for node in found:
        for time in (0.0, 15 * SECOND, 30 * SECOND):
            error = miss(found[node], (offsets[node], drifts[node]), (offsets[0], drifts[0]), time)
            assert error <= found[node].error_ns


def test_a_node_is_compared_through_others_and_the_errors_add_up():
    data = ends(1, [0.0, 3e6, -7e6], [0.0] * 3, members=lambda n: (0, 1) if n % 2 else (1, 2))
    found = clocks.align(*data)
    assert found[2].error_ns > found[1].error_ns > 0
    assert miss(found[2], (-7e6, 0.0), (0.0, 0.0), SECOND) <= found[2].error_ns


def test_the_order_of_rows_changes_nothing():
    data = ends(2, [0.0, 1e6, 2e6], [0.0, 1e-5, 0.0])
    order = np.random.default_rng(0).permutation(len(data[0]))
    assert clocks.align(*data) == clocks.align(*(column[order] for column in data))


def test_a_few_collectives_that_ended_late_on_one_node_move_nothing():
    collective, node, end = ends(3, [0.0, 4e6], [0.0, 0.0])
    end = end + np.where((node == 1) & (collective % 7 == 0), 5e8, 0.0)
    found = clocks.align(collective, node, end)
    assert miss(found[1], (4e6, 0.0), (0.0, 0.0), SECOND) <= found[1].error_ns


@pytest.mark.parametrize("node_set", [0, 1])
@pytest.mark.parametrize("shift", [-3600.0, -2.0, 2.0, 3600.0])
@pytest.mark.parametrize("since", [0.2, 0.5, 0.85])
def test_a_clock_that_was_set_in_between_is_within_the_error_before_and_after(node_set, shift, since):
    collective, node, end = ends(4, [0.0, 4e6], [0.0, 0.0])
    was_set = (node == node_set) & (collective >= since * 60)
    end = end + np.where(was_set, shift * SECOND, 0.0)
    found = clocks.align(collective, node, end)
    aligned, error = clocks.on_one_clock(end, node, found)
    differences = np.abs(aligned[node == 1] - aligned[node == 0])
    assert (differences <= error[node == 1] + 0.01 * SECOND).all()


@pytest.mark.parametrize("count", [0, 1, clocks.SAMPLES_NEEDED - 1])
def test_too_few_collectives_give_no_alignment(count):
    times = np.arange(count) * SECOND
    assert clocks.compare(times, times) is None
    assert clocks.align(np.array([], int), np.array([], int), np.array([])) == {}


def test_missing_ends_are_left_out():
    times = np.arange(20) * SECOND
    differences = np.where(np.arange(20) % 3, 1e6, np.nan)
    assert clocks.compare(times, differences).offset_ns == pytest.approx(1e6)
