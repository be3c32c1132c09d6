"""The time range that pages are about, as the address has it: `last=1 hour`, or `from` and `to` in UTC."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType

from pulsetrain.core.errors import UsageError

MINUTE_NS = 60 * 10**9
SPANS_NS: Mapping[str, int] = MappingProxyType(
    {
        "15 minutes": 15 * MINUTE_NS,
        "1 hour": 60 * MINUTE_NS,
        "6 hours": 360 * MINUTE_NS,
        "1 day": 1440 * MINUTE_NS,
        "30 days": 43_200 * MINUTE_NS,
    }
)
USUAL = "1 hour"
NAMES = ("last", "from", "to")
"""What a time range is called in the address."""
_ROUND_NS = 10 * 10**9
_YEARS = range(1970, 2200)  # what 64 bits of nanoseconds hold, with room


@dataclass(frozen=True, kw_only=True)
class TimeChoice:
    """The chosen time range. Nothing is chosen where all are empty. `from_ns` and `to_ns` of 0 are open ends.

    `last` is a key of `SPANS_NS`.
    """

    last: str = ""
    from_ns: int = 0
    to_ns: int = 0

    @property
    def given(self) -> bool:
        """Whether anything is chosen."""
        return bool(self.last or self.from_ns or self.to_ns)

    @property
    def absolute(self) -> bool:
        """Whether it has moments, and does not end now."""
        return bool(self.from_ns or self.to_ns)

    def bounds(self, *, running: bool, last_ns: int, now_ns: int) -> tuple[int, int]:
        """Its first and last moment for a job, UTC nanoseconds: the last hour where nothing is chosen.

        An open end is now while the job runs, else a minute after it was heard last (`last_ns`). In whole
        ten seconds, so that answers can be kept.

        >>> TimeChoice(last="1 hour").bounds(running=False, last_ns=7_200 * 10**9, now_ns=10**18)[1] // 10**9
        7270
        """
        end_ns = now_ns if running or not last_ns else last_ns + MINUTE_NS
        end_ns = (end_ns // _ROUND_NS + 1) * _ROUND_NS
        if self.absolute:
            return self.from_ns, self.to_ns or max(end_ns, self.from_ns)
        return end_ns - SPANS_NS[self.last or USUAL], end_ns


def choice(asked: Mapping[str, str]) -> TimeChoice:
    """The time range of an address. Moments go before `last`. Raises `UsageError` for what cannot be read.

    >>> choice({"from": "2026-11-25T03:00"}).from_ns
    1795575600000000000
    """
    last, begin, end = (asked.get(name, "").strip() for name in NAMES)
    if begin or end:
        chosen = TimeChoice(from_ns=_moment_ns("from", begin), to_ns=_moment_ns("to", end))
        if chosen.to_ns and chosen.to_ns <= chosen.from_ns:
            raise UsageError(f"time to={end}: it is not after from={begin}")
        return chosen
    if last and last not in SPANS_NS:
        raise UsageError(f"time last={last}: allowed are {', '.join(SPANS_NS)}")
    return TimeChoice(last=last)


def read(asked: Mapping[str, str]) -> TimeChoice:
    """The time range of an address. Nothing is chosen where it cannot be read: the page's frame says why."""
    try:
        return choice(asked)
    except UsageError:
        return TimeChoice()


def moment_text(ns: int) -> str:
    """A moment as it stands in the address, to the minute.

    >>> moment_text(1795575600 * 10**9)
    '2026-11-25T03:00'
    """
    return datetime.fromtimestamp(ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M")


def _moment_ns(name: str, text: str) -> int:
    """UTC nanoseconds of a date and time. Without an offset it is UTC. 0 for an empty text."""
    if not text:
        return 0
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.year not in _YEARS:
        raise UsageError(f"time {name}={text}: give a date and time in UTC, such as 2026-11-25T03:00")
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(1, int(moment.timestamp()) * 10**9)
