"""How often Python looks for garbage in the hub's process."""

from __future__ import annotations

import gc

YOUNG = 50_000
"""New objects until the youngest are looked at. Python's own 700 come with a few heartbeats. What those
hold goes when the next one comes, without a look."""
LATER = 10
"""Looks at the younger until the older are looked at."""


def collect_seldom() -> None:
    """Look for garbage seldom, and never at what is loaded already.

    Each look holds up every request, for the longer the more nodes' heartbeats are in memory.
    """
    gc.freeze()
    gc.set_threshold(YOUNG, LATER, LATER)
