"""The finding on an update that was rolled back."""

import pytest

from pulsetrain.hub.update_findings import found
from pulsetrain.recovery.transitions import Phase
from pulsetrain.recovery.updates import UpdateOutcome, Updates
from tests.recovery.builders import job_snapshot


def updates(end="rolled_back", number=2):
    return Updates(number=number, outcome=UpdateOutcome(number=2, end=end, why="exit code 1", at_ns=5))


def test_an_update_that_was_rolled_back_is_a_finding_that_says_why():
    (finding,) = found(job_snapshot(updates=updates()))
    assert (finding.kind, finding.subject_type, finding.subject) == ("update_rolled_back", "job", "j")
    assert finding.summary == "Update 2 of j was rolled back: exit code 1"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"updates": updates("in_force")},
        {"updates": updates("cancelled")},
        {"updates": updates(number=3)},  # another one was asked for since
        {"updates": updates(), "phase": Phase.FINISHED},
    ],
)
def test_nothing_else_is(changes):
    assert found(job_snapshot(**changes)) == []
