"""What the time of each job went to, in Prometheus' format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from pulsetrain.hub.live_watch import Watched
from pulsetrain.recovery.time_use import COUNTED


class TimeCollector(Collector):
    """Reads the jobs whenever somebody asks for the metrics."""

    def __init__(self, jobs: Mapping[str, Watched]) -> None:
        self._jobs = jobs

    def describe(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """The families without samples: registering must not ask for the jobs."""
        yield from self._families()

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """The effective training time ratio, and seconds by use."""
        ratio, seconds = self._families()
        for name, job in list(self._jobs.items()):
            use = job.snapshot().time_use
            if use is None:
                continue
            for window, value in (("all", use.ettr), ("1h", use.ettr_1h)):
                if value is not None:
                    ratio.add_metric([name, window], value)
            for each in COUNTED:
                seconds.add_metric([name, str(each)], use.total_ns.get(each, 0) / 1e9)
        yield ratio
        yield seconds

    def _families(self) -> tuple[GaugeMetricFamily, CounterMetricFamily]:
        return (
            GaugeMetricFamily(
                "pulsetrain_job_ettr_ratio",
                "Effective training time ratio: share of a job's time that trains.",
                labels=("job", "window"),
            ),
            CounterMetricFamily(
                "pulsetrain_job_time_seconds", "Time of a job by what it went to.", labels=("job", "use")
            ),
        )
