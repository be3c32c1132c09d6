"""Ranks that wait for a device that they share hang because of the rank that has it. Pure."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from pulsetrain.analytics.hangs.hang import HangDiagnosis

PHASE = "device_wait"


def without_waiting(diagnosis: HangDiagnosis, waiting: Set[int]) -> HangDiagnosis:
    """Blame no rank in `waiting`, where another rank is at fault as well. They are victims.

    >>> found = HangDiagnosis(verdict="rank", culprits=(1, 2), victims=(0,), confidence=0.9, reason="behind")
    >>> without_waiting(found, {2}).culprits
    (1,)
    """
    to_blame = tuple(rank for rank in diagnosis.culprits if rank not in waiting)
    excused = [rank for rank in diagnosis.culprits if rank in waiting]
    if not excused or not to_blame:
        return diagnosis
    reason = f"{diagnosis.reason}; {len(excused)} of them only wait for a device that they share"
    victims = tuple(sorted({*diagnosis.victims, *excused}))
    return replace(diagnosis, culprits=to_blame, victims=victims, reason=reason)
