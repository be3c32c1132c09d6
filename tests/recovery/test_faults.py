"""Why a job stops, in the words that an operator reads."""

import pytest

from pulsetrain.recovery import faults
from pulsetrain.recovery.transitions import Event
from tests.recovery.builders import S, rank_exit
from tests.recovery.fakes import Observed


@pytest.mark.parametrize(
    ("code", "lines", "reason"),
    [
        (-9, (), "rank 3 on b ended with signal 9"),
        (7, ("ValueError: bad", " "), "rank 3 on b ended with exit code 7: ValueError: bad"),
        (1, ("ValueError: bad", "Set FULL_ERROR=1."), "rank 3 on b ended with exit code 1: ValueError: bad"),
    ],
)
def test_an_exit_is_told_with_its_code_and_its_last_error(code, lines, reason):
    fault = faults.rank_failed(rank_exit(3, code, last_lines=lines), 2000 * S)
    assert (fault.reason, fault.exit_code, fault.event) == (reason, code, Event.RANK_FAILED)
    assert (fault.onset_ns, fault.detected_ns) == (1000 * S, 2000 * S)


def test_an_exit_from_the_future_of_a_node_with_another_clock_begins_now():
    assert faults.rank_failed(rank_exit(3, 1, ts_ns=3000 * S), 2000 * S).onset_ns == 2000 * S


def test_a_lost_node_is_gone_since_it_was_last_heard():
    fault = faults.node_lost("b", "no heartbeat", 2, 10 * S, silent_ns=3 * S)
    assert (fault.node, fault.attempt, fault.onset_ns, fault.detected_ns) == ("b", 2, 7 * S, 10 * S)


def test_a_persons_eviction_carries_the_persons_name():
    fault = faults.evicted("b", "fan failed", "ada", 0, S)
    assert (fault.reason, fault.actor) == ("evicted by ada: fan failed", "ada")


def test_a_failed_launch_names_its_node():
    assert faults.launch_failed("b", "no memory", 1, S).reason == "launch on b: no memory"


def test_a_finding_on_a_group_or_node_names_no_rank():
    finding = Observed(kind="hang", subject="dp", subject_type="group", summary="the network")
    fault = faults.hang(finding, "", 10 * S, silent_ns=4 * S)
    assert (fault.rank, fault.onset_ns, fault.reason) == (-1, 6 * S, "the network")


def test_a_crash_finding_blames_its_rank():
    fault = faults.crash(Observed(kind="crash", subject="2"), "b", S)
    assert (fault.event, fault.rank, fault.node) == (Event.RANK_FAILED, 2, "b")
