"""Learns from training when replicas may be sent, and records the schedule."""

from __future__ import annotations

import dataclasses
import statistics
from collections import deque
from collections.abc import Callable, Mapping

from pulsetrain.checkpoint.checkpoint_events import CheckpointEvents
from pulsetrain.checkpoint.peers.interleave import Interleaver, Profiler
from pulsetrain.collectors.reading.step_progress import StepProgress
from pulsetrain.records.columns import Columns

RECENT_STEPS, CHANGED = 32, 0.2  # steps, and how far their median may depart from the profile's


class ReplicationSchedule:
    """Feeds what ranks record to a profiler, and the profile to the interleaver."""

    def __init__(
        self, interleaver: Interleaver, events: CheckpointEvents, *, profile_steps: int, replicas: int
    ) -> None:
        """`profile_steps`: steps from which idle spans are learnt. 0: never."""
        self._interleaver, self._events, self._replicas = interleaver, events, replicas
        self._profile_steps, self._ranks = profile_steps, frozenset[int]()
        self._begin()

    def follow(self, rings: Mapping[int, int]) -> None:
        """The rings (file descriptors, by rank) of the ranks that train here now. None: nobody trains.

        Their idle spans are learnt anew.
        """
        self._ranks = frozenset(rings)
        self._begin()
        self._interleaver.follow([StepProgress(fd) for fd in rings.values()])

    def observe(self, rows: Columns, state_bytes: Callable[[], int]) -> None:
        """Rows that ranks here recorded. `state_bytes` is asked for the size of all states to replicate."""
        if self._changed(rows):
            self._begin()
        if not self._profiler.observe(rows):
            return
        profile = self._profiler.profile
        self._interleaver.learn(profile)
        if profile is None:
            self._events.event("replication_unscheduled", {"reason": "steps have no common idle spans"})
            return
        plan = self._interleaver.plan(profile, state_bytes(), self._replicas)
        self._events.event("replication_schedule", dataclasses.asdict(plan))

    def _begin(self) -> None:
        """Learn the idle spans anew. Until then a chunk waits a little for a moment without a collective."""
        self._profiler = Profiler(self._profile_steps, self._ranks)
        self._lengths: deque[int] = deque(maxlen=RECENT_STEPS)
        self._interleaver.learn(None)

    def _changed(self, rows: Columns) -> bool:
        """Steps are no longer as long as those from which the idle spans were learnt."""
        profile = self._profiler.profile
        if profile is None or rows.record != "steps":
            return False
        self._lengths.extend(rows.column("duration_ns").integers().tolist())
        if len(self._lengths) < RECENT_STEPS:
            return False
        return abs(statistics.median(self._lengths) / 1e9 - profile.step_s) > CHANGED * profile.step_s
