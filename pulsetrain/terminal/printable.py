"""Text from outside, as a terminal may show it."""

from __future__ import annotations


def printable(text: object) -> str:
    """Return `text` on one line without control characters. Names and messages come from outside.

    >>> printable("rank 3\\x1b[2J ended\\n")
    'rank 3?[2J ended'
    """
    line = " ".join(str(text).split())
    return line if line.isprintable() else "".join(c if c.isprintable() else "?" for c in line)


def printable_text(text: str) -> str:
    """Return `text` without control characters. Its lines and their indentation stay.

    >>> printable_text("def f():\\n    \\x1b[2Jpass")
    'def f():\\n    ?[2Jpass'
    """
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)
