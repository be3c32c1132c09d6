"""What `pulsetrain run` prints at the end, and its exit status."""

import dataclasses

import pytest

from pulsetrain.agent import outcome
from pulsetrain.agent.outcome import Outcome
from pulsetrain.core.errors import UsageError
from pulsetrain.protocol.messages import RankExit


def _culprit(code, *lines):
    return RankExit(
        node="a", ts_ns=0, job="j", attempt=0, rank=3, pid=9, code=code, last_lines=lines or ("boom",)
    )


def test_the_culprit_is_the_first_that_failed_not_its_loudest_victim():
    killed = dataclasses.replace(_culprit(-9), last_lines=())
    victim = dataclasses.replace(_culprit(1, "Connection closed by peer"), rank=4)
    fine = dataclasses.replace(_culprit(0), rank=5)
    assert outcome.culprit([fine, killed, victim]) is killed
    assert outcome.culprit([fine]) is None


def test_of_usage_errors_the_one_with_words_is_shown():
    silent = dataclasses.replace(_culprit(2), last_lines=())
    says_why = _culprit(2, "train: needs 8 ranks")
    assert outcome.culprit([silent, says_why]) is says_why
    assert outcome.culprit([silent]) is silent


@pytest.mark.parametrize(("code", "status"), [(0, 0), (1, 1), (7, 7), (-9, 137), (-11, 139), (130, 130)])
def test_exit_status_is_as_a_shell_has_it(code, status):
    assert outcome.exit_status(Outcome(exit_code=code, reason="")) == status


def test_the_summary_names_rank_node_and_how_it_ended():
    text = outcome.summary(Outcome(exit_code=-9, reason="job failed", culprit=_culprit(-9, "one", "two")))
    assert text.splitlines() == [
        "job failed",
        "rank 3 on a (pid 9) was ended by SIGKILL; it last said:",
        "  | one",
        "  | two",
    ]


def test_the_summary_of_a_rank_that_was_silent_says_so():
    silent = dataclasses.replace(_culprit(-9), last_lines=())
    text = outcome.summary(Outcome(exit_code=-9, reason="job failed", culprit=silent))
    said = "rank 3 on a (pid 9) was ended by SIGKILL; it said nothing on standard error"
    assert text.splitlines() == ["job failed", said]


def test_a_usage_error_of_the_ranks_is_passed_on_as_one_line():
    with pytest.raises(UsageError, match=r"^train: needs 8 ranks$"):
        outcome.summary(
            Outcome(exit_code=2, reason="x", culprit=_culprit(2, "warning", "train: needs 8 ranks"))
        )


def test_the_report_for_programs_names_the_culprit_or_nobody():
    assert outcome.report(Outcome(exit_code=-9, reason="r", culprit=_culprit(-9, "a"))) == {
        "exit_code": 137,
        "reason": "r",
        "rank": 3,
        "node": "a",
        "code": -9,
        "last_lines": ["a"],
    }
    assert outcome.report(Outcome(exit_code=0, reason="r"))["rank"] == -1
