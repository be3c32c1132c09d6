"""Moves everything that a node records to the spool: rings, log files, samples, heartbeats."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from pulsetrain.agent import heartbeat
from pulsetrain.agent.output import Echo
from pulsetrain.agent.processes.rank import Rank
from pulsetrain.agent.shared_ticks import SharedTicks
from pulsetrain.agent.sources import Batches, Sink, Source
from pulsetrain.core.supervisor import FailureCollector, LoopStatus, ThreadSupervisor
from pulsetrain.protocol.messages import Heartbeat
from pulsetrain.records.columns import Columns

log = structlog.get_logger()

GATHERED = ("heartbeats", "metrics")
"""Records that nothing waits for. Samples of a few seconds go into one batch."""
MOST_ROWS = 100_000
"""Rows of one batch. A batch of a million rows is refused, and so many find room while the disk hangs."""
USUAL_FILL = 0.25
"""Share of a ring that may be in use when it is drained. Above it, the next drain comes sooner."""
SHORTEST_DRAIN_S = 0.05
STEPS_A_DRAIN = 3
"""Steps of a rank that one drain takes. A job with short steps is drained sooner."""
SHORTEST_STEPS_S = 0.4
"""For their sake rings are drained no sooner. Each drain costs the node a ms or two."""
QUIET_S = 5.0
"""Ranks that have printed nothing for so long are quiet."""
QUIET_SLOWER = 4
ECHO_FLUSH_S = 5.0
"""The end waits for the terminal for so long at most."""
STALE_AFTER_S = 10.0
"""A loop is stale after so many seconds, or after five of its periods where that is longer."""


@dataclass(frozen=True, kw_only=True)
class RecorderPeriods:
    """How often the recorder does what, in seconds."""

    drain_s: float
    """Rings are drained at the latest. They are drained sooner where they fill quickly or steps are short."""
    echo_s: float
    """What ranks print is echoed."""
    sample_s: float
    """Sources are sampled."""
    gather_s: float = 5.0
    """Heartbeats and samples are written. Those of a few seconds make one batch."""
    rare_s: float = 10.0
    """Rare sources are sampled. Each batch costs the node and the store a few ms, however few rows it has."""


class Recorder:
    """Moves rows of ranks and of sources to a sink, and the output of ranks to the agent's own output.

    Rows of `rare_sources` may arrive late. `echo_ranks` says for a local rank whether its output is echoed.
    `ticks` gives, for a period, the moments at which the nodes of the job send together.
    """

    def __init__(
        self,
        sink: Sink,
        ranks: Callable[[], Sequence[Rank]],
        periods: RecorderPeriods,
        *,
        agent_pid: int,
        sources: Sequence[Source] = (),
        rare_sources: Sequence[Source] = (),
        echo_ranks: Callable[[int], bool] = lambda local_rank: True,
        node_gauges: Callable[[], Mapping[str, float]] = dict,
        ticks: Callable[[float], SharedTicks] = lambda period_s: SharedTicks(period_s=period_s),
    ) -> None:
        self._sink, self._ranks = sink, ranks
        self._sources, self._rare_sources = sources, rare_sources
        self._echo_ranks = echo_ranks
        self._node_gauges = node_gauges
        self._agent_pid = agent_pid
        self._heartbeats: list[Heartbeat] = []
        self._gathered: list[Columns] = []
        self._drain_ticks, self._sample_ticks = ticks(periods.drain_s), ticks(periods.sample_s)
        self._gather_ticks, self._rare_ticks = ticks(periods.gather_s), ticks(periods.rare_s)
        self._write_due_s = time.monotonic() + self._gather_ticks.wait_s(periods.gather_s)
        self._drain_s = self._next_drain_s = periods.drain_s
        self._echo, self._echo_s, self._echoed_s = Echo(), periods.echo_s, time.monotonic()
        self._turns: Mapping[str, tuple[float, Callable[[], float | None]]] = {
            "drain_rings": (periods.drain_s, self._drain_turn),
            "sample": (periods.sample_s, self._sample),
            "rare_sources": (periods.rare_s, self._sample_rare),
            "echo_output": (periods.echo_s, self._echo_turn),
        }
        self._loops = ThreadSupervisor()
        for name, (period_s, work) in self._turns.items():
            self._loops.add(name, _every(period_s, work), stale_after_s=max(STALE_AFTER_S, 5 * period_s))

    @property
    def loops(self) -> tuple[LoopStatus, ...]:
        """How the recorder's threads are."""
        return tuple(self._loops.statuses())

    def gauges(self) -> Mapping[str, float]:
        """Numbers for the heartbeat.

        `spool_bytes`; `dropped_rows`: all that the spool lost, and `dropped_REASON` for each reason that
        occurred; `ring_dropped`: what full rings lost; `output_skipped_bytes`: what ranks printed too fast to
        be recorded; `recorder_failures`: turns of loops that failed. Beside them the gauges of the node, such
        as `gpus`.
        """
        return {
            **self._node_gauges(),
            "spool_bytes": self._sink.size_bytes,
            "dropped_rows": self._sink.dropped_rows,
            **{f"dropped_{reason}": count for reason, count in self._sink.dropped.items() if count},
            "ring_dropped": sum(rank.drain.dropped for rank in self._ranks()),
            "output_skipped_bytes": sum(t.skipped_bytes for rank in self._ranks() for t in rank.tails),
            "recorder_failures": sum(loop.failures for loop in self.loops),
        }

    def start(self) -> None:
        """Begin."""
        self._loops.start()

    def stop(self) -> None:
        """End the threads, then move what is left."""
        self._loops.stop()
        for name, (_, work) in self._turns.items():
            try:
                work()
            except Exception:
                log.exception("last_records_lost", loop=name)
        self._write_gathered()
        self._echo.poll(final=True)
        self._echo.flush(ECHO_FLUSH_S)

    def follow(self, ranks: Sequence[Rank]) -> None:
        """Echo what these ranks print from now on, and what is left of the others' output."""
        self._echo.poll(final=True)
        for rank in ranks:
            if self._echo_ranks(rank.local_rank):
                self._echo.follow(rank.out, f"[{rank.rank}] ", sys.stdout)
                self._echo.follow(rank.err, f"[{rank.rank}] ", sys.stderr)

    def heartbeat(self, heartbeat: Heartbeat) -> None:
        """Record this heartbeat with the next samples."""
        self._heartbeats.append(heartbeat)

    def drain(self) -> float:
        """Empty every ring, and return how many steps a rank had done.

        All ranks' rows of a record become one batch: each costs the node half a ms. A rank whose rows cannot
        be made does not stop the others. What it raised is raised at the end.
        """
        now_ns, ranks, failures = time.time_ns(), self._ranks(), FailureCollector()
        batches: list[Columns] = []
        for rank in ranks:
            with failures.collect(f"rank {rank.rank}"):
                batches += rank.batches(now_ns)
        with failures.collect("writing"):
            self._append(batches)
        failures.raise_any()
        return sum(batch.num_rows for batch in batches if batch.record == "steps") / max(1, len(ranks))

    def _drain_turn(self) -> float:
        """Drain, and say when the next drain is due: the fuller the rings were or the shorter the steps, the
        sooner."""
        steps = self.drain()
        fill = max((rank.drain.fill for rank in self._ranks()), default=0.0)
        by_fill_s = self._next_drain_s * USUAL_FILL / fill if fill else self._drain_s
        by_steps_s = self._next_drain_s * STEPS_A_DRAIN / steps if steps else self._drain_s
        wanted_s = min(max(by_fill_s, SHORTEST_DRAIN_S), max(by_steps_s, SHORTEST_STEPS_S))
        self._next_drain_s = self._drain_ticks.wait_s(min(wanted_s, self._drain_s))
        return self._next_drain_s

    def _echo_turn(self) -> float:
        """Echo what is new. Ranks that print nothing are looked at less often."""
        now_s = time.monotonic()
        if self._echo.poll():
            self._echoed_s = now_s
        return self._echo_s if now_s - self._echoed_s < QUIET_S else self._echo_s * QUIET_SLOWER

    def _sample(self) -> float:
        """Take samples, and say when the next are due. What gathers is written when it is time."""
        try:
            self._take(self._sources)
        finally:
            if time.monotonic() + self._sample_ticks.period_s / 2 >= self._write_due_s:
                self._write_gathered()
        return self._sample_ticks.wait_s(self._sample_ticks.period_s)

    def _sample_rare(self) -> float:
        """Take samples of rare sources, and say when the next are due."""
        self._take(self._rare_sources)
        return self._rare_ticks.wait_s(self._rare_ticks.period_s)

    def _write_gathered(self) -> None:
        """Write the heartbeats and samples of the last seconds, one batch of each record."""
        self._write_due_s = time.monotonic() + self._gather_ticks.wait_s(self._gather_ticks.period_s)
        heartbeats, self._heartbeats = self._heartbeats, []
        gathered, self._gathered = self._gathered, []
        if heartbeats:
            gathered.append(heartbeat.rows(heartbeats, self._agent_pid))
        self._write(gathered)

    def _take(self, sources: Sequence[Source]) -> None:
        """Take the rows of every source. One that fails does not stop the others."""
        now_ns = time.time_ns()
        failures = FailureCollector()
        for source in sources:
            with failures.collect(type(source).__name__):
                self._append(source.take(now_ns))
        failures.raise_any()

    def _append(self, batches: Batches) -> None:
        """Write batches, but let those of `GATHERED` wait for more."""
        at_once: list[Columns] = []
        for batch in batches:
            (self._gathered if batch.record in GATHERED else at_once).append(batch)
        self._write(at_once)

    def _write(self, batches: Sequence[Columns]) -> None:
        """Hand batches to the sink, those of a record as one. What it refuses does not stop the others."""
        by_record: dict[str, list[Columns]] = {}
        for batch in batches:
            by_record.setdefault(batch.record, []).append(batch)
        failures = FailureCollector()
        for record, parts in by_record.items():
            for piece in Columns.concat(parts).pieces(MOST_ROWS):
                with failures.collect(record):
                    self._sink.append(piece)
        failures.raise_any()


def _every(period_s: float, work: Callable[[], float | None]) -> Callable[[], float]:
    """A turn of a loop that does `work` at the end of each period. `work` may say when it is due again."""
    waited = False

    def turn() -> float:
        nonlocal waited
        next_s = work() if waited else None
        waited = True
        return period_s if next_s is None else next_s

    return turn
