"""Sending replicas in the idle spans of training's own network traffic.

`Profiler` learns the idle spans from what the node's ranks record in their first steps. `Interleaver` then
says when each chunk may go. It follows Gemini's algorithm 2 (SOSP'23), applied to the steps as they really
run. What does not fit into the spans of one step goes into those of the next. So a state that is too large
for every step is replicated less often, and no step takes longer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
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
LEAST_GAP_RATIO = 0.02  # gaps shorter than this share of a step are not used
LEAST_CHUNK = 64 << 10
SLOWER, FASTER = 0.5, 0.05  # weight of a new rate: nodes with the same idle spans share the network
ASSUMED_BYTES_PER_S = 1e9  # before the first transfer was timed
PAUSE_S = 0.004
SHORT_PAUSE_S = 0.0002
QUIET_WAIT_S = 0.02  # how long a chunk waits for a moment without a collective
UNUSUAL_STEP_RATIO = 3.0  # a step this many times longer than usual is an evaluation, a hang or the end
MAX_WAIT_STEPS = 1.5  # steps after which a chunk goes though it fits into no span
MOST_SPANS = 200_000  # collectives of which a profile is learnt; about 30 MB while it is learnt


class CurrentStep(Protocol):
    """Where a rank's training step stands now. Times are of `time.perf_counter_ns`."""

    @property
    def step_start_ns(self) -> int: ...
    @property
    def communicating(self) -> bool: ...


class Profiler:
    """Gathers steps and collectives of this node's ranks until `iterations` are whole. Thread-safe.

    It gives up where ranks record `MOST_SPANS` collectives before that, because there may be no steps at all.
    """

    def __init__(self, iterations: int, ranks: Collection[int] = ()) -> None:
        """Only rows of these ranks count, and all of them report each step. None: whoever reports."""
        self._wanted, self._ranks = iterations, frozenset(ranks)
        self._seen = 0
        self._spans: dict[int, list[tuple[int, int]]] = {}
        self._steps: dict[int, dict[int, tuple[int, int]]] = {}
        self._lock = Lock()
        self.done = iterations < 1
        self.profile: IdleProfile | None = None

    def observe(self, rows: Columns) -> bool:
        """Add recorded rows of `spans` or `steps`. True when they complete the profile, or it gives up."""
        if self.done or rows.record not in ("spans", "steps") or not rows.num_rows:
            return False
        with self._lock:
            self._add_spans(rows) if rows.record == "spans" else self._add_steps(rows)
            complete = self._complete_steps()
            whole = len(complete) >= self._wanted + WARM_STEPS
            if not whole and self._seen <= MOST_SPANS:
                return False
            self.done = True
            self.profile = self._profile(complete[WARM_STEPS:]) if whole else None
            self._spans.clear()
            self._steps.clear()
        return True

    def _add_spans(self, rows: Columns) -> None:
        closed = rows.column("open").integers() == 0
        wanted = rows.column("category").equals("communication") & closed & self._of_ranks(rows)
        start = _ns(rows, "start")[wanted]
        end = start + _ns(rows, "duration_ns")[wanted]
        steps = rows.column("step").integers()[wanted]
        self._seen += len(steps)
        for step, begin, stop in zip(steps.tolist(), start.tolist(), end.tolist(), strict=True):
            self._spans.setdefault(step, []).append((begin, stop))

    def _add_steps(self, rows: Columns) -> None:
        start, took = _ns(rows, "start"), _ns(rows, "duration_ns")
        ranks, steps = rows.column("rank").integers(), rows.column("step").integers()
        self._seen += len(steps)
        for mine, rank, step, begin, length in zip(
            self._of_ranks(rows), ranks, steps, start, took, strict=True
        ):
            if mine:
                self._steps.setdefault(int(step), {})[int(rank)] = (int(begin), int(begin + length))

    def _of_ranks(self, rows: Columns) -> npt.NDArray[np.bool_]:
        ranks = rows.column("rank").integers()
        return np.isin(ranks, list(self._ranks)) if self._ranks else np.ones(len(ranks), dtype=np.bool_)

    def _complete_steps(self) -> list[int]:
        """Steps whose end every rank here has reported, without the newest: its spans may come later."""
        ranks = self._ranks or set().union(*self._steps.values())
        return sorted(step for step, times in self._steps.items() if times.keys() == ranks)[:-1]

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
    """The schedule for a state of `bytes`. `every_steps` is from one replica to the next."""

    bytes: int
    chunks: int
    every_steps: int
    overflow_s: float
    idle_s: float
    step_s: float
    spread: float
    steady: bool


class Interleaver:
    """Says when the next chunk may go. One sender at a time. Call `follow` and `learn` from any thread.

    Without ranks to follow, chunks go at once. Without a steady profile, a chunk waits a little for a moment
    without a collective.
    """

    def __init__(
        self,
        *,
        chunk_bytes: int,
        safety: float = 0.8,
        clock: Callable[[], int] = time.perf_counter_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._chunk_bytes, self._clock, self._sleep = chunk_bytes, clock, sleep
        self._safety = safety
        self._current_steps: tuple[CurrentStep, ...] = ()
        self._profile: IdleProfile | None = None
        self._rate: float | None = None  # bytes a second; None until a transfer has been timed
        self._used: dict[int, float] = {}  # idle span -> seconds of it that are used in this step
        self._step_ns = 0
        self._held_ns = 0  # since when a chunk waits for a collective to end. 0: none does

    def follow(self, steps: Sequence[CurrentStep]) -> None:
        """The current steps of this node's ranks, which must not be disturbed. None: nobody trains."""
        self._current_steps = tuple(steps)

    def learn(self, profile: IdleProfile | None) -> None:
        """Use this profile from now on, if it is steady."""
        self._profile = profile if profile and profile.steady and profile.spans_s else None

    def record_transfer(self, size: int, seconds: float) -> None:
        """Learn the network's rate: a chunk of `size` bytes arrived after `seconds`."""
        if size >= LEAST_CHUNK and seconds > 0:
            rate = size / seconds
            before = rate if self._rate is None else self._rate
            self._rate = before + (SLOWER if rate < before else FASTER) * (rate - before)

    @property
    def network(self) -> Network:
        """What a transfer costs, as measured so far."""
        rate = ASSUMED_BYTES_PER_S if self._rate is None else max(1.0, self._rate)
        return Network(alpha_s=5e-5, beta_bytes_per_s=rate, safety=self._safety)

    def plan(self, profile: IdleProfile, size: int, replicas: int) -> Plan:
        """The schedule for a state of `size` bytes, as of now."""
        spans, network = profile.spans_s or (0.0,), self.network
        every = iterations_for(
            spans, size, network=network, buffer_bytes=self._chunk_bytes, buffers=1, replicas=replicas
        )
        chunks = chunk_schedule(
            spans, size, network=network, buffer_bytes=self._chunk_bytes, buffers=1, replicas=replicas
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
        """Sizes that add up to `total`, each when it may go. 0 after every pause, so that the caller can do
        other work."""
        remain, waited_ns = total, 0
        self._held_ns = 0
        while remain:
            size = min(self._allowed_bytes(remain, waited_ns), remain)
            if size:
                remain, waited_ns = remain - size, 0
                self._held_ns = 0
                yield size
                continue
            before = self._clock()
            self._sleep(self._pause_s())
            waited_ns += self._clock() - before
            yield 0

    def _pause_s(self) -> float:
        """The time until the next idle span, but short enough to see a step that starts early."""
        profile = self._profile
        if profile is None:
            return PAUSE_S
        started = max((step.step_start_ns for step in self._current_steps), default=0)
        offset = (self._clock() - started) / 1e9
        ahead = [start - offset for start in profile.starts_s if start > offset]
        return max(SHORT_PAUSE_S, min([PAUSE_S, min(profile.spans_s) / 4, *ahead]))

    def _allowed_bytes(self, remain: int, waited_ns: int) -> int:
        """How many bytes may go now. 0: none."""
        part = min(self._chunk_bytes, remain)
        steps, profile = self._current_steps, self._profile
        started = max((step.step_start_ns for step in steps), default=0)
        if not started:
            return part
        if profile is None:
            busy = waited_ns < QUIET_WAIT_S * 1e9 and any(step.communicating for step in steps)
            return 0 if busy else part
        offset = (self._clock() - started) / 1e9
        if offset > UNUSUAL_STEP_RATIO * profile.step_s or waited_ns > MAX_WAIT_STEPS * profile.step_s * 1e9:
            return part
        return self._fitting_span(profile, part, started, offset)

    def _fitting_span(self, profile: IdleProfile, part: int, started: int, offset: float) -> int:
        """How many bytes still fit into the idle span that `offset` lies in."""
        if started != self._step_ns:
            self._step_ns, self._used = started, {}
        for span, (begin, length) in enumerate(zip(profile.starts_s, profile.spans_s, strict=True)):
            if begin <= offset < begin + length:
                network = self.network
                left = min(self._safety * length - self._used.get(span, 0.0), begin + length - offset)
                size = fitting(part, left, network)
                if size < min(part, LEAST_CHUNK) or self._holds():
                    return 0
                self._used[span] = self._used.get(span, 0.0) + network.seconds(size)
                return size
        return 0

    def _holds(self) -> bool:
        """A collective is in flight where none should be. A chunk waits for its end, but not for ever."""
        if not any(step.communicating for step in self._current_steps):
            return False
        now = self._clock()
        self._held_ns = self._held_ns or now
        return now - self._held_ns < QUIET_WAIT_S * 1e9


def _ns(rows: Columns, name: str) -> npt.NDArray[np.int64]:
    return rows.column(name).integers()
