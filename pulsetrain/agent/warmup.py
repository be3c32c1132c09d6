"""From launch to the first completed step: which stage took how long, as seen from outside the ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pulsetrain.protocol.messages import FirstStep, RankStatus

EAGER_NS = 60_000_000_000


class Warmup:
    """Watches the statuses of one attempt's ranks until each has completed a step of its own.

    That is one beyond `restore_step`, and beyond the step that the script itself went on from.

    The stages are those of the slowest rank. `spawn`: from `began_ns` until the rank has opened its ring.
    `init`: until it belongs to a process group. `step`: until its first step ends. The resolution is the
    interval between calls.
    """

    def __init__(self, *, node: str, attempt: int, restore_step: int, began_ns: int) -> None:
        self.attempt = attempt
        self.reported = False
        self._node, self._restore_step = node, restore_step
        self._began_ns = began_ns
        self._opened_ns: dict[int, int] = {}
        self._grouped_ns: dict[int, int] = {}
        self._stepped_ns: dict[int, int] = {}

    def fresh(self, now_ns: int) -> bool:
        """Whether to look often: a first step is awaited, and the launch is less than `EAGER_NS` ago.

        A script that never counts steps has no first step.
        """
        return not self.reported and now_ns - self._began_ns < EAGER_NS

    def observe(self, statuses: Mapping[int, RankStatus], now_ns: int) -> FirstStep | None:
        """The report, at the first call at which every rank has done its step; None before."""
        for rank, status in statuses.items():
            if status.progress_age_ns > 0 or status.groups:  # its ring has been opened
                self._opened_ns.setdefault(rank, now_ns)
            if status.groups:
                self._grouped_ns.setdefault(rank, now_ns)
            if status.last_step > max(self._restore_step, status.resumed_step):
                self._stepped_ns.setdefault(rank, now_ns)
        if not statuses or self._stepped_ns.keys() < statuses.keys():
            return None
        return FirstStep(
            node=self._node,
            ts_ns=now_ns,
            attempt=self.attempt,
            step=min(s.last_step for s in statuses.values()),
            stages_ns=self._stages(),
            resumed_step=max(s.resumed_step for s in statuses.values()),
            resumed_path=_loaded_path(statuses.values()),
        )

    def _stages(self) -> dict[str, int]:
        slowest = {"spawn": 0, "init": 0, "step": 0}
        for rank, stepped in self._stepped_ns.items():
            grouped = self._grouped_ns.get(rank, stepped)
            opened = min(self._opened_ns.get(rank, grouped), grouped)
            for stage, took in (
                ("spawn", opened - self._began_ns),
                ("init", grouped - opened),
                ("step", stepped - grouped),
            ):
                slowest[stage] = max(slowest[stage], took)
        return slowest


def _loaded_path(statuses: Iterable[RankStatus]) -> str:
    """The script's own checkpoint that ranks went on from, else a file that they have read, "" for none."""
    loaded = [own for status in statuses for own in status.loaded]
    return max(loaded, key=lambda own: own.step).path if loaded else ""
