"""What sources have reaches the sink, also what comes between the last look and the end."""

from pulsetrain.agent.recorder import Recorder, RecorderPeriods
from pulsetrain.records.columns import Columns
from tests.checkpoint.trainers import wait_until
from tests.records.rows import columns


class Sink:
    """Keeps what it is given."""

    size_bytes, dropped_rows = 0, 0

    def __init__(self) -> None:
        self.rows: dict[str, list[int]] = {}
        self.dropped: dict[str, int] = {}

    def append(self, batch: Columns) -> bool:
        self.rows.setdefault(batch.record, []).extend(batch.column("rank").to_list())
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
