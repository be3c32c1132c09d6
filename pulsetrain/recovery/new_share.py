"""The nodes that a running job is to change over to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(kw_only=True)
class NewShare:
    """A running job is to go on with other nodes. It waits for a checkpoint of step `newer_than` or later.

    `asked_in` is the attempt whose ranks were asked to save, `acted_in` the one that was stopped.
    """

    reason: str
    asked_s: float
    wait_s: float
    newer_than: int
    asked_in: int | None = None
    acted_in: int | None = None
