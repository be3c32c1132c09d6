"""Alerts on loops: one that makes no turn any more, or whose turns fail again and again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pulsetrain.analytics.verdict import Failed, Healthy, Verdict
from pulsetrain.core.clock import Clock
from pulsetrain.hub.loops import LoopRow
from pulsetrain.hub.reporter import AlertSink

CHECK_S = 1.0
SHARE = 20  # looking at the loops of thousands of agents may use a twentieth of the time
LONGEST_S = 3.0
LATE_S = 3.0
FAILURES = 3  # in a row


def trouble(row: LoopRow) -> str:
    """What is wrong with a loop, "" for nothing."""
    error = f": {row['last_error']}" if row["last_error"] else ""
    if row["stale"]:
        return f"no turn for {row['age_s']:.0f} s{error}"
    if row["failures_in_a_row"] >= FAILURES:
        return f"{row['failures_in_a_row']} turns in a row failed{error}"
    return ""


def detector(row: LoopRow) -> str:
    """The name under which a loop's alert stands."""
    return " ".join(part for part in (row["process"], row["node"], "loop", row["loop"]) if part)


class LoopHealth:
    """Turns the state of loops into alerts. Skips one look after a pause of the hub: all loops are late."""

    def __init__(self, rows: Callable[[], Sequence[LoopRow]], alerts: AlertSink, clock: Clock) -> None:
        self._rows, self._alerts, self._clock = rows, alerts, clock
        self._troubled: set[str] = set()
        self._looked_s, self._wait_s = clock.monotonic_s(), CHECK_S

    async def turn(self) -> float:
        """One look."""
        now_s = self._clock.monotonic_s()
        late, self._looked_s = now_s - self._looked_s > self._wait_s + LATE_S - CHECK_S, now_s
        if not late:
            self.look()
        took_s = self._clock.monotonic_s() - now_s
        self._wait_s = max(CHECK_S, min(LONGEST_S, (SHARE - 1) * took_s))
        return self._wait_s

    def look(self) -> None:
        """Report the loops in trouble, and those that were and are well again or are gone."""
        troubles = {detector(row): why for row in self._rows() if (why := trouble(row))}
        verdicts: list[Verdict] = [Failed(analyzer=name, error=why) for name, why in troubles.items()]
        verdicts += [Healthy(analyzer=name) for name in sorted(self._troubled - troubles.keys())]
        self._troubled = set(troubles)
        if verdicts:
            self._alerts.observe(verdicts, self._clock.wall_ns())
