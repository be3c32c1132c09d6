"""Waiting for something to appear in storage."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event
from typing import TypeVar

from pulsetrain.core.errors import CheckpointError

T = TypeVar("T")
LONGEST_PAUSE_S = 1.0


class Poller:
    """Asks again and again, less often each time, until there is an answer or the service ends."""

    def __init__(self, poll_s: float, stop: Event, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`poll_s` is the first pause, in seconds."""
        self._poll_s, self._stop, self._clock = poll_s, stop, clock

    def wait(self, look: Callable[[], T | None], timeout_s: float, what: str) -> T:
        """The first answer of `look` that is not None. A storage that refuses may answer the next time.

        Raises `CheckpointError` that names `what` after `timeout_s`, or when the service ends. One that
        `look` raises is not caught.
        """
        deadline, pause_s = self._clock() + timeout_s, self._poll_s
        while True:
            refused = ""
            try:
                answer = look()
            except CheckpointError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever a storage backend raises
                answer, refused = None, f": {error!r}"
            if answer is not None:
                return answer
            if self._clock() > deadline:
                raise CheckpointError(f"{what}: not complete after {timeout_s} s{refused}")
            if self._stop.wait(pause_s):
                raise CheckpointError(f"{what}: the checkpoint service ended{refused}")
            pause_s = min(LONGEST_PAUSE_S, pause_s * 1.5)
