"""Judge the newest steps before all steps, so that earlier ones do not hide what has just begun."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pulsetrain.analytics.verdict import Verdict, findings

RECENT = 40  # steps

Rows = NDArray[np.int64]


def newest_first(rows: Rows, judge: Callable[[Rows], list[Verdict]]) -> list[Verdict]:
    """What `judge` says of the newest of these rows, or of all of them where it finds nothing there."""
    newest = judge(rows[-RECENT:])
    return newest if len(rows) <= RECENT or findings(newest) else judge(rows)
