"""What the cluster's scheduler was asked for, in Prometheus' format."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from pulsetrain.recovery.scheduler import SchedulerRequests


class SchedulerCollector(Collector):
    """Requests by what was asked and whether it was done."""

    def __init__(self, requests: SchedulerRequests) -> None:
        self._requests = requests

    def describe(self) -> Iterator[CounterMetricFamily]:
        """The family without a sample."""
        yield self._family()

    def collect(self) -> Iterator[CounterMetricFamily]:
        """One sample for each kind of request and result."""
        family = self._family()
        for (what, done), count in sorted(self._requests.counts.items()):
            family.add_metric([str(what), "done" if done else "failed"], count)
        yield family

    def _family(self) -> CounterMetricFamily:
        return CounterMetricFamily(
            "pulsetrain_scheduler_requests",
            "Requests to the cluster's scheduler.",
            labels=("what", "result"),
        )
