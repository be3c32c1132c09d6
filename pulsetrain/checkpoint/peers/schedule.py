"""When to send replicas without disturbing training: in the idle spans between its collectives.

The chunk schedule is Gemini's (SOSP'23, algorithm 2). A chunk of s bytes takes `alpha_s` + s /
`beta_bytes_per_s`.
"""

from __future__ import annotations

import bisect
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pulsetrain.core.errors import UsageError

MOST_ITERATIONS = 1000


@dataclass(frozen=True, kw_only=True)
class Network:
    """What a transfer costs, and which share of an idle span may be used (`safety`, 0 to 1)."""

    alpha_s: float
    beta_bytes_per_s: float
    safety: float = 0.9

    def __post_init__(self) -> None:
        if self.alpha_s < 0 or self.beta_bytes_per_s <= 0 or not 0 < self.safety < 1:
            raise UsageError(
                f"{self}: allowed: alpha_s from 0, beta_bytes_per_s above 0, safety between 0 and 1"
            )

    def seconds(self, size: int) -> float:
        """Time for one chunk."""
        return self.alpha_s + size / self.beta_bytes_per_s


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """`bytes` of remote copy number `copy` (from 1), sent in idle span number `span` (from 0)."""

    span: int
    copy: int
    bytes: int


def chunk_schedule(
    spans_s: Sequence[float], size: int, *, network: Network, buffer_bytes: int, buffers: int, replicas: int
) -> tuple[Chunk, ...]:
    """Where each byte of the `replicas - 1` remote copies goes.

    `buffer_bytes` is the memory for chunks, in `buffers` equal parts. With two or more, one is received while
    another is drained. No chunk is larger than a part. What fits into no span goes into the last one, which
    then takes longer: see `overflow_s`. Raises `UsageError` for no span, or a part of less than a byte.

    >>> net = Network(alpha_s=0.0, beta_bytes_per_s=128.0, safety=0.5)
    >>> chunks = chunk_schedule([1.0, 4.0], 152, network=net, buffer_bytes=96, buffers=2, replicas=2)
    >>> [c.bytes for c in chunks]
    [48, 16, 48, 40]
    """
    part = buffer_bytes // buffers if buffers else 0
    if not spans_s or part < 1 or size < 0 or replicas < 1:
        raise UsageError(
            "schedule: allowed: one span or more, a buffer part of a byte or more, replicas from 1"
        )
    chunks: list[Chunk] = []
    copy, remain = 1, size
    for span, idle in enumerate(spans_s):
        left = math.inf if span == len(spans_s) - 1 else network.safety * idle
        while copy < replicas and size:
            chunk = min(fitting(part, left, network), remain)
            if chunk <= 0:
                break
            chunks.append(Chunk(span=span, copy=copy, bytes=chunk))
            left -= network.seconds(chunk)
            remain -= chunk
            if remain == 0:
                copy, remain = copy + 1, size
    return tuple(chunks)


def overflow_s(chunks: Iterable[Chunk], spans_s: Sequence[float], network: Network) -> float:
    """How much longer than its idle time the last span is busy: so much longer an iteration takes."""
    last = len(spans_s) - 1
    busy = sum(network.seconds(c.bytes) for c in chunks if c.span == last)
    return max(0.0, busy - network.safety * spans_s[last])


def steps_between(overflow: float, step_s: float, *, limit: float = 0.01) -> int:
    """Steps from one checkpoint to the next so that overflow adds at most `limit` (a ratio) to training."""
    return max(1, math.ceil(overflow / (limit * step_s)))


def iterations_for(
    spans_s: Sequence[float], size: int, *, network: Network, buffer_bytes: int, buffers: int, replicas: int
) -> int:
    """Over how many iterations the chunks must be spread so that none takes longer.

    These are the steps from one replica to the next. At most `MOST_ITERATIONS`, also where idle time is too
    short for any chunk.

    >>> net = Network(alpha_s=0.0, beta_bytes_per_s=100.0, safety=0.5)
    >>> iterations_for([1.0, 1.0], 250, network=net, buffer_bytes=80, buffers=2, replicas=2)
    3
    """

    def fits(count: int) -> bool:
        spans = [*spans_s] * count
        chunks = chunk_schedule(
            spans,
            size,
            network=network,
            buffer_bytes=buffer_bytes,
            buffers=buffers,
            replicas=replicas,
        )
        return overflow_s(chunks, spans, network) <= 1e-9

    return 1 + bisect.bisect_left(range(1, MOST_ITERATIONS), True, key=fits)


@dataclass(frozen=True, kw_only=True)
class IdleProfile:
    """When the network is idle in an iteration. Times are medians over iterations."""

    spans_s: tuple[float, ...]
    """Idle times between collectives, in order."""
    starts_s: tuple[float, ...]
    """Where in the iteration each begins."""
    step_s: float
    """The iteration's length."""
    spread: float
    """The largest robust standard deviation over the median, among the spans. One outlier changes little."""

    @property
    def steady(self) -> bool:
        """Regular enough to schedule by. Gemini saw below 0.1. The free margin of a span covers 0.2."""
        return self.spread < 0.2


def profile_idle(
    iterations: Sequence[Sequence[tuple[int, int]]], *, least_s: float = 0.0
) -> IdleProfile | None:
    """The idle profile of iterations that did not save, from (start, end) in ns of all their collectives.

    Collectives that overlap, or are less than `least_s` apart, count as one. Iterations with another number
    of gaps than most are left out (an evaluation, a recompilation). None where fewer than two are left.
    """
    gaps = [_gaps(spans, least_s) for spans in iterations]
    counts = [len(g) for g in gaps if g]
    if not counts:
        return None
    usual = statistics.mode(counts)
    kept = [(g, spans) for g, spans in zip(gaps, iterations, strict=True) if len(g) == usual]
    if len(kept) < 2:
        return None
    columns = [[length for _, length in column] for column in zip(*(g for g, _ in kept), strict=True)]
    starts = [statistics.median(s for s, _ in column) for column in zip(*(g for g, _ in kept), strict=True)]
    spans_s = [statistics.median(c) for c in columns]
    spread = max(_spread(c, m) for c, m in zip(columns, spans_s, strict=True))
    step_s = statistics.median(max(e for _, e in spans) - min(b for b, _ in spans) for _, spans in kept) / 1e9
    return IdleProfile(spans_s=tuple(spans_s), starts_s=tuple(starts), step_s=step_s, spread=spread)


def _spread(values: Sequence[float], middle: float) -> float:
    """Robust standard deviation (1.4826 median absolute deviations) over the median."""
    return 1.4826 * statistics.median(abs(v - middle) for v in values) / middle if middle else 0.0


def fitting(part: int, left: float, network: Network) -> int:
    """The largest chunk of at most `part` bytes that still ends within `left` seconds."""
    if network.seconds(part) <= left:
        return part
    return max(0, math.floor((left - network.alpha_s) * network.beta_bytes_per_s))


def _gaps(spans: Sequence[tuple[int, int]], least_s: float) -> list[tuple[float, float]]:
    """(start, length) of the times when nothing runs, in seconds from the first start."""
    out: list[tuple[float, float]] = []
    ordered = sorted(spans)
    first = end = ordered[0][0] if ordered else 0
    for start, stop in ordered:
        if start > end and (start - end) / 1e9 >= least_s:
            out.append(((end - first) / 1e9, (start - end) / 1e9))
        end = max(end, stop)
    return out
