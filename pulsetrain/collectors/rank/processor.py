"""What a rank's main thread loses to other processes on its processor, step by step."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from os import pread
from time import thread_time_ns

from pulsetrain.collectors.layout import span_context, span_head
from pulsetrain.collectors.rank.handle import Handle
from pulsetrain.collectors.rank.phases import RankState
from pulsetrain.collectors.rank.quota import Quota
from pulsetrain.records.schema import CATEGORIES

SHARE = 200  # a loss is written if it is at least 1/200 of the step
MOST = 16  # so many waits of a step are looked into, in a long step one for each `SAMPLE_NS`
SAMPLE_NS = 20_000_000
STEPLESS_NS = 6_000_000_000  # after the first wait, from which a thread without a step names none
MARK_NS = 250_000_000  # how often it is written there
NEVER = 1 << 62
UNREADABLE = (OSError, ValueError, IndexError)

Measured = tuple[int, int, int]
"""In ns: waited in the run queue outside of waits, ran outside of them or stood in them, held by a quota."""


def install(handle: Handle) -> None:
    """Record it from now on for the calling thread.

    Call it once. Raises `OSError` if the kernel does not say.
    """
    if handle.state is not None:
        handle.state.processor = ProcessorWaits(handle.state, RunQueue())


class RunQueue:
    """How long its thread ran, and how long it was runnable without a processor."""

    def __init__(self) -> None:
        self._fd = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def now(self) -> tuple[int, int]:
        """Return the nanoseconds that it waited and ran since it began. Takes about a microsecond.

        The kernel's file says both, but the second one lags behind by up to a tick.
        """
        return int(pread(self._fd, 64, 0).split()[1]), thread_time_ns()


class ProcessorWaits:
    """Records where the main thread's time went that was neither work nor a wait for other ranks.

    Of every step, `cpu_wait` is the time in a run queue. `off_cpu` is the time in which the thread neither
    ran nor could have run: it was stopped, held back by a quota of its own, or waited for a disk, a device or
    another thread. Each span begins with the step and is as long as all its pieces together. Time in which
    the main thread stands still for a collective does not count.

    Where no step ends for 6 s after the first wait, the script may name none. There both are written after a
    wait, four times a second: what was lost since the time before. `cpu_wait` is written even where it is 0,
    so that its start tells when this time begins. A step that ends after all is written with what is left of
    its total.

    To ask the kernel takes 15 microseconds where caches are cold. So in a step with many waits only the first
    and some others are looked into, and each of the rest counts as the mean of these. Totals of the whole
    step are exact.
    """

    __slots__ = (
        *("_before", "_blocked", "_depth", "_entered", "_every", "_heads", "_held", "_in_waits", "_lane"),
        *(
            "_mark_at",
            "_marked",
            "_now",
            "_quota",
            "_ring",
            "_sampled",
            "_samples",
            "_seen",
            "_since",
            "_state",
        ),
        *("_stood", "_turn", "_waits", "_written"),
    )

    def __init__(self, state: RankState, queue: RunQueue, quota: Quota | None = None) -> None:
        self._quota = quota or Quota()
        self._held = self._quota.held_ns()
        self._state, self._ring, self._now = state, state.ring, queue.now
        other = CATEGORIES.index("other")
        self._heads = [span_head(state.ring.intern(name), other) for name in ("cpu_wait", "off_cpu")]
        self._lane = state.ring.intern("not running")
        self._depth = self._blocked = 0
        self._waits = self._samples = 0  # waits of this step, and those looked into
        self._in_waits = (0, 0)  # waited and ran in these
        self._stood = 0  # ns in the others
        self._turn, self._every = 0, 1  # counts all waits, and every how many is looked into
        self._sampled = False  # the wait that is on is looked into
        self._since = 0  # when it began
        self._seen = self._entered = self._now()
        self._before = (0, 0, 0)  # of this step, before it was last marked: as `_measured` says it
        self._written = (0, 0)  # of this step's losses, by marks
        self._mark_at = 0  # when to write without a step
        self._marked = -1  # when that was done last. 0: not yet, below 0: there was no wait yet

    def enter_wait(self, at: int) -> None:
        """Note that the main thread begins to wait for other ranks, now (`perf_counter_ns`). Waits nest."""
        self._depth += 1
        if self._depth == 1:
            self._since = at
            self._waits += 1
            self._turn += 1
            self._sampled = self._waits == 1 or self._turn % self._every == 0
            if self._sampled:
                try:
                    self._entered = self._now()
                except UNREADABLE:
                    self._give_up()

    def leave_wait(self, at: int) -> None:
        """Note that it is over. Each call follows one of `enter_wait`."""
        self._depth -= 1
        if self._depth:
            return
        if not self._sampled:
            self._stood += at - self._since
        else:
            try:
                self._end_wait(self._now())
            except UNREADABLE:
                self._give_up()
                return
        if at >= self._mark_at:
            self._mark(at)

    def _mark(self, at: int) -> None:
        """No step ends: write what was lost since the last time."""
        began = self._marked
        if began < 0:
            self._marked, self._mark_at = 0, at + STEPLESS_NS
            return
        self._marked, self._mark_at = at, at + MARK_NS
        try:
            measured = self._measured(at, at - (began or at))
        except UNREADABLE:
            self._give_up()
            return
        self._before = _sum(self._before, measured)
        if began:
            lost = [max(0, ns) for ns in _losses(measured, at - began)]
            self._written = self._written[0] + lost[0], self._written[1] + lost[1]
            self._write(self._state.step, began, at - began, lost, always=True)

    def _give_up(self) -> None:
        """The script has closed the descriptor. Steps and waits go on without us."""
        self._state.processor = None
        self._state.fault()

    def _end_wait(self, now: tuple[int, int]) -> None:
        before, in_waits = self._entered, self._in_waits
        self._in_waits = in_waits[0] + now[0] - before[0], in_waits[1] + now[1] - before[1]
        self._samples += 1

    def _in_all_waits(self) -> tuple[int, int]:
        """What the thread waited and ran in the step's waits. No longer than it stood in those not seen."""
        left, samples, (waited, ran) = self._waits - self._samples, max(1, self._samples), self._in_waits
        return (
            waited + min(waited * left // samples, self._stood),
            ran + min(ran * left // samples, self._stood),
        )

    def begin_steps(self, at: int) -> None:
        """Note that the first step begins now. What was lost before, as in imports, is no step's."""
        try:
            self._measured(at, STEPLESS_NS)
        except UNREADABLE:
            self._give_up()
            return
        self._before, self._written = (0, 0, 0), (0, 0)
        if self._marked > 0:
            self._marked = at

    def end_step(self, step: int, start: int, duration: int) -> None:
        """Write what the step lost, unless that is next to nothing."""
        self._mark_at, self._marked, waiting = NEVER, -1, self._depth > 0
        try:
            measured = self._measured(start + duration, duration)
        except UNREADABLE:
            self._give_up()
            return
        waited, off = _losses(_sum(self._before, measured), duration)
        written, self._before, self._written = self._written, (0, 0, 0), (0, 0)
        self._write(step, start, duration, (waited - written[0], 0 if waiting else off - written[1]))

    def _measured(self, at: int, duration: int) -> Measured:
        """What is known of the time since this was asked last, up to now (`at`, `perf_counter_ns`).

        It took `duration`, which tells how many of the next waits to look into. Raises one of `UNREADABLE`.
        """
        now = self._now()
        waiting = self._depth > 0
        if waiting:
            self._cut_wait(now, at)
        since = zip(now, self._seen, self._in_all_waits(), strict=True)
        waited, ran = (end - begin - inside for end, begin, inside in since)
        blocked = self._state.blocked - self._blocked
        self._seen, self._in_waits, self._blocked = now, (0, 0), self._state.blocked
        self._every = every(self._waits, duration)
        self._waits, self._samples, self._stood = int(waiting), 0, 0
        held, self._held = self._held, self._quota.held_ns()
        return waited, ran + blocked, self._held - held

    def _write(
        self, step: int, start: int, duration: int, losses: Sequence[int], *, always: bool = False
    ) -> None:
        """Write losses that are not next to nothing. `always`: `cpu_wait` even where it is 0."""
        for head, lost in zip(self._heads, losses, strict=True):
            if duration and (always or lost * SHARE > duration):
                shown, always = max(0, lost), False
                self._ring.span(head, span_context(step, -1, self._lane), start, start + shown)

    def _cut_wait(self, now: tuple[int, int], at: int) -> None:
        """A wait goes on past the end of its step. What is left of it is the next step's."""
        if self._sampled:
            self._end_wait(now)
        else:
            self._stood += at - self._since
        self._entered, self._since, self._sampled = now, at, True


def _losses(measured: Measured, duration: int) -> tuple[int, int]:
    """How long the thread queued and was off the processor in so much time. Below 0 for noise."""
    waited, others, held = measured
    quota = min(max(0, waited), held)  # in the run queue, as the kernel sees it
    return waited - quota, duration - others - waited + quota


def _sum(one: Measured, other: Measured) -> Measured:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


def every(waits: int, duration: int) -> int:
    """Return every how many waits one is looked into, after a step of so many waits and nanoseconds.

    It has no divisor in common with the waits of a step. So each of them has its turn in some step.

    >>> every(16, 100_000_000), every(53, 100_000_000), every(60, 100_000_000), every(64, 2_000_000_000)
    (1, 4, 7, 1)
    """
    wanted = max(1, -(-waits // max(MOST, duration // SAMPLE_NS)))
    while math.gcd(waits, wanted) > 1:
        wanted += 1
    return wanted
