"""The nodes that a running job is to change over to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(kw_only=True)
class NewShare:
    """A running job is to go on with other nodes. It waits for a checkpoint of step `newer_than` or later.

    After `wait_s` it goes on from an older one, unless the change is `optional`: no promise needs it. Then
    nothing is done again for it, and it gives way to whatever else its nodes are given to. `asked_in` is the
    attempt whose ranks were asked to save, `acted_in` the one that was stopped.
    """

    reason: str
    asked_s: float
    wait_s: float
    newer_than: int
    optional: bool = False
    asked_in: int | None = None
    acted_in: int | None = None

    @property
    def only_waits(self) -> bool:
        """Whether it only waits for a newer step, so that anything else may come first."""
        return self.optional and self.acted_in is None
