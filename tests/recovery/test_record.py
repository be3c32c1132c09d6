"""A recovery's stages add up to the whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.protocol.messages import FirstStep
from pulsetrain.recovery.record import STAGES, Fault, Recovery
from pulsetrain.recovery.transitions import Event

duration = st.integers(0, 10**10)


def first_step(**changes):
    return FirstStep(node="a", ts_ns=0, attempt=1, step=4, **changes)


def fault(onset=0, detected=0):
    return Fault(
        event=Event.RANK_FAILED,
        attempt=0,
        cause="crash",
        reason="r",
        onset_ns=onset,
        detected_ns=detected,
        node="a",
        rank=3,
    )


@given(duration, duration, duration, duration, duration, duration, duration, duration)
def test_stages_are_never_negative_and_add_up(detect, diagnose, evict, launch, rest, fetch, load, init):
    times = [detect, detect + diagnose, detect + diagnose + evict]
    recovery = Recovery(fault=fault(0, times[0]), from_step=10)
    recovery.checked_ns, recovery.replaced_ns = times[1], times[2]
    recovery.launched_ns, recovery.fetch_ns = times[2] + launch, min(fetch, launch)
    end = recovery.launched_ns + rest
    detail = recovery.finish(
        end,
        1,
        [FirstStep(node="a", ts_ns=0, attempt=1, step=0, stages_ns={"init": init, "load": load})],
        ranks=4,
    )
    assert set(detail["stages_ns"]) == set(STAGES)
    assert min(detail["stages_ns"].values()) >= 0
    assert sum(detail["stages_ns"].values()) == end == detail["total_ns"]


def test_the_slowest_rank_counts_for_loading():
    recovery = Recovery(fault=fault(), from_step=4)
    reports = [
        FirstStep(node=n, ts_ns=0, attempt=1, step=0, stages_ns={"load": ns})
        for n, ns in (("a", 5), ("b", 9))
    ]
    assert recovery.finish(100, 1, reports, ranks=4)["stages_ns"]["load"] == 9


def test_a_lost_node_explains_the_exits_that_came_before():
    recovery = Recovery(fault=fault(), from_step=4)
    lost = Fault(
        event=Event.NODE_LOST, attempt=0, cause="node_lost", reason="r", onset_ns=0, detected_ns=0, node="b"
    )
    recovery.blame(lost)
    detail = recovery.finish(1, 1, [], ranks=4)
    assert (detail["culprit"], detail["cause"]) == ("b", "node_lost")


def test_a_restore_from_a_step_that_a_laggard_had_reached_loses_nothing():
    recovery = Recovery(fault=fault(), from_step=4)
    recovery.resumed_step = 5
    assert recovery.finish(1, 1, [], ranks=4)["lost_steps"] == 0


def test_the_record_says_which_nodes_joined_and_left():
    recovery = Recovery(fault=fault(), from_step=4, from_nodes=("a", "b"))
    detail = recovery.finish(1, 1, [], ranks=4, nodes=["c", "b"])
    assert (detail["joined_nodes"], detail["left_nodes"]) == (["c"], ["a"])
    unknown = Recovery(fault=fault(), from_step=4).finish(1, 1, [], ranks=4, nodes=["c"])
    assert (unknown["joined_nodes"], unknown["left_nodes"]) == ([], [])


@pytest.mark.parametrize(
    ("restored", "reports", "expected"),
    [
        (5, (), (5, "checkpointer", "", 2)),
        (-1, (first_step(resumed_step=-1),), (-1, "nothing", "", 8)),
        (-1, (first_step(resumed_step=3, resumed_path="/c/3.pt"), first_step()), (3, "script", "/c/3.pt", 4)),
        (5, (first_step(resumed_step=3),), (5, "checkpointer", "", 2)),
    ],
)
def test_lost_steps_are_counted_from_where_the_job_really_went_on(restored, reports, expected):
    recovery = Recovery(fault=fault(), from_step=7, resumed_step=restored)
    detail = recovery.finish(20, 1, reports, ranks=4)
    keys = ("resumed_step", "resumed_by", "resumed_path", "lost_steps")
    assert tuple(detail[key] for key in keys) == expected
