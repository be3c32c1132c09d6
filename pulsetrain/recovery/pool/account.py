"""How much of its ideal work a job did in each hour of its life. Pure."""

from __future__ import annotations

from pulsetrain.recovery.pool.demand import HOUR_S


class ShareAccount:
    """The hourly shares of one job, from `since_s` on. Times are seconds of one clock.

    >>> account = ShareAccount(0.0)
    >>> account.add(3000.0, 1.0)
    >>> account.add(3600.0, 0.5)
    >>> [round(share, 3) for share in account.hours]
    [0.917]
    """

    def __init__(self, since_s: float) -> None:
        self.hours: list[float] = []
        self._begun_s = self._until_s = since_s
        self._got_s = 0.0

    def add(self, until_s: float, share: float) -> None:
        """Until then the job ran at this share of its full speed, 0 while it stood."""
        while self._begun_s + HOUR_S <= until_s:
            end_s = self._begun_s + HOUR_S
            self._got_s += share * (end_s - self._until_s)
            self.hours.append(self._got_s / HOUR_S)
            self._begun_s = self._until_s = end_s
            self._got_s = 0.0
        if until_s > self._until_s:
            self._got_s += share * (until_s - self._until_s)
            self._until_s = until_s

    def close(self) -> None:
        """The job is over. What is left of its last hour counts together with the hour before."""
        rest_s = self._until_s - self._begun_s
        if rest_s <= 0:
            return
        before_s = self.hours.pop() * HOUR_S if self.hours else None
        whole_s = rest_s if before_s is None else rest_s + HOUR_S
        self.hours.append(((before_s or 0.0) + self._got_s) / whole_s)
        self._begun_s, self._got_s = self._until_s, 0.0

    def may_lose_s(self, guarantee: float, floor_share: float) -> float:
        """How long the job may still stand in this hour, if it runs at `floor_share` for the rest of it.

        >>> ShareAccount(0.0).may_lose_s(0.95, 1.0)
        180.0
        """
        passed_s = self._until_s - self._begun_s
        lost_s = passed_s - self._got_s + (HOUR_S - passed_s) * (1 - floor_share)
        return max(0.0, round((1 - guarantee) * HOUR_S - lost_s, 6))
