"""Carries alerts that are due to their channels."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from pulsetrain.analytics.incidents.alerts import AlertBook
from pulsetrain.analytics.incidents.locations import Topology
from pulsetrain.analytics.incidents.notify import Channel, deliver
from pulsetrain.core.clock import Clock
from pulsetrain.hub.live_watch import Watched
from pulsetrain.recovery.snapshot import JobSnapshot

NOTIFY_S = 1.0


def topology(jobs: Iterable[JobSnapshot]) -> Topology:
    """Which rank is on which node, in every job that has a world, and which node is under which switch."""
    known = list(jobs)
    return Topology(
        node_of={(j.job, rank): m.node for j in known for m in j.world for rank in m.ranks},
        switch_of={n.name: n.hello.switch for j in known for n in j.nodes if n.hello.switch},
    )


class KeptTopology:
    """The topology of all jobs, made anew only when a world has changed."""

    def __init__(self, jobs: Mapping[str, Watched]) -> None:
        self._jobs = jobs
        self._worlds: list[object] = []
        self._kept = Topology()

    def __call__(self) -> Topology:
        """The topology now."""
        snapshots = [job.snapshot() for job in self._jobs.values()]
        worlds: list[object] = [job.world for job in snapshots]
        same = len(worlds) == len(self._worlds)
        if not (same and all(now is before for now, before in zip(worlds, self._worlds, strict=True))):
            self._worlds, self._kept = worlds, topology(snapshots)
        return self._kept


class Notifier:
    """One turn lets time pass for the alerts and delivers what is due."""

    def __init__(
        self,
        alerts: AlertBook,
        channels: Mapping[str, Channel],
        topology: Callable[[], Topology],
        clock: Clock,
    ) -> None:
        self._alerts, self._channels, self._topology, self._clock = alerts, channels, topology, clock

    async def turn(self) -> float:
        """Tell the alerts where ranks run, so that one can mute another. Then deliver what is due."""
        self._alerts.topology = self._topology()
        await asyncio.to_thread(deliver, self._alerts, self._channels, self._clock.wall_ns())
        return NOTIFY_S
