"""Learns from training when replicas may be sent, and records the schedule."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from pulsetrain.checkpoint.checkpoint_events import CheckpointEvents
from pulsetrain.checkpoint.peers.interleave import Interleaver, Profiler
from pulsetrain.collectors.reading.step_progress import StepProgress
from pulsetrain.records.columns import Columns


class ReplicationSchedule:
    """Feeds what ranks record to a profiler, and the profile to the interleaver."""

    def __init__(
        self, interleaver: Interleaver, events: CheckpointEvents, *, profile_steps: int, replicas: int
    ) -> None:
        """`profile_steps`: steps from which idle spans are learnt. 0: never."""
        self._interleaver, self._events, self._replicas = interleaver, events, replicas
        self._profile_steps = profile_steps
        self._profiler = Profiler(profile_steps)

    def follow(self, rings: Mapping[int, int]) -> None:
        """The rings (file descriptors, by rank) of the ranks that train here now. None: nobody trains.

        Their idle spans are learnt anew.
        """
        self._profiler = Profiler(self._profile_steps, rings)
        self._interleaver.learn(None)
        self._interleaver.follow([StepProgress(fd) for fd in rings.values()])

    def observe(self, rows: Columns, state_bytes: Callable[[], int]) -> None:
        """Rows that ranks here recorded. `state_bytes` is asked for the size of all states to replicate."""
        if not self._profiler.observe(rows):
            return
        profile = self._profiler.profile
        self._interleaver.learn(profile)
        if profile is None:
            self._events.event("replication_unscheduled", {"reason": "steps have no common idle spans"})
            return
        plan = self._interleaver.plan(profile, state_bytes(), self._replicas)
        self._events.event("replication_schedule", dataclasses.asdict(plan))
