"""What ranks record becomes a schedule, and the schedule an event."""

import json

import pytest

from pulsetrain.checkpoint.checkpoint_events import CheckpointEvents, Origin
from pulsetrain.checkpoint.peers.interleave import Interleaver
from pulsetrain.checkpoint.peers.replication_schedule import ReplicationSchedule
from pulsetrain.records.columns import Columns
from pulsetrain.records.schema import RECORDS

MS = 1_000_000


def rows(record: str, columns: dict[str, list]) -> Columns:
    count = len(next(iter(columns.values())))
    return Columns.from_values(
        record, count, {f.name: columns.get(f.name, f.default) for f in RECORDS[record].fields}
    )


def train(
    schedule: ReplicationSchedule, steps: int, *, busy_ms=lambda step: 40, step_ms: int = 100, first: int = 0
) -> None:
    """One rank; steps of 100 ms, each with one collective in its middle."""
    for step in range(first, first + steps):
        begin = 10**18 + step * step_ms * MS
        spans = {
            "rank": [0],
            "step": [step],
            "category": ["communication"],
            "open": [False],
            "start": [begin + 30 * MS],
            "duration_ns": [busy_ms(step) * MS],
        }
        schedule.observe(rows("spans", spans), lambda: 5 << 20)
        steps_rows = {"rank": [0], "step": [step], "start": [begin], "duration_ns": [step_ms * MS]}
        schedule.observe(rows("steps", steps_rows), lambda: 5 << 20)


@pytest.fixture
def events():
    return CheckpointEvents(Origin(job="j", node="n"))


def schedule(events: CheckpointEvents, profile_steps: int = 8) -> ReplicationSchedule:
    return ReplicationSchedule(
        Interleaver(chunk_bytes=1 << 20), events, profile_steps=profile_steps, replicas=2
    )


def taken(events: CheckpointEvents) -> list[tuple[str, dict]]:
    return [(r["kind"], json.loads(r["detail"])) for b in events.take("events") for r in b.to_rows()]


def test_a_regular_job_gets_one_schedule(events):
    train(schedule(events), 30)
    ((kind, plan),) = taken(events)
    assert kind == "replication_schedule"
    assert plan["steady"]
    assert plan["bytes"] == 5 << 20
    assert plan["step_s"] == pytest.approx(0.1)
    assert plan["idle_s"] == pytest.approx(0.06)
    assert plan["every_steps"] == 1


def test_steps_without_idle_time_get_no_schedule_and_an_event(events):
    one = schedule(events)
    for step in range(14):
        begin = 10**18 + step * 100 * MS
        span = {
            "rank": [0],
            "step": [step],
            "category": ["communication"],
            "open": [False],
            "start": [begin],
            "duration_ns": [100 * MS],
        }
        one.observe(rows("spans", span), lambda: 0)
        ends = {"rank": [0], "step": [step], "start": [begin], "duration_ns": [100 * MS]}
        one.observe(rows("steps", ends), lambda: 0)
    assert [kind for kind, _ in taken(events)] == ["replication_unscheduled"]


def test_there_is_no_event_before_enough_steps_or_without_profiling(events):
    train(schedule(events), 8)
    train(schedule(events, profile_steps=0), 30)
    assert taken(events) == []


def learnt(events: CheckpointEvents) -> list[float]:
    return [round(plan["step_s"], 3) for _, plan in taken(events)]


def test_gaps_are_learnt_anew_when_steps_become_longer(events):
    one = schedule(events)
    train(one, 100)
    assert learnt(events) == [0.1]
    train(one, 60, step_ms=115, first=100)
    assert learnt(events) == []
    train(one, 100, step_ms=150, first=200)
    assert learnt(events) == [0.15]


def test_gaps_are_learnt_anew_at_each_launch(events):
    one = schedule(events)
    train(one, 30)
    one.follow({})
    assert one._interleaver._profile is None
    train(one, 30)
    assert learnt(events) == [0.1, 0.1]
