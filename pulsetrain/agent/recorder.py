"""From rings, log files and the host to the spool: everything a node records, on threads of its own."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from pulsetrain.agent import heartbeat
from pulsetrain.agent.output import Echo
from pulsetrain.agent.processes.ranks import Rank
from pulsetrain.agent.ticker import Ticker
from pulsetrain.protocol.messages import Heartbeat
from pulsetrain.records.columns import Columns

RARE_S = 10.0  # each batch of rows costs the node and the store a few ms, however few they are

Batches = Iterable[Columns]


class Sink(Protocol):
    """Where batches go; never blocks for long, never raises for a full disk."""

    def append(self, batch: Columns) -> bool: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def dropped_rows(self) -> int: ...
    @property
    def dropped(self) -> Mapping[str, int]: ...


class Source(Protocol):
    """Something that has rows from time to time."""

    def take(self, now_ns: int) -> Batches: ...


class Recorder:
    """Moves rows of ranks and of `sources` to a sink, and the output of ranks to the agent's own. Nobody
    waits for rows of `rare_sources`."""

    def __init__(
        self,
        sink: Sink,
        ranks: Callable[[], Sequence[Rank]],
        *,
        drain_s: float,
        echo_s: float,
        sample_s: float,
        agent_pid: int,
        sources: Sequence[Source] = (),
        rare_sources: Sequence[Source] = (),
        rare_s: float = RARE_S,
        echo_ranks: Callable[[int], bool] = lambda local_rank: True,
    ) -> None:
        self._sink, self._ranks = sink, ranks
        self._echo_ranks = echo_ranks
        self._agent_pid = agent_pid
        self._heartbeats: list[Heartbeat] = []
        self._echo = Echo()
        self._tickers = (
            Ticker("drain", drain_s, self.drain),
            Ticker("sample", sample_s, lambda: self._sample(sources)),
            Ticker("rare", rare_s, lambda: self._take(rare_sources)),
            Ticker("echo", echo_s, self._echo.poll),
        )

    def gauges(self) -> Mapping[str, float]:
        """spool_bytes, dropped_rows (all that the spool lost, and dropped_<reason> of each reason that there
        was), ring_dropped (full rings), recorder_failures."""
        return {
            "spool_bytes": self._sink.size_bytes,
            "dropped_rows": self._sink.dropped_rows,
            **{f"dropped_{reason}": count for reason, count in self._sink.dropped.items() if count},
            "ring_dropped": sum(rank.drain.dropped for rank in self._ranks()),
            "recorder_failures": sum(ticker.failures for ticker in self._tickers),
        }

    def start(self) -> None:
        for ticker in self._tickers:
            ticker.start()

    def stop(self) -> None:
        """Move what is left, then end."""
        for ticker in self._tickers:
            ticker.stop()
        self._echo.poll(final=True)

    def follow(self, ranks: Sequence[Rank]) -> None:
        """Echo what these ranks print from now on, and the rest of what others printed."""
        self._echo.poll(final=True)
        for rank in ranks:
            if self._echo_ranks(rank.local_rank):
                self._echo.follow(rank.out, f"[{rank.rank}] ", sys.stdout)
                self._echo.follow(rank.err, f"[{rank.rank}] ", sys.stderr)

    def heartbeat(self, heartbeat: Heartbeat) -> None:
        """Also record this heartbeat."""
        self._heartbeats.append(heartbeat)

    def drain(self) -> None:
        """Empty every ring. All ranks' rows of a record become one batch: each costs the node half a ms."""
        now_ns = time.time_ns()
        self._put(batch for rank in self._ranks() for batch in rank.batches(now_ns))

    def _sample(self, sources: Sequence[Source]) -> None:
        beats, self._heartbeats = self._heartbeats, []
        for beat in beats:
            self._sink.append(heartbeat.rows(beat, self._agent_pid))
        self._take(sources)

    def _take(self, sources: Sequence[Source]) -> None:
        now_ns = time.time_ns()
        for source in sources:
            self._put(source.take(now_ns))

    def _put(self, batches: Batches) -> None:
        by_record: dict[str, list[Columns]] = {}
        for batch in batches:
            by_record.setdefault(batch.record, []).append(batch)
        for parts in by_record.values():
            self._sink.append(Columns.concat(parts))
