"""Where the controller writes what it did and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Journal(Protocol):
    """A sink of `events` rows. It must not block and must not raise."""

    def event(
        self,
        kind: str,
        *,
        job: str,
        attempt: int,
        detail: Mapping[str, object],
        node: str = "",
        rank: int = -1,
        actor: str = "controller",
    ) -> None:
        """Write one event. Its time is now."""
        ...
