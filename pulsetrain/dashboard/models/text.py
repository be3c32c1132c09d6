"""Numbers and times as an operator reads them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime

from pulsetrain.analytics.selection import ranges


def duration(ns: float | None) -> str:
    """A duration in nanoseconds with three significant digits and its unit. "-" if it is unknown.

    >>> duration(1_234_000_000), duration(45_600), duration(200 * 10**9)
    ('1.23 s', '45.6 µs', '3 min 20 s')
    """
    if ns is None or ns != ns:
        return "-"
    seconds = ns / 1e9
    if seconds >= 3600:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d} min"
    if seconds >= 60:
        return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if abs(seconds) * scale >= 1:
            return f"{_three(seconds * scale)} {unit}"
    return f"{ns:.0f} ns"


def _three(value: float) -> str:
    """`value` with three significant digits."""
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{digits}f}"


def ago(then_ns: int | None, now_ns: int) -> str:
    """How long before `now_ns` it was, as "12 s ago". "never" for None or 0."""
    if not then_ns:
        return "never"
    seconds = (now_ns - then_ns) // 10**9
    if seconds < 60:
        return f"{seconds} s ago" if seconds > 0 else "just now"
    return f"{duration(seconds * 1e9)} ago"


def clock(ns: int | None) -> str:
    """A moment in UTC as date and time. "-" for None or 0."""
    if not ns:
        return "-"
    return datetime.fromtimestamp(ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S")


def size(count: float | None) -> str:
    """Bytes in binary units: "1.50 GiB"."""
    if count is None or count != count:
        return "-"
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{_three(value)} {unit}"
        value /= 1024
    return f"{_three(value)} TiB"


def thousands(value: float | None) -> str:
    """A count with thin groups: 12,288."""
    return "-" if value is None or value != value else f"{value:,.0f}"


def words(name: str) -> str:
    """A name of the API as people read it.

    >>> words("no_data")
    'no data'
    """
    return name.replace("_", " ")


def fold(ranks: Iterable[int]) -> str:
    """Ranks as ranges: 0-3, 7.

    >>> fold([3, 0, 1, 2, 7])
    '0-3, 7'
    """
    return ranges(ranks).replace(",", ", ")


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key by which node-2 comes before node-10."""
    parts = re.split(r"(\d+)", name)
    return tuple((1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts)
