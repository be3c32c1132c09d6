"""Sending replicas in the idle spans of training's own network traffic.

`Profiler` learns the spans on line from what the node's ranks record in their first steps; `Interleaver` then
gives chunks the go-ahead, by Gemini's algorithm 2 carried out against the steps as they really run. What does
not fit into the spans of one step goes into those of the next, so that a state that is too large for every
step is replicated less often instead of stretching any step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pulsetrain.checkpoint.peers.schedule import (
    IdleProfile,
    Network,
    chunk_schedule,
    fitting,
    iterations_for,
    overflow_s,
    profile_idle,
)
from pulsetrain.records.columns import Columns

WARM_STEPS = 3  # the first steps of an attempt allocate, connect and compile
LEAST_GAP_RATIO = 0.02  # gaps shorter than this share of a step are no place for a chunk
LEAST_CHUNK = 64 << 10
SLOWER, FASTER = 0.5, 0.05  # weight of a new rate: nodes whose spans coincide share what there is
UNTIMED_BYTES_PER_S = 1e9  # of a network that nothing was sent over yet
NAP_S = 0.004
SHORT_NAP_S = 0.0002
PATIENCE_S = 0.02  # without a profile: how long a chunk waits for a moment without a collective
LOST_RHYTHM = 3.0  # a step that takes so many times longer than usual: evaluation, hang, end
IN_VAIN = 1.5  # steps after which a chunk that fitted nowhere goes all the same


class ChunkPacer(Protocol):
    """How a rank's step goes, now; times on the clock of `time.perf_counter_ns`."""

    @property
    def step_start_ns(self) -> int: ...
    @property
    def communicating(self) -> bool: ...


class Profiler:
    """Gathers steps and collectives of this node's ranks until `iterations` are whole. Thread-safe."""

    def __init__(self, iterations: int) -> None:
        self._wanted = iterations
        self._spans: dict[int, list[tuple[int, int]]] = {}
        self._steps: dict[int, dict[int, tuple[int, int]]] = {}
        self._lock = Lock()
        self.done = iterations < 1
        self.profile: IdleProfile | None = None

    def observe(self, rows: Columns) -> bool:
        """Take in drained rows of `spans` or `steps`; true when they completed the profile."""
        if self.done or rows.record not in ("spans", "steps") or not rows.num_rows:
            return False
        with self._lock:
            self._spans_of(rows) if rows.record == "spans" else self._steps_of(rows)
            whole = self._whole()
            if len(whole) < self._wanted + WARM_STEPS:
                return False
            self.done = True
            self.profile = self._profile(whole[WARM_STEPS:])
            self._spans.clear()
            self._steps.clear()
        return True

    def _spans_of(self, rows: Columns) -> None:
        closed = rows.column("open").integers() == 0
        wanted = rows.column("category").equals("communication") & closed
        start = _ns(rows, "start")[wanted]
        end = start + _ns(rows, "duration_ns")[wanted]
        steps = rows.column("step").integers()[wanted]
        for step, begin, stop in zip(steps.tolist(), start.tolist(), end.tolist(), strict=True):
            self._spans.setdefault(step, []).append((begin, stop))

    def _steps_of(self, rows: Columns) -> None:
        start, took = _ns(rows, "start"), _ns(rows, "duration_ns")
        ranks, steps = rows.column("rank").integers(), rows.column("step").integers()
        for rank, step, begin, length in zip(ranks, steps, start, took, strict=True):
            self._steps.setdefault(int(step), {})[int(rank)] = (int(begin), int(begin + length))

    def _whole(self) -> list[int]:
        """Steps of which every rank here has reported the end, but for the newest: its spans may lag."""
        ranks = set().union(*self._steps.values()) if self._steps else set()
        return sorted(step for step, known in self._steps.items() if known.keys() == ranks)[:-1]

    def _profile(self, steps: Sequence[int]) -> IdleProfile | None:
        clock = min(self._steps[steps[0]])
        iterations, lengths = [], []
        for step in steps:
            begin, end = self._steps[step][clock]
            spans = [
                (max(a, begin), min(b, end)) for a, b in self._spans.get(step, []) if b > begin and a < end
            ]
            iterations.append([(begin, begin), *spans, (end, end)])
            lengths.append((end - begin) / 1e9)
        return profile_idle(iterations, least_s=LEAST_GAP_RATIO * float(np.median(lengths)))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What algorithm 2 says about a state of `bytes`; `every_steps` is from one replica to the next."""

    bytes: int
    chunks: int
    every_steps: int
    overflow_s: float
    idle_s: float
    step_s: float
    spread: float
    steady: bool


class Interleaver:
    """Says when the next chunk may go. One sender at a time; `follow` and `learn` from any thread.

    Without ranks to follow, chunks go at once. Without a steady profile, a chunk waits a little for a moment
    in which no collective is in flight.
    """

    def __init__(
        self,
        *,
        chunk_bytes: int,
        safety: float = 0.8,
        clock: Callable[[], int] = time.perf_counter_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._part, self._clock, self._sleep = chunk_bytes, clock, sleep
        self._safety = safety
        self._paces: tuple[ChunkPacer, ...] = ()
        self._profile: IdleProfile | None = None
        self._rate: float | None = None  # bytes a second; None until a transfer has been timed
        self._used: dict[int, float] = {}  # seconds of each idle span of this step that are taken
        self._step_ns = 0

    def follow(self, paces: Sequence[ChunkPacer]) -> None:
        """The ranks of this node whose steps must not be disturbed; none: training stands still."""
        self._paces = tuple(paces)

    def learn(self, profile: IdleProfile | None) -> None:
        """Use this profile from now on where it is steady."""
        self._profile = profile if profile and profile.steady and profile.spans_s else None

    def timed(self, size: int, seconds: float) -> None:
        """A chunk of `size` bytes took so long to arrive."""
        if size >= LEAST_CHUNK and seconds > 0:
            rate = size / seconds
            known = rate if self._rate is None else self._rate
            self._rate = known + (SLOWER if rate < known else FASTER) * (rate - known)

    @property
    def network(self) -> Network:
        """What a transfer costs, as measured so far."""
        rate = UNTIMED_BYTES_PER_S if self._rate is None else max(1.0, self._rate)
        return Network(alpha_s=5e-5, beta_bytes_per_s=rate, safety=self._safety)

    def plan(self, profile: IdleProfile, size: int, replicas: int) -> Plan:
        """The schedule for a state of `size` bytes, as of now."""
        spans, network = profile.spans_s or (0.0,), self.network
        every = iterations_for(
            spans, size, network=network, buffer_bytes=self._part, buffers=1, replicas=replicas
        )
        chunks = chunk_schedule(
            spans, size, network=network, buffer_bytes=self._part, buffers=1, replicas=replicas
        )
        return Plan(
            bytes=size,
            chunks=len(chunks),
            every_steps=every,
            overflow_s=overflow_s(chunks, spans, network),
            idle_s=sum(profile.spans_s),
            step_s=profile.step_s,
            spread=profile.spread,
            steady=profile.steady,
        )

    def chunks(self, total: int) -> Iterator[int]:
        """Sizes that add up to `total`, each when it may go; 0 after every nap, so that the caller can look
        around."""
        remain, waited_ns = total, 0
        while remain:
            size = min(self._now(remain, waited_ns), remain)
            if size:
                remain, waited_ns = remain - size, 0
                yield size
                continue
            before = self._clock()
            self._sleep(self._nap_s())
            waited_ns += self._clock() - before
            yield 0

    def _nap_s(self) -> float:
        """Until the next idle span begins, but not so long that one of a step that came early is missed."""
        profile = self._profile
        if profile is None:
            return NAP_S
        started = max((pace.step_start_ns for pace in self._paces), default=0)
        offset = (self._clock() - started) / 1e9
        ahead = [start - offset for start in profile.starts_s if start > offset]
        return max(SHORT_NAP_S, min([NAP_S, min(profile.spans_s) / 4, *ahead]))

    def _now(self, remain: int, waited_ns: int) -> int:
        """How many bytes may go now; 0: none."""
        part = min(self._part, remain)
        paces, profile = self._paces, self._profile
        started = max((pace.step_start_ns for pace in paces), default=0)
        if not started:
            return part
        if profile is None:
            busy = waited_ns < PATIENCE_S * 1e9 and any(pace.communicating for pace in paces)
            return 0 if busy else part
        offset = (self._clock() - started) / 1e9
        if offset > LOST_RHYTHM * profile.step_s or waited_ns > IN_VAIN * profile.step_s * 1e9:
            return part
        return self._within(profile, part, started, offset)

    def _within(self, profile: IdleProfile, part: int, started: int, offset: float) -> int:
        """What still fits into the idle span that `offset` lies in."""
        if started != self._step_ns:
            self._step_ns, self._used = started, {}
        for span, (begin, length) in enumerate(zip(profile.starts_s, profile.spans_s, strict=True)):
            if begin <= offset < begin + length:
                network = self.network
                left = min(self._safety * length - self._used.get(span, 0.0), begin + length - offset)
                size = fitting(part, left, network)
                if size < min(part, LEAST_CHUNK):
                    return 0
                self._used[span] = self._used.get(span, 0.0) + network.seconds(size)
                return size
        return 0


def _ns(rows: Columns, name: str) -> npt.NDArray[np.int64]:
    return rows.column(name).integers()
