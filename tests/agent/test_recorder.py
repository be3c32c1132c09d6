"""What sources have reaches the sink, also what comes between the last look and the end."""

import pytest

from pulsetrain.agent import recorder as recorder_module
from pulsetrain.agent.recorder import Recorder, RecorderPeriods
from pulsetrain.agent.shared_ticks import SharedTicks
from pulsetrain.core.errors import SchemaMismatch
from pulsetrain.records import encoding
from pulsetrain.records.columns import Columns
from tests.checkpoint.trainers import wait_until
from tests.records.rows import columns


class Sink:
    """Keeps what it is given."""

    size_bytes, dropped_rows = 0, 0

    def __init__(self) -> None:
        self.rows: dict[str, list[int]] = {}
        self.dropped: dict[str, int] = {}
        self.batches: list[str] = []

    def append(self, batch: Columns) -> bool:
        column = "value" if batch.record == "metrics" else "rank"
        self.rows.setdefault(batch.record, []).extend(batch.column(column).to_list())
        self.batches.append(batch.record)
        return True


class Source:
    """One record's rows."""

    def __init__(self, record: str) -> None:
        self.record, self.waiting = record, [1]

    def take(self, now_ns: int):
        taken, self.waiting = self.waiting, []
        return [columns(self.record, len(taken), rank=taken)] if taken else []


def test_rare_sources_are_asked_seldom_and_at_the_end():
    sink, often, rare = Sink(), Source("events"), Source("checkpoints")
    recorder = Recorder(
        sink,
        lambda: [],
        RecorderPeriods(drain_s=60.0, echo_s=60.0, sample_s=0.001, rare_s=60.0),
        agent_pid=1,
        sources=(often,),
        rare_sources=(rare,),
    )
    recorder.start()
    wait_until(lambda: sink.rows.get("events"))
    assert "checkpoints" not in sink.rows
    rare.waiting.append(2)
    recorder.stop()
    assert sink.rows == {"events": [1], "checkpoints": [1, 2]}


class Samples:
    """One sample at each look, beside an event."""

    def __init__(self) -> None:
        self.taken = 0

    def take(self, now_ns: int):
        self.taken += 1
        return [columns("metrics", 1, value=[float(self.taken)]), columns("events", 1, rank=[self.taken])]


def test_samples_gather_and_events_do_not():
    sink, source = Sink(), Samples()
    periods = RecorderPeriods(drain_s=60.0, echo_s=60.0, sample_s=0.001, gather_s=60.0)
    recorder = Recorder(sink, lambda: [], periods, agent_pid=1, sources=(source,))
    recorder.start()
    wait_until(lambda: source.taken >= 3)
    assert len(sink.rows["events"]) >= 2
    assert "metrics" not in sink.rows
    recorder.stop()
    assert sink.rows["metrics"] == sink.rows["events"]
    assert sink.batches.count("metrics") == 1


def on_a_tick(period_s: float) -> SharedTicks:
    """Ticks of a clock that stands on one."""
    return SharedTicks(period_s=period_s, now_s=lambda: 100.0 * period_s)


class FillingRing:
    """A rank whose ring is found used to this share, one after the other."""

    def __init__(self, *fills: float) -> None:
        self.rank, self.drain, self._fills = 0, self, list(fills)
        self.fill, self.dropped = 0.0, 0

    def batches(self, now_ns: int):
        self.fill = self._fills.pop(0)
        return []


class SteppingRing(FillingRing):
    """A rank that has done so many steps, one number after the other."""

    def __init__(self, *steps: int) -> None:
        super().__init__(*[0.0] * len(steps))
        self._steps = list(steps)

    def batches(self, now_ns: int):
        steps = self._steps.pop(0)
        row = {name: None for name in ("loss", "grad_norm")} | {"start": now_ns}
        texts, numbers = ("job", "node"), ("attempt", "rank", "step", "duration_ns", "tokens", "flops")
        row |= dict.fromkeys(texts, "") | dict.fromkeys(numbers, 0)
        return [*super().batches(now_ns), Columns.from_rows("steps", [row] * steps)]


@pytest.mark.parametrize(
    ("steps", "pauses"),
    [((1, 3), [1.0, 1.0]), ((6, 3, 1), [0.5, 0.5, 1.0]), ((4,), [1.0]), ((60, 60), [0.5, 0.5])],
)
def test_the_shorter_steps_are_the_sooner_a_ring_is_drained_again(steps, pauses):
    ring = SteppingRing(*steps)
    periods = RecorderPeriods(drain_s=1.0, echo_s=60.0, sample_s=60.0)
    recorder = Recorder(Sink(), lambda: [ring], periods, agent_pid=1, ticks=on_a_tick)
    assert [recorder._drain_turn() for _ in steps] == pytest.approx(pauses)


@pytest.mark.parametrize(
    ("fills", "pauses"),
    [
        ((0.0, 0.1, 0.25), [1.0, 1.0, 1.0]),
        ((1.0, 0.5, 0.0), [0.25, 0.125, 1.0]),
        ((1.0, 1.0, 1.0), [0.25, 0.0625, 0.05]),
    ],
)
def test_the_fuller_a_ring_was_the_sooner_it_is_drained_again(fills, pauses):
    ring = FillingRing(*fills)
    periods = RecorderPeriods(drain_s=1.0, echo_s=60.0, sample_s=60.0)
    recorder = Recorder(Sink(), lambda: [ring], periods, agent_pid=1, ticks=on_a_tick)
    assert [recorder._drain_turn() for _ in fills] == pytest.approx(pauses)


class PrintingRank:
    """A rank that has events, or whose rows cannot be made."""

    def __init__(self, rank: int, error: Exception | None = None) -> None:
        self.rank, self._error = rank, error

    def batches(self, now_ns: int):
        if self._error is not None:
            raise self._error
        return [columns("events", 1, rank=[self.rank]), columns("steps", 1, rank=[self.rank])]


def test_a_rank_whose_rows_cannot_be_made_does_not_lose_those_of_the_others():
    sink = Sink()
    ranks = [PrintingRank(0), PrintingRank(1, ValueError("a torn slot")), PrintingRank(2)]
    recorder = Recorder(sink, lambda: ranks, RecorderPeriods(drain_s=1, echo_s=60, sample_s=60), agent_pid=1)
    with pytest.raises(ValueError, match="torn") as raised:
        recorder.drain()
    assert raised.value.__notes__ == ["rank 1"]
    assert sink.rows == {"events": [0, 2], "steps": [0, 2]}


def test_a_batch_that_cannot_be_written_does_not_lose_those_of_other_records(monkeypatch):
    sink = Sink()
    keep = sink.append

    def append(batch):
        if batch.record == "events":
            raise SchemaMismatch("no events")
        return keep(batch)

    monkeypatch.setattr(sink, "append", append)
    periods = RecorderPeriods(drain_s=1, echo_s=60, sample_s=60)
    recorder = Recorder(sink, lambda: [PrintingRank(3)], periods, agent_pid=1)
    with pytest.raises(SchemaMismatch):
        recorder.drain()
    assert sink.rows == {"steps": [3]}


def test_more_rows_than_a_batch_may_have_come_as_several(monkeypatch):
    monkeypatch.setattr(recorder_module, "MOST_ROWS", 3)
    sink, ranks = Sink(), [PrintingRank(rank) for rank in range(7)]
    recorder = Recorder(sink, lambda: ranks, RecorderPeriods(drain_s=1, echo_s=60, sample_s=60), agent_pid=1)
    recorder.drain()
    assert sink.rows == {"events": list(range(7)), "steps": list(range(7))}
    assert sink.batches == ["events"] * 3 + ["steps"] * 3
    assert recorder_module.MOST_ROWS <= encoding.MAX_ROWS
