"""How far the clocks of nodes are apart, from the ends of their collectives.

All members of a collective leave it at the same moment, up to the time that the last bytes take. So the
difference of their recorded ends is the difference of their clocks plus noise. Many collectives together give
offset and drift, and what they scatter is the error. A time difference within the error is none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

SAMPLES_NEEDED = 8
MAX_DRIFT = 1e-3  # a clock that is corrected runs at most this much fast or slow
PAIRS = 200  # samples of which drift is the median slope: all pairs of more would cost too much
SET_NS = 1e9  # members leave a collective closer together than that
SET_RATIO = 0.1  # of the samples: more are no collective that ended late
FLOOR_NS = 2_000.0  # reading a clock takes about a microsecond
_MAD_TO_SIGMA = 1.4826  # of a normal distribution


@dataclass(frozen=True, kw_only=True)
class Clock:
    """A node's clock beside the reference's: subtract `offset(t)` from its times. All in ns."""

    at_ns: float
    offset_ns: float
    drift: float
    error_ns: float

    def offset(self, times_ns: Floats) -> Floats:
        """The offset at times on this clock."""
        return np.asarray(self.offset_ns + self.drift * (times_ns - self.at_ns))


REFERENCE = Clock(at_ns=0.0, offset_ns=0.0, drift=0.0, error_ns=0.0)


def compare(times_ns: Floats, differences_ns: Floats) -> Clock | None:
    """The clock that was ahead by `differences_ns` at `times_ns`. None: too few samples.

    Drift is the median slope between samples (Theil-Sen), offset the median of what is left. The error is two
    robust standard deviations of a single sample, which is wide for many samples and honest for few. Where a
    tenth of the samples or more are over a second off, a clock was set in between: the error is as large.

    >>> times = np.arange(10) * 1e9
    >>> clock = compare(times, 5e6 + 1e-5 * times)
    >>> round(float(clock.offset(np.array([9e9]))[0]))
    5090000
    """
    known = np.isfinite(times_ns) & np.isfinite(differences_ns)
    times, differences = times_ns[known], differences_ns[known]
    if len(times) < SAMPLES_NEEDED:
        return None
    at = float(np.median(times))
    drift = _drift(times, differences)
    left = differences - drift * (times - at)
    offset = float(np.median(left))
    off = np.abs(left - offset)
    error = 2 * _MAD_TO_SIGMA * float(np.median(off))
    if np.mean(off >= SET_NS) >= SET_RATIO:
        error = float(off.max())
    return Clock(at_ns=at, offset_ns=offset, drift=drift, error_ns=max(FLOOR_NS, error))


def align(collective: Ints, node: Ints, end_ns: Floats) -> dict[int, Clock]:
    """The clocks of nodes that took part in collectives, relative to that of the lowest-numbered node.

    One row for each collective and member: which collective, on which node, and when it ended there. Of
    several members on a node the first to see the end counts. A node that meets the reference only through
    others is compared through them, and the errors add up. One that cannot be compared is left out.
    """
    if not len(collective):
        return {}
    ends = _Ends.first(collective, node, end_ns)
    reference = int(ends.names[0])
    clocks, waiting = {reference: REFERENCE}, deque([0])
    while waiting and len(clocks) < len(ends.names):
        known = waiting.popleft()
        for other in ends.beside(known).tolist():
            name, before = int(ends.names[other]), clocks[int(ends.names[known])]
            if name not in clocks and (clock := ends.compare(other, known)) is not None:
                clocks[name] = _chain(clock, before)
                waiting.append(other)
    return clocks


def align_by_transfers(
    clocks: Mapping[int, Clock], sender: Ints, receiver: Ints, took_ns: Floats
) -> dict[int, Clock]:
    """`clocks` and those of more nodes, from transfers: from node to node, and how long by their clocks.

    No transfer arrives before it was sent. So the quickest ones each way say between which bounds a
    difference lies, as in NTP. The error is half of what is between them: far more than that of collectives.
    Drift is not seen. A node that does not both send to a known one and receive from it is left out.

    >>> there, back = np.array([0, 1]), np.array([1, 0])
    >>> align_by_transfers({0: REFERENCE}, there, back, np.array([7e6, -3e6]))[1].offset_ns
    5000000.0
    """
    found = dict(clocks)
    pairs, place = np.unique(np.stack([sender, receiver]), axis=1, return_inverse=True)
    least = np.full(pairs.shape[1], np.inf)
    np.minimum.at(least, place.reshape(-1), took_ns)
    quickest = dict(zip(map(tuple, pairs.T.tolist()), least.tolist(), strict=True))
    waiting = deque(sorted(found))
    while waiting:
        known = waiting.popleft()
        for (source, node), most in quickest.items():
            back = quickest.get((node, source))
            if source != known or node in found or back is None or most < -back:
                continue
            beside = Clock(
                at_ns=0.0, offset_ns=(most - back) / 2, drift=0.0, error_ns=max(FLOOR_NS, (most + back) / 2)
            )
            found[node] = _chain(beside, found[known])
            waiting.append(node)
    return found


def on_one_clock(times_ns: Floats, node: Ints, clocks: Mapping[int, Clock]) -> tuple[Floats, Floats]:
    """Times on the reference's clock and their error. NaN on a node that cannot be compared."""
    at_ns, offset_ns, drift, error_ns = (np.full(int(node.max()) + 1, np.nan) for _ in range(4))
    for number, clock in clocks.items():
        at_ns[number], offset_ns[number] = clock.at_ns, clock.offset_ns
        drift[number], error_ns[number] = clock.drift, clock.error_ns
    return times_ns - (offset_ns[node] + drift[node] * (times_ns - at_ns[node])), error_ns[node]


@dataclass(frozen=True, kw_only=True)
class _Ends:
    """When each node first saw the end of each collective, in the order of nodes and collectives.

    `names` are the nodes, which go by their place in it. The rows of node i are those from `first_row[i]` to
    `first_row[i + 1]`. `by_collective` are the rows in the order of collectives: those of collective c begin
    at `first_of[c]`.
    """

    names: Ints
    first_row: Ints
    node: Ints
    collective: Ints
    end_ns: Floats
    by_collective: Ints
    first_of: Ints

    @classmethod
    def first(cls, collective: Ints, node: Ints, end_ns: Floats) -> _Ends:
        """From one row for each collective and member."""
        _, numbered = np.unique(collective, return_inverse=True)
        order = np.lexsort((end_ns, numbered, node))
        pairs = np.stack([node[order], numbered[order]])
        once = order[np.append(True, (np.diff(pairs) != 0).any(axis=0))]
        names, place = np.unique(node[once], return_inverse=True)
        return cls(
            names=names,
            first_row=np.searchsorted(place, np.arange(len(names) + 1)),
            node=place,
            collective=numbered[once],
            end_ns=end_ns[once],
            by_collective=np.argsort(numbered[once], kind="stable"),
            first_of=np.append(0, np.cumsum(np.bincount(numbered[once]))),
        )

    def of(self, node: int) -> tuple[Ints, Floats]:
        """The collectives of a node, and when it saw their ends."""
        rows = slice(self.first_row[node], self.first_row[node + 1])
        return self.collective[rows], self.end_ns[rows]

    def beside(self, node: int) -> Ints:
        """The other nodes that shared enough collectives with a node to be compared, in order."""
        shared, _ = self.of(node)
        begin, count = self.first_of[shared], self.first_of[shared + 1] - self.first_of[shared]
        rows = np.repeat(begin - (np.cumsum(count) - count), count) + np.arange(count.sum())
        met = np.bincount(self.node[self.by_collective[rows]], minlength=len(self.names))
        met[node] = 0
        return np.flatnonzero(met >= SAMPLES_NEEDED)

    def compare(self, node: int, other: int) -> Clock | None:
        """The clock of `node` beside that of `other`. None: too few samples."""
        (mine, own_ns), (theirs, other_ns) = self.of(node), self.of(other)
        _, i, j = np.intersect1d(mine, theirs, assume_unique=True, return_indices=True)
        return compare(own_ns[i], own_ns[i] - other_ns[j])


def _chain(beside: Clock, known: Clock) -> Clock:
    """A clock beside one that is itself beside the reference."""
    return Clock(
        at_ns=beside.at_ns,
        offset_ns=beside.offset_ns + float(known.offset(np.array([beside.at_ns - beside.offset_ns]))[0]),
        drift=beside.drift + known.drift,
        error_ns=beside.error_ns + known.error_ns,
    )


def _drift(times: Floats, differences: Floats) -> float:
    picked = np.unique(np.linspace(0, len(times) - 1, min(PAIRS, len(times))).round().astype(np.int64))
    t, d = times[picked], differences[picked]
    first, second = np.triu_indices(len(t), 1)
    apart = t[second] - t[first]
    slopes = (d[second] - d[first])[apart != 0] / apart[apart != 0]
    return float(np.clip(np.median(slopes), -MAX_DRIFT, MAX_DRIFT)) if len(slopes) else 0.0
