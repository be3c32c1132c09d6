"""Answers that take long to put together, given out as bytes to all that ask within a moment."""

from __future__ import annotations

import json
from collections.abc import Callable

from pulsetrain.core.clock import Clock

SHARE = 10
"""Putting an answer together may take a tenth of the hub's time, however many ask for it."""


class KeptJson:
    """What `make` returns, as JSON. An answer that took long is given out for nine times as long."""

    def __init__(self, make: Callable[[], object], clock: Clock) -> None:
        self._make, self._clock = make, clock
        self._text = b""
        self._until_s = clock.monotonic_s()

    def text(self) -> bytes:
        """The answer now, or as it was a moment ago."""
        began_s = self._clock.monotonic_s()
        if not self._text or began_s >= self._until_s:
            self._text = json.dumps(
                self._make(), ensure_ascii=False, allow_nan=False, separators=(",", ":")
            ).encode()
            ended_s = self._clock.monotonic_s()
            self._until_s = ended_s + (SHARE - 1) * (ended_s - began_s)
        return self._text

    def forget(self) -> None:
        """Put the next answer together anew, after something was done that changes it."""
        self._text = b""
