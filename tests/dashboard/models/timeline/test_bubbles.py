"""When a rank of a pipeline stood still between the work of its stage."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from pulsetrain.dashboard.models.timeline.bubbles import bubbles_of, gaps, total_ns
from pulsetrain.dashboard.models.timeline.spans import spans_of
from pulsetrain.simulate.spec import FleetSpec
from pulsetrain.simulate.telemetry import telemetry
from pulsetrain.simulate.timing import simulate_step
from tests.dashboard.models.timeline.rows import collective, row, spans, transfer


def bubbles(*rows):
    return [(b.rank, b.start_ns, b.end_ns) for b in bubbles_of(spans(*rows))]


def stage(start, length, microbatch=0, rank=0, **values):
    return row(start, length, rank, microbatch=microbatch, **values)


FORWARDS = (stage(100, 100), stage(300, 100, 1))
RECV = transfer("recv", 0, 1, 200, 100)


def test_the_wait_for_the_next_microbatch_is_a_bubble():
    assert bubbles(*FORWARDS, RECV) == [(0, 200, 300)]


def test_the_wait_before_the_first_microbatch_is_one_too():
    assert bubbles(*FORWARDS, RECV, transfer("recv", 0, 1, 0, 100, seq=2)) == [(0, 0, 100), (0, 200, 300)]


def test_a_rank_that_neither_sends_nor_receives_has_none():
    assert bubbles(*FORWARDS, collective(200, 100)) == []


def test_other_work_is_no_bubble_and_a_send_that_goes_on_beside_is():
    assert bubbles(*FORWARDS, RECV, row(200, 60, phase="data", category="data")) == [(0, 260, 300)]
    assert bubbles(*FORWARDS, RECV, transfer("send", 0, 1, 200, 100, blocked_ns=0)) == [(0, 200, 300)]


def test_time_without_a_processor_is_no_work():
    lost = row(200, 60, phase="cpu_wait", category="other", lane="not running")
    assert bubbles(*FORWARDS, RECV, lost) == [(0, 200, 300)]


def test_the_wait_for_other_replicas_after_the_last_pass_is_none():
    assert bubbles(*FORWARDS, RECV, collective(400, 500)) == [(0, 200, 300)]


def test_a_forward_around_those_of_microbatches_does_not_hide_the_wait():
    assert bubbles(row(90, 400), *FORWARDS, RECV) == [(0, 90, 100), (0, 200, 300)]


def test_forwards_of_the_device_count_before_those_that_launch_them():
    device = (stage(120, 50, lane="cuda:0"), stage(300, 100, 1, lane="cuda:0"))
    launched = (stage(100, 10), stage(110, 10, 1))
    assert bubbles(*launched, *device, RECV) == [(0, 100, 120), (0, 170, 300)]


def test_open_work_ends_the_bubbles_where_it_began():
    assert bubbles(stage(100, 100), stage(300, 10**9, 1, open=True), RECV) == [(0, 200, 300)]


def test_a_gap_that_is_the_scripts_own_code_is_none():
    assert bubbles(stage(0, 100_000), stage(100_100, 100_000, 1), transfer("recv", 0, 1, 0, 1)) == []


def test_steps_attempts_and_ranks_are_apart():
    rows = [
        {**r, "step": s, "attempt": a, "rank": k}
        for r in (*FORWARDS, RECV)
        for s, a, k in ((1, 0, 0), (2, 0, 1), (1, 1, 0))
    ]
    found = bubbles_of(spans(*rows))
    assert [(b.attempt, b.step, b.rank) for b in found] == [(0, 1, 0), (0, 2, 1), (1, 1, 0)]
    assert total_ns(found, 0) == 200


def test_a_step_without_work_of_a_stage_has_none():
    assert bubbles(RECV) == []
    assert bubbles() == []


@pytest.mark.parametrize(
    ("busy", "left"),
    [([], [(0, 10)]), ([(0, 10)], []), ([(-5, 3), (2, 4)], [(4, 10)]), ([(8, 99)], [(0, 8)])],
)
def test_what_intervals_leave(busy, left):
    assert gaps(busy, 0, 10) == left


def test_the_bubbles_of_a_simulated_pipeline_are_what_its_ranks_wait_to_receive():
    spec = FleetSpec(ranks=8, tp=1, pp=4, steps=1)
    table = pa.concat_tables([t for record, t in telemetry(spec) if record == "spans"])
    table = table.append_column("start_ns", table["start"].cast(pa.int64()))
    found = bubbles_of(
        spans_of(table.append_column("spans_in_all", pa.array(np.full(len(table), len(table)))))
    )
    times = simulate_step(spec, 0)
    waits = (times.forward_wait + times.backward_wait).sum(axis=-1).reshape(-1) * 1e9
    for rank in range(8):
        assert total_ns(found, rank) == pytest.approx(waits[rank], rel=0.01)
