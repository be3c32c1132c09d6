"""The loss of a step, from the losses of its backward passes."""

from __future__ import annotations

import pytest

from pulsetrain.collectors.rank.auto.tally import objective


@pytest.mark.parametrize(
    ("losses", "wanted"),
    [
        ([], 0.0),
        ([2.5], 2.5),
        ([0.5, 0.25], 0.75),
        ([1.0, 1.0], 2.0),  # SAM: one loss before another is no sum
        ([0.5, 0.25, 0.75], 0.75),  # two pieces and their sum
        ([0.1, 0.2, 0.4, 0.7000001, 0.3, 0.2, 0.1, 0.6], 1.3),  # two microbatches in pieces
        ([0.1, 0.25, 0.4, 0.2, 0.35, 0.6], 0.95),  # the pieces of both before both sums
        ([0.1, 0.2, 0.4, 0.71], 1.41),  # something else
        ([0.5, 0.25, 0.75, 0.1], 1.6),  # a coincidence: the last one is no piece of a sum
        ([0.0, 0.0, 0.0], 0.0),
        ([-1.0, 1.0, 0.0, 3.0], 3.0),
    ],
)
def test_a_sum_of_the_losses_before_it_counts_once(losses, wanted):
    assert objective(losses) == pytest.approx(wanted)


def test_what_is_not_a_number_stays_so():
    assert objective([0.5, float("nan"), 0.25]) != objective([0.5, float("nan"), 0.25])
    assert objective([float("inf"), 1.0, float("inf")]) == float("inf")
