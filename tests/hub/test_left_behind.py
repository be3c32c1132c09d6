"""That nobody is slow is said of all ranks of a job or not at all."""

import pytest

from pulsetrain.analytics.verdict import Healthy, Inconclusive
from pulsetrain.hub.left_behind import LATE_S, LeftBehind
from tests.hub.fakes import finding
from tests.recovery.builders import job_snapshot, node_snapshot, status


def job(*steps):
    ranks = [status(rank, last_step=step) for rank, step in enumerate(steps)]
    return job_snapshot(nodes=(node_snapshot("a", *ranks[:2]), node_snapshot("b", *ranks[2:])))


def healthy(ranks):
    return Healthy(analyzer="straggler", numbers={"ranks": ranks})


def told(memory, of, compared, now_s):
    (verdict,) = memory.look(of, [healthy(compared)], now_s)
    return verdict.reason if isinstance(verdict, Inconclusive) else ""


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ((900, 899, 901, 400), "rank 3 is 501 or more steps behind"),
        ((900, -1, 901, 400), "rank 1 made no step, rank 3 is 501 or more steps behind"),
        ((900, 901, -1, -1), "ranks 2-3 made no step"),
        ((900, 900, 900, 900), "nothing that is new is stored of the others"),
    ],
)
def test_that_nobody_of_some_ranks_is_slow_says_nothing_once_rows_can_no_longer_be_late(steps, why):
    memory, of = LeftBehind(), job(*steps)
    assert [told(memory, of, 2, at_s) for at_s in (0.0, LATE_S - 1)] == ["", ""]
    assert told(memory, of, 2, LATE_S) == f"only 2 of 4 ranks were compared: {why}"


def test_rows_that_are_late_now_and_then_change_no_answer():
    memory, of = LeftBehind(), job(900, 900, 900, 900)
    assert {told(memory, of, 4 if second % 10 else 3, float(second)) for second in range(100)} == {""}
    behind = job(900, 900, 900, 600)
    for second in range(100, 122):
        told(memory, behind, 3, float(second))
    said = {told(memory, behind, 3 if second % 10 else 4, float(second)) for second in range(122, 200)}
    assert said == {"only 3 of 4 ranks were compared: rank 3 is 300 or more steps behind"}
    assert [told(memory, of, 4, at_s) for at_s in (200.0, 200.0 + LATE_S)][-1] == ""


def test_all_other_verdicts_stay_as_they_are():
    memory = LeftBehind()
    verdicts = [
        finding("straggler"),
        Healthy(analyzer="mfu", numbers={"ranks": 1}),
        Healthy(analyzer="straggler"),
    ]
    for at_s in (0.0, 2 * LATE_S):
        assert memory.look(job(900, 1, 1, 1), verdicts, at_s) == verdicts


def test_no_analyzer_of_steps_finds_nothing_wrong_in_all_ranks_while_some_are_left_behind():
    memory, of = LeftBehind(), job(900, 899, 901, 400)
    verdicts = [finding("data_stall"), Healthy(analyzer="numerics", numbers={"steps": 9})]
    assert memory.of_steps(verdicts) == verdicts
    for at_s in (0.0, LATE_S):
        told(memory, of, 3, at_s)
    reason = "only 3 of 4 ranks were compared: rank 3 is 501 or more steps behind"
    assert memory.of_steps(verdicts) == [
        verdicts[0],
        Inconclusive(analyzer="numerics", reason=reason, numbers={"steps": 9}),
    ]
