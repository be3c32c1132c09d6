"""Why a job goes on with replicas of unequal size."""

import pytest

from pulsetrain.recovery.unequal_units import unequal_detail
from pulsetrain.recovery.world_sizes import WorldSizes

SIZES = WorldSizes(least=4, most=12, unit=4, unit_least=2)


@pytest.mark.parametrize(
    ("nodes", "units", "worth", "whole"),
    [(7, [4, 3], 1.75, 1.0), (6, [3, 3], 1.5, 1.0), (10, [4, 3, 3], 2.5, 2.0), (9, [3, 3, 3], 2.25, 2.0)],
)
def test_replicas_of_unequal_size_are_worth_their_nodes(nodes, units, worth, whole):
    detail = unequal_detail(SIZES, nodes)
    assert (detail["units"], detail["worth_replicas"], detail["whole_replicas"]) == (units, worth, whole)


def test_it_says_why_in_words():
    assert unequal_detail(SIZES, 7)["why"] == (
        "replicas of 4, 3 nodes do the work of 1.75, without the incomplete ones 1"
    )


@pytest.mark.parametrize("nodes", [4, 8, 12])
def test_whole_replicas_need_no_reason(nodes):
    assert unequal_detail(SIZES, nodes) is None


def test_a_job_whose_replicas_must_be_whole_has_none():
    assert unequal_detail(WorldSizes(least=4, most=8, unit=4), 7) is None
