"""Nothing is done where a job has changed since a person looked at it."""

import pytest

from pulsetrain.core.errors import UsageError
from pulsetrain.recovery.hang_patience import PendingHang
from pulsetrain.recovery.seen import Seen
from tests.recovery.builders import job_snapshot

HANG = PendingHang(rank=3, since_ns=5, act_at_ns=None, why="because")
JOB = job_snapshot(pending_hang=HANG)


def test_what_is_as_it_was_seen_or_was_not_looked_at_is_no_reason_to_refuse():
    Seen(attempt=JOB.attempt, state="active", rank=3, since_ns=5).check(JOB, "b")
    Seen().check(job_snapshot(nodes=()), "b")


@pytest.mark.parametrize(
    ("seen", "job", "words"),
    [
        (Seen(attempt=JOB.attempt - 1), JOB, "attempt was"),
        (Seen(state="standby"), JOB, "state of node 'b' was standby and is active"),
        (Seen(state="active"), job_snapshot(nodes=()), "is gone"),
        (Seen(rank=4), JOB, "rank that hangs was 4 and is 3"),
        (Seen(since_ns=4), JOB, "begin of the hang was 4 and is 5"),
        (Seen(rank=3), job_snapshot(), "rank that hangs was 3 and is none"),
    ],
)
def test_what_has_changed_is_refused_in_one_line(seen, job, words):
    with pytest.raises(UsageError, match=f"has changed, look again: .*{words}"):
        seen.check(job, "b")
