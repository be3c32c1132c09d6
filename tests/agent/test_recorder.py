"""What sources have reaches the sink, also what comes between the last look and the end."""

import pyarrow as pa

from pulsetrain.agent.recorder import Recorder
from tests.checkpoint.trainers import wait_until


class Sink:
    """Keeps what it is given."""

    size_bytes, dropped_rows = 0, 0

    def __init__(self) -> None:
        self.rows: dict[str, list[int]] = {}
        self.dropped: dict[str, int] = {}

    def append(self, record: str, batch: pa.Table) -> bool:
        self.rows.setdefault(record, []).extend(batch.column("x").to_pylist())
        return True


class Source:
    """One record's rows."""

    def __init__(self, record: str) -> None:
        self.record, self.waiting = record, [1]

    def take(self, now_ns: int):
        taken, self.waiting = self.waiting, []
        return [(self.record, pa.record_batch({"x": taken}))] if taken else []


def test_rare_sources_are_asked_seldom_and_at_the_end():
    sink, often, rare = Sink(), Source("often"), Source("rare")
    pump = Recorder(
        sink,
        lambda: [],
        drain_s=60.0,
        echo_s=60.0,
        sample_s=0.001,
        agent_pid=1,
        sources=(often,),
        rare_sources=(rare,),
        rare_s=60.0,
    )
    pump.start()
    wait_until(lambda: sink.rows.get("often"))
    assert "rare" not in sink.rows
    rare.waiting.append(2)
    pump.stop()
    assert sink.rows == {"often": [1], "rare": [1, 2]}
