"""Two real ranks over gloo, read from outside through their rings, as the agent reads them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsetrain.collectors.machine.host import process_state
from pulsetrain.collectors.rank.ring import create_ring
from pulsetrain.collectors.reading.drain import Drain
from pulsetrain.collectors.reading.ring_reader import RingReader
from pulsetrain.protocol.messages import RankStatus

pytestmark = pytest.mark.integration
SCRIPT = Path(__file__).with_name("rank_script.py")


class Rank:
    def __init__(self, rank: int, mode: str, folder: Path) -> None:
        fd = create_ring()
        environ = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "STORE": str(folder / "store")}
        environ |= {"PULSETRAIN_RING_FD": str(fd), "OMP_NUM_THREADS": "1"}
        self.errors = folder / f"stderr{rank}"
        with self.errors.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, str(SCRIPT), mode], env=environ, pass_fds=[fd], stderr=stderr
            )
        self.reader = RingReader(fd)
        os.close(fd)
        self.drain = Drain(
            self.reader, job="j", attempt=0, node="n", rank=rank, local_rank=rank, address="127.0.0.1"
        )

    def status(self) -> RankStatus:
        pid = self.process.pid
        return self.drain.status(pid, process_state(pid), time.time_ns())

    def rows(self, record: str = "spans") -> list[dict[str, object]]:
        batches = [b for b in self.drain.batches(time.time_ns(), final=True) if b.record == record]
        return [row for batch in batches for row in batch.to_rows()]


@pytest.fixture
def ranks(tmp_path, request) -> Iterator[list[Rank]]:
    both = [Rank(i, request.param, tmp_path) for i in range(2)]
    yield both
    for rank in both:
        rank.process.kill()
        rank.process.wait()


def until(condition, limit_s: float = 100.0, where: object = None) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, where
        time.sleep(0.05)


def sent(rows: list[dict[str, object]], step: int) -> list[tuple[object, ...]]:
    """(phase, seq, bytes) of a step's communication, in the order in which it was enqueued."""
    own = [r for r in rows if r["step"] == step and r["category"] == "communication"]
    return [(r["phase"], r["seq"], r["bytes"]) for r in sorted(own, key=lambda r: r["start"])]


@pytest.mark.parametrize("ranks", ["everything"], indirect=True)
def test_every_way_of_communicating_is_seen_and_a_bug_stays_the_scripts_own(ranks):
    for rank in ranks:
        until(lambda rank=rank: rank.process.poll() is not None)
        # Not -11: hooks that outlive the interpreter would crash it and hide the script's own error.
        assert rank.process.returncode == 1
        assert "the script's own bug" in rank.errors.read_text()
        assert rank.reader.status().errors == 0
    rows = ranks[0].rows()
    assert sent(rows, 0) == [("all_reduce", 1, 16), ("all_reduce", 2, 16), ("barrier", 3, 0)]
    assert sent(rows, 1) == [("send", 1, 16), ("send", 2, 16), ("recv", 1, 16)]
    assert sent(rows, 2)[0] == ("all_reduce", 4, 16)
    assert [phase for phase, *_ in sent(rows, 3)] == ["all_reduce"]
    assert [phase for phase, *_ in sent(rows, 5)] == ["all_reduce"]
    (bucket,) = (r for r in rows if r["step"] == 5 and r["category"] == "communication")
    assert bucket["duration_ns"] < 2_900_000_000, (
        "DDP's bucket ended with the backward pass, not with the step"
    )
    assert [phase for phase, *_ in sent(rows, 6)] == ["all_gather", "reduce_scatter"]
    _check_pipeline([r for r in rows if r["step"] == 7])
    first = next(r for r in rows if r["phase"] == "all_reduce")
    assert (first["group"], first["parent"], first["microbatch"]) == ("world", "forward", -1)
    _check_counts(ranks)


def _check_pipeline(rows: list[dict[str, object]]) -> None:
    for phase in ("forward", "backward"):
        assert [r["microbatch"] for r in rows if r["phase"] == phase] == [0, 1, 2]
    assert {r["phase"] for r in rows if r["category"] == "communication"} >= {"send", "recv"}


def _check_counts(ranks: list[Rank]) -> None:
    groups = [rank.status().groups[0] for rank in ranks]
    assert groups[0].members == groups[1].members == (0, 1)
    assert groups[0].group == groups[1].group == "world"
    assert groups[0].enqueued == groups[1].enqueued > 10
    assert groups[0].completed >= groups[0].enqueued - 1
    assert groups[0].op in ("", "all_reduce"), "the isend that nobody waited for is not in flight for ever"
    for rank, tp in zip(ranks, (0, 1), strict=True):
        assert rank.reader.topology() == (tp, 0, 0, 0, 0)


@pytest.mark.parametrize("ranks", ["stuck"], indirect=True)
def test_a_rank_that_holds_its_gil_is_stopped_or_is_dead_still_says_where_it_is(ranks):
    waiting, culprit = ranks
    until(lambda: culprit.status().last_phase == "my loader" and _in_flight(waiting) == 2)
    _check_stuck(waiting, culprit, "sleeping")
    for rank in ranks:
        rank.process.send_signal(signal.SIGSTOP)
    until(lambda: culprit.status().state == "stopped")
    _check_stuck(waiting, culprit, "stopped")
    for rank in ranks:
        rank.process.kill()
        rank.process.wait()
    _check_stuck(waiting, culprit, "gone")
    until(lambda: culprit.status().phase_age_ns > 1_000_000_000)
    open_spans = [(r["phase"], r["open"], r["group"], r["seq"]) for r in waiting.rows() if r["open"]]
    assert open_spans == [("backward", True, "", -1), ("all_reduce", True, "world", 2)]
    assert [(r["phase"], r["category"]) for r in culprit.rows() if r["open"]] == [("my loader", "data")]


def _in_flight(rank: Rank) -> int:
    """The sequence number of the operation that `rank` is in. 0: none."""
    status = rank.status()
    return status.groups[0].op_seq if status.groups and status.last_phase == "all_reduce" else 0


def _check_stuck(waiting: Rank, culprit: Rank, state: str) -> None:
    there, here = waiting.status(), culprit.status()
    assert here.state == state
    assert (there.last_step, here.last_step) == (0, 0)
    assert here.last_phase == "my loader"
    assert (here.groups[0].enqueued, here.groups[0].op) == (1, "")
    assert there.last_phase == "all_reduce"
    group = there.groups[0]
    assert (group.enqueued, group.completed, group.op, group.op_seq, group.op_bytes) == (
        2,
        1,
        "all_reduce",
        2,
        4096,
    )
    assert here.progress_age_ns > 0
