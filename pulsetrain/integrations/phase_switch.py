"""One phase at a time, for callers that learn of events and not of blocks."""

from __future__ import annotations

from pulsetrain.collectors.rank.handle import Handle
from pulsetrain.collectors.rank.phases import Span


class PhaseSwitch:
    """The phase between one event and the next."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._open: Span | None = None

    def to(self, name: str | None) -> None:
        """End the phase that is open, if any, and begin `name`, if any."""
        if self._open is not None:
            self._open.__exit__(None, None, None)
        self._open = None if name is None else self._handle.phase(name)
        if self._open is not None:
            self._open.__enter__()
