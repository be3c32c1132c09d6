"""One phase at a time, for callers that learn of events and not of blocks.

An error in the training, or the end of an attempt, leaves a phase open of which its callback hears nothing
more. The handle knows it, so that the callback of the next Trainer ends it.
"""

from __future__ import annotations

from pulsetrain.collectors.rank.handle import Handle


class PhaseSwitch:
    """The phase between one event and the next."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def to(self, name: str | None) -> None:
        """End the phase that is open, if any, and begin `name`, if any."""
        before = self._handle.switched
        if before is not None:
            before.__exit__(None, None, None)
        self._handle.switched = phase = None if name is None else self._handle.phase(name)
        if phase is not None:
            phase.__enter__()
