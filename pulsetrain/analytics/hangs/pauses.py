"""How long a job stood still before and went on by itself, by the place in its code. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

MOST_PLACES = 256
SHORTEST_NS = 2_000_000_000  # a shorter silence is part of a step


@dataclass
class PauseLog:
    """The longest silence of one job at each place. It outlives the attempts of the job.

    >>> log = PauseLog()
    >>> [log.note(stall_ns, "evaluate (train.py:88)") for stall_ns in (4 * 10**9, 90 * 10**9, 0)]
    [False, False, True]
    >>> log.longest_ns
    {'evaluate (train.py:88)': 90000000000}
    """

    longest_ns: dict[str, int] = field(default_factory=dict)
    _stall_ns: int = 0
    _place: str = ""

    def note(self, stall_ns: int, place: str) -> bool:
        """Take one look: for how long the whole job has been silent, and where. Returns whether a silence has
        ended that is longer than those before it at its place.

        The job moved where that fell by half. Clocks and late reports make it fall by a little. The last
        place that was known counts: it is the most precise one.
        """
        longer = 2 * stall_ns < self._stall_ns and self._keep()
        self._stall_ns, self._place = stall_ns, place or self._place
        return longer

    def forget(self) -> None:
        """The job was stopped: its silence did not end by itself."""
        self._stall_ns, self._place = 0, ""

    def _keep(self) -> bool:
        known = self._place in self.longest_ns or len(self.longest_ns) < MOST_PLACES
        longest_ns = max(SHORTEST_NS - 1, self.longest_ns.get(self._place, 0))
        longer = known and self._stall_ns > longest_ns
        if longer:
            self.longest_ns[self._place] = self._stall_ns
        self.forget()
        return longer
