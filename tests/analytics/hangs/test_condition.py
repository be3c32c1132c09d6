"""What a rank does that its peers wait for: a hang that cannot end, work, a wait, or nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.analytics.hangs.condition import judge
from pulsetrain.protocol.messages import RankActivity
from tests.analytics.hangs.test_posture import posture, sample

S = 10**9


def activity(**fields):
    idle = {"cpu_ratio": 0.0, "helper_cpu_ratio": 0.0, "io_bytes_s": 0.0, "still_ns": 20 * S}
    return RankActivity(rank=0, **(idle | fields))


def busy(**fields):
    return activity(**({"cpu_ratio": 1.0, "still_ns": 0} | fields))


def stands(seconds, *frames, **fields):
    return posture(*(sample(t, *frames, **fields) for t in range(seconds + 1)))


def test_a_rank_that_ran_within_the_last_second_is_not_frozen_though_it_was_seen_stopped():
    assert judge("stopped", "", activity(cpu_ratio=0.02)).kind == "working"
    assert judge("stopped", "", activity(cpu_ratio=0.0)).kind == "frozen"


@pytest.mark.parametrize("state", ["stopped", "zombie", "gone"])
def test_a_process_that_cannot_move_is_frozen_whatever_else_is_known(state):
    assert judge(state, "").kind == "frozen"
    assert judge(state, "checkpoint", activity(), stands(9)).kind == "frozen"


def test_a_person_with_a_debugger_is_no_hang():
    assert judge("stopped", "", activity(traced=True)).kind == "debugger"
    prompt = stands(9, "main (train.py:1)", "interaction (lib/pdb.py:5)")
    assert judge("sleeping", "", activity(waits_in="read"), prompt).kind == "debugger"


@pytest.mark.parametrize(
    "moves",
    [
        {"io_bytes_s": 5e6, "still_ns": 0},
        {"helper_cpu_ratio": 0.9, "still_ns": 0},
        {"cpu_ratio": 0.8, "still_ns": 0},
        {"cpu_ratio": 6.0, "still_ns": 0},
    ],
)
def test_bytes_children_and_computing_are_work(moves):
    assert judge("running", "", activity(**moves)).kind == "working"


def test_computing_in_changing_places_is_work_however_long():
    turns = [sample(t, f"main (a.py:{t})", "mm (b.py:1)") for t in range(60)]
    assert judge("running", "", busy(), posture(*turns)).kind == "working"


def test_computing_in_several_threads_or_with_new_memory_is_work():
    one_place = stands(60, gil="MainThread")
    assert judge("running", "", busy(cpu_ratio=2.0), one_place).kind == "working"
    assert judge("running", "", busy(faults_s=500.0), one_place).kind == "working"


def test_python_that_turns_in_one_line_is_a_loop():
    found = judge("running", "", busy(), stands(30, gil="MainThread", idle_line=True))
    assert (found.kind, found.lasts_ns) == ("loop", 30 * S)
    two_lines = [sample(t, "main (a.py:9)", f"poll (a.py:{t % 2})", gil="MainThread") for t in range(31)]
    assert judge("running", "", busy(), posture(*two_lines)).kind == "loop"


def test_one_line_that_calls_something_may_be_a_long_call_that_keeps_the_gil():
    assert judge("running", "", busy(), stands(30, gil="MainThread")).kind == "spin"


def test_a_main_thread_that_stands_while_another_thread_computes_waits():
    """As in `executor.submit(metrics).result()`, or while something is loaded beside a sleep."""
    for waits_in, gil in (("lock", "pool_N"), ("sleep", "pool_N"), ("sleep", ""), ("poll", "MainThread")):
        found = judge("sleeping", "", busy(waits_in=waits_in), stands(60, gil=gil, idle_line=True))
        assert found.kind == "waits", (waits_in, gil)
    assert judge("running", "", busy(), stands(60, gil="pool_N", idle_line=True)).kind == "waits"


def test_python_that_passes_through_many_lines_of_one_function_is_work():
    turns = [sample(t, "main (a.py:9)", f"build (a.py:{t % 5})", gil="MainThread") for t in range(30)]
    assert judge("running", "", busy(), posture(*turns)).kind == "working"


def test_a_long_call_outside_python_is_no_loop():
    assert judge("running", "", busy(), stands(30)).kind == "spin"


def test_a_rank_that_turns_in_a_call_that_waits_for_its_device_is_told_from_one_that_computes():
    found = judge("running", "", busy(), stands(30, device_line=True))
    assert (found.kind, found.lasts_ns) == ("device", 30 * S)
    assert judge("running", "", busy(), stands(30, device_line=True, gil="MainThread")).kind == "spin"
    assert judge("running", "", busy(cpu_ratio=2.0), stands(30, device_line=True)).kind == "working"


def test_a_look_at_a_busy_rank_that_is_too_short_proves_nothing():
    assert judge("running", "", busy(), stands(2, gil="MainThread")).kind == "working"


def test_a_thread_that_holds_the_gil_and_does_nothing_is_no_pause():
    found = judge("sleeping", "", activity(waits_in="sleep"), stands(9, gil="MainThread"))
    assert (found.kind, found.lasts_ns) == ("held_gil", 9 * S)
    assert judge("sleeping", "data", activity(), stands(9, gil="MainThread")).kind == "slow_phase"


@pytest.mark.parametrize(("state", "waits_in"), [("disk", ""), ("sleeping", "read"), ("sleeping", "other")])
def test_a_thread_that_holds_the_gil_while_a_file_comes_slowly_waits(state, waits_in):
    """As an import from a file system that stalls, or a page of mapped memory."""
    assert judge(state, "", activity(waits_in=waits_in), stands(60, gil="MainThread")).kind == "waits"


@pytest.mark.parametrize("waits_in", ["sleep", "poll", "read", "child"])
def test_a_wait_that_may_end_is_told_from_a_lock_that_may_not(waits_in):
    assert judge("sleeping", "", activity(waits_in=waits_in)).kind == "waits"
    assert judge("sleeping", "", activity(waits_in="lock"), stands(2)).kind == "still"
    assert judge("sleeping", "", activity(waits_in="other"), stands(2)).kind == "waits"
    assert judge("sleeping", "", activity(waits_in="lock"), stands(2, locked=False)).kind == "waits"
    assert judge("sleeping", "", activity(waits_in="lock"), stands(2, cut=True)).kind == "waits"
    assert judge("sleeping", "", activity(waits_in="lock")).kind == "unknown"
    assert judge("sleeping", "", activity(waits_in="")).kind == "unknown"
    assert judge("disk", "", activity()).kind == "waits"


def test_a_rank_that_waits_for_a_thread_of_its_own_waits():
    found = judge("sleeping", "", activity(waits_in="lock"), stands(9, helper="download_0"))
    assert (found.kind, found.why) == ("waits", "waits for its thread download_0")


@pytest.mark.parametrize(
    "frame",
    [
        "save (torch/serialization.py:900)",
        "_next_data (data/dataloader.py:7)",
        "compile (_inductor/graph.py:1)",
    ],
)
def test_frames_tell_a_slow_phase(frame):
    assert judge("sleeping", "", activity(), stands(9, "main (a.py:1)", frame)).kind == "slow_phase"


def test_a_compiled_function_that_runs_is_not_compiling():
    running = stands(9, "main (a.py:1)", "_fn (_dynamo/eval_frame.py:1044)")
    assert judge("sleeping", "", activity(waits_in="lock"), running).kind == "still"


def test_without_any_look_nothing_is_claimed():
    assert judge("sleeping", "").kind == "unknown"
    assert judge("sleeping", "checkpoint").kind == "slow_phase"
    assert judge("running", "", None, stands(60, gil="MainThread")).kind == "unknown"


@given(
    st.sampled_from(["running", "sleeping", "disk"]),
    st.sampled_from(["", "checkpoint"]),
    st.floats(0, 3),
    st.floats(0, 1e8),
    st.integers(0, 100),
)
def test_bytes_that_move_now_are_never_a_hang(state, phase, cpu, io, seconds):
    moves = activity(cpu_ratio=cpu, io_bytes_s=4096 + io, still_ns=0)
    assert judge(state, phase, moves, stands(seconds, gil="MainThread")).kind == "working"
