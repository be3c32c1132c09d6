"""What a job does with its time: how much of it trains, and where the rest goes. Pure.

The effective training time ratio (ETTR) is the share of a job's time in which it makes new steps. It is told
for the whole time and for the last hour, with the rest split by what it went to (ByteRobust,
arXiv 2509.16293, as cumulative and sliding-window ETTR). A step that is done a second time is no new one.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypedDict

from pulsetrain.recovery.memory import TimeMemory

HOUR_NS = 3_600_000_000_000
KEPT_STRETCHES = 200
"""So many of the newest stretches are kept apart for a new hub. Older ones are kept as sums."""


class Use(StrEnum):
    """What a stretch of time went to."""

    TRAIN = "train"
    START = "start"  # until the first step, or until a pre-empted job has one again
    DETECT = "detect"  # from the onset of a fault to its detection
    LOCATE = "locate"  # until it is known who is at fault
    FAIL_OVER = "fail_over"  # until the first step on the nodes that are left or new
    RECOMPUTE = "recompute"  # steps that were done before
    AWAY = "away"  # pre-empted or over. It does not count


COUNTED = tuple(use for use in Use if use is not Use.AWAY)
_WORKING = (Use.TRAIN, Use.RECOMPUTE)


class TimeUseRow(TypedDict):
    """`ettr` and `ettr_1h` are ratios, None where no time has passed. Both tables have seconds by use."""

    since_ns: int
    ettr: float | None
    ettr_1h: float | None
    seconds: dict[str, float]
    seconds_1h: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class TimeUse:
    """Nanoseconds by use, since the job began here (`began_ns`) and in the hour before now."""

    began_ns: int
    total_ns: Mapping[Use, int]
    hour_ns: Mapping[Use, int]

    @property
    def ettr(self) -> float | None:
        """Share of all time that trained, None where no time has passed."""
        return ratio(self.total_ns)

    @property
    def ettr_1h(self) -> float | None:
        """The same of the last hour."""
        return ratio(self.hour_ns)

    def row(self) -> TimeUseRow:
        """As the hub's API shows it."""
        return {
            "since_ns": self.began_ns,
            "ettr": self.ettr,
            "ettr_1h": self.ettr_1h,
            "seconds": _seconds(self.total_ns),
            "seconds_1h": _seconds(self.hour_ns),
        }


def ratio(spent_ns: Mapping[Use, int]) -> float | None:
    """Share of the counted time that trained, rounded to 1e-6. None where no time has passed.

    >>> ratio({Use.TRAIN: 90, Use.DETECT: 10, Use.AWAY: 500})
    0.9
    """
    whole_ns = sum(spent_ns.get(use, 0) for use in COUNTED)
    return round(spent_ns.get(Use.TRAIN, 0) / whole_ns, 6) if whole_ns else None


def _seconds(spent_ns: Mapping[Use, int]) -> dict[str, float]:
    return {str(use): round(spent_ns.get(use, 0) / 1e9, 3) for use in COUNTED}


@dataclass(frozen=True)
class _Stretch:
    use: Use
    begin_ns: int
    end_ns: int


class TimeBook:
    """Adds up what a job does, from moments at which that changes. Times are UTC nanoseconds.

    Stretches older than an hour are kept as sums. A clock that is set back makes a stretch of length 0.
    """

    def __init__(self, now_ns: int) -> None:
        self._began_ns = self._since_ns = now_ns
        self._use = Use.START
        self._old: Counter[Use] = Counter()
        self._stretches: deque[_Stretch] = deque()

    @classmethod
    def recalled(cls, memory: TimeMemory) -> TimeBook:
        """The book as `kept` described it. What was under way then still is.

        Raises `ValueError` for a use that does not exist.
        """
        book = cls(memory.began_ns)
        book._use, book._since_ns = Use(memory.use), memory.since_ns
        book._old = Counter({Use(use): spent_ns for use, spent_ns in memory.old_ns.items()})
        book._stretches = deque(
            _Stretch(Use(use), int(begin), int(end)) for use, begin, end in memory.stretches
        )
        return book

    def kept(self) -> TimeMemory:
        """What a new hub must know."""
        stretches = list(self._stretches)
        old, newest = self._old.copy(), stretches[-KEPT_STRETCHES:]
        old.update(_sums(stretches[:-KEPT_STRETCHES], 0))
        return TimeMemory(
            began_ns=self._began_ns,
            use=str(self._use),
            since_ns=self._since_ns,
            old_ns={str(use): spent_ns for use, spent_ns in old.items()},
            stretches=[(str(each.use), each.begin_ns, each.end_ns) for each in newest],
        )

    @property
    def present(self) -> Use:
        """What the job does now."""
        return self._use

    def note(self, use: Use, now_ns: int) -> None:
        """From now on the job does this."""
        if use is self._use:
            return
        self._close(now_ns)
        self._use = use

    def misjudged(self, onset_ns: int, now_ns: int) -> None:
        """What seemed work since `onset_ns` was none: that time went to detect a fault."""
        self._close(now_ns)
        self._stretches = deque(part for each in self._stretches for part in _corrected(each, onset_ns))

    def use(self, now_ns: int, hangs_since_ns: int | None = None) -> TimeUse:
        """What the time until now went to. What seems work since `hangs_since_ns` is none."""
        stretches = [*self._stretches, _Stretch(self._use, self._since_ns, max(now_ns, self._since_ns))]
        if hangs_since_ns is not None:
            stretches = [part for each in stretches for part in _corrected(each, hangs_since_ns)]
        total = self._old.copy()
        total.update(_sums(stretches, 0))
        return TimeUse(
            began_ns=self._began_ns, total_ns=dict(total), hour_ns=dict(_sums(stretches, now_ns - HOUR_NS))
        )

    def _close(self, now_ns: int) -> None:
        now_ns = max(now_ns, self._since_ns)
        if now_ns > self._since_ns:
            self._stretches.append(_Stretch(self._use, self._since_ns, now_ns))
        self._since_ns = now_ns
        while self._stretches and self._stretches[0].end_ns <= now_ns - HOUR_NS:
            oldest = self._stretches.popleft()
            self._old[oldest.use] += oldest.end_ns - oldest.begin_ns


def _sums(stretches: Iterable[_Stretch], from_ns: int) -> Counter[Use]:
    """Nanoseconds by use of what lies after `from_ns`."""
    sums: Counter[Use] = Counter()
    for each in stretches:
        sums[each.use] += max(0, each.end_ns - max(each.begin_ns, from_ns))
    return sums


def _corrected(stretch: _Stretch, onset_ns: int) -> Iterator[_Stretch]:
    """The stretch, with what seemed work after the onset as detection."""
    if stretch.use not in _WORKING or stretch.end_ns <= onset_ns:
        yield stretch
        return
    cut_ns = max(stretch.begin_ns, onset_ns)
    if cut_ns > stretch.begin_ns:
        yield _Stretch(stretch.use, stretch.begin_ns, cut_ns)
    yield _Stretch(Use.DETECT, cut_ns, stretch.end_ns)
