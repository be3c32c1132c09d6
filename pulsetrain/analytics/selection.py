"""Ranks and steps as text, as people type and read them in a command or on the dashboard."""

from __future__ import annotations

from collections.abc import Iterable

from pulsetrain.core.errors import UsageError

_MAX_RANKS = 64
_MAX_DIGITS = 15  # far below what 64 bits hold


def parse_ranks(text: str, limit: int = _MAX_RANKS) -> tuple[int, ...]:
    """Return the ranks in a text such as "0-3, 7", in ascending order. A blank text has none.

    Raises `UsageError` for other text, for a range whose end is before its start, and for more than `limit`
    ranks.

    >>> parse_ranks("7, 0-2")
    (0, 1, 2, 7)
    """
    ranks: set[int] = set()
    for part in text.replace(" ", "").split(","):
        if not part:
            continue
        low, dash, high = part.partition("-")
        if not _is_number(low) or (dash and not _is_number(high)):
            raise UsageError(f"ranks {text!r}: {part!r} is not a rank or a range such as 0-3")
        if dash and int(high) < int(low):
            raise UsageError(f"ranks {text!r}: {part!r} ends before it begins")
        ranks.update(range(int(low), min(int(high or low), int(low) + limit) + 1))
    if len(ranks) > limit:
        raise UsageError(f"ranks {text!r}: at most {limit} ranks at once")
    if text.strip() and not ranks:
        raise UsageError(f"ranks {text!r}: it names no rank; give ranks such as 0-3,7")
    return tuple(sorted(ranks))


def parse_steps(text: str) -> tuple[int, int] | None:
    """Return the first and last step of "40:45" or "40", or None for an empty text.

    Raises `UsageError` for other text, and for a last step before the first.

    >>> parse_steps("40:45"), parse_steps("7"), parse_steps("")
    ((40, 45), (7, 7), None)
    """
    text = text.replace(" ", "")
    if not text:
        return None
    first, colon, last = text.partition(":")
    if not _is_number(first) or (colon and not _is_number(last)):
        raise UsageError(f"steps {text!r}: give FIRST:LAST, such as 40:45")
    low, high = int(first), int(last or first)
    if high < low:
        raise UsageError(f"steps {text!r}: the last step is before the first")
    return low, high


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= _MAX_DIGITS


def ranges(ranks: Iterable[int], *, separator: str = ",") -> str:
    """Return ranks as text, with consecutive ranks as one range.

    >>> ranges([6, 0, 1, 2, 3])
    '0-3,6'
    """
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return separator.join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
