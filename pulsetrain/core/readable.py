"""Waiting for descriptors that can be read, whatever their numbers are."""

from __future__ import annotations

import select
from collections.abc import Iterable


def readable(descriptors: Iterable[int], timeout_s: float) -> list[int]:
    """Those of `descriptors` that can be read or are at their end. Waits up to `timeout_s` for the first.

    `select.select` does the same, but fails from descriptor 1024 on.
    Raises `ValueError` for a descriptor below 0.
    """
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll(max(0.0, timeout_s) * 1000)]
