"""What is said of a rank or a node that a job does not have."""

import pytest

from pulsetrain.dashboard.models.missing import missing_node, missing_rank


@pytest.mark.parametrize(
    ("rank", "ranks", "said"),
    [
        (7, range(8), ""),
        (8, range(8), "This job has no rank 8. It has ranks 0-7."),
        (0, [5, 6, 9], "This job has no rank 0. It has ranks 5-6, 9."),
        (1, [0], "This job has no rank 1. It has rank 0."),
        (3, [], ""),
    ],
)
def test_a_rank_that_a_job_does_not_have(rank, ranks, said):
    assert missing_rank(rank, ranks) == said


def test_a_node_that_a_job_does_not_have():
    assert missing_node("a", ["a", "b"]) == ""
    assert missing_node("c", ["a"]) == "c has not taken part in this job. Its node is a."
    assert missing_node("c", []) == "c has not taken part in this job."


def test_of_a_large_job_some_nodes_are_named():
    said = missing_node("x", [f"n{number}" for number in range(1500)])
    assert "Its nodes are n0, n1, n2, " in said
    assert said.endswith("n11 and 1,488 more.")
