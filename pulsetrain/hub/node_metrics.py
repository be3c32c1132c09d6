"""Which nodes belong to jobs that go on, in Prometheus' format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from pulsetrain.hub.live_watch import Watched
from pulsetrain.recovery.nodes import NodeState
from pulsetrain.recovery.transitions import Phase


class NodeCollector(Collector):
    """Reads the jobs whenever somebody asks for the metrics.

    A rule can tell a node that fell silent from one whose job is over, or that was sent away.
    """

    def __init__(self, jobs: Mapping[str, Watched]) -> None:
        self._jobs = jobs

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """The family without samples: registering must not ask for the jobs."""
        yield self._family()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """One sample for each node."""
        family = self._family()
        for name, watched in list(self._jobs.items()):
            job = watched.snapshot()
            if job.phase in (Phase.FINISHED, Phase.FAILED):
                continue
            for node in job.nodes:
                if node.state not in (NodeState.EVICTED, NodeState.LEFT):
                    family.add_metric([name, node.name], 1.0)
        yield family

    def _family(self) -> GaugeMetricFamily:
        return GaugeMetricFamily(
            "pulsetrain_job_node",
            "1 for each node of a job that goes on, but for those that were evicted or left.",
            labels=("job", "node"),
        )
