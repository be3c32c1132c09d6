"""What the nodes hold to be the time, so that a hub whose clock is behind does not refuse all their rows."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

import pyarrow as pa
import structlog

from pulsetrain.core.clock import Clock
from pulsetrain.records.schema import RECORDS
from pulsetrain.stream.store.quarantine import AHEAD_NS, Piece
from pulsetrain.stream.store.stored_rows import node_of

log = structlog.get_logger()

_FEWEST_NODES = 3
"""Of fewer nodes, most may be the one whose own clock is wrong."""
_HEARD_S = 3600.0


class NodeTimes:
    """Compares this machine's clock with the newest rows of each node that was heard in the last hour."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead: dict[str, tuple[float, int]] = {}
        self._is_behind = False

    def now_ns(self, record: str, pieces: Iterable[Piece]) -> int:
        """The time (UTC), which is this machine's.

        Where most of at least three nodes agree that it is more than a day later, it is theirs.
        """
        here_ns, heard_s = self._clock.wall_ns(), self._clock.monotonic_s()
        for piece in pieces:
            if piece.rows.num_rows:
                last = piece.rows.column(RECORDS[record].time).slice(piece.rows.num_rows - 1)
                ahead_ns = last.cast(pa.int64())[0].as_py() - here_ns
                self._ahead[node_of(piece.source)] = (heard_s, ahead_ns)
        behind_ns = self._behind_ns(heard_s)
        if behind_ns and not self._is_behind:
            log.error("hub_clock_behind", days=round(behind_ns / AHEAD_NS, 1), nodes=len(self._ahead))
        self._is_behind = behind_ns > 0
        return here_ns + behind_ns

    def _behind_ns(self, now_s: float) -> int:
        """How far this machine's clock is behind that of most nodes. 0: it is not, or not by a day."""
        self._ahead = {n: a for n, a in self._ahead.items() if now_s - a[0] < _HEARD_S}
        if len(self._ahead) < _FEWEST_NODES:
            return 0
        every = [ahead_ns for _, ahead_ns in self._ahead.values()]
        middle = statistics.median_low(every)
        agree = sum(abs(one - middle) <= AHEAD_NS for one in every)
        return middle if middle > AHEAD_NS and 2 * agree > len(every) else 0
