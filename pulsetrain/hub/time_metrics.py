"""What the time of each job went to, in Prometheus' format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from pulsetrain.hub.live_watch import Watched
from pulsetrain.recovery.time_use import COUNTED, TimeUse, Use


@dataclass(frozen=True)
class _Told:
    """What was told last of a run that began at `began_ns`."""

    began_ns: int
    spent_ns: Mapping[Use, int]


class TimeCollector(Collector):
    """Reads the jobs whenever somebody asks for the metrics."""

    def __init__(self, jobs: Mapping[str, Watched]) -> None:
        self._jobs = jobs
        self._told_ns: dict[str, _Told] = {}

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
            for each, spent_ns in self._risen_ns(name, use).items():
                seconds.add_metric([name, str(each)], spent_ns / 1e9)
        self._told_ns = {name: told for name, told in self._told_ns.items() if name in self._jobs}
        yield ratio
        yield seconds

    def _risen_ns(self, job: str, use: TimeUse) -> dict[Use, int]:
        """Nanoseconds by use, none less than it was told before in this run.

        What seemed work is taken back where it was a hang. Prometheus takes a counter that falls for one that
        began anew, and adds the whole of it once more.
        """
        before = self._told_ns.get(job)
        told_ns = before.spent_ns if before is not None and before.began_ns == use.began_ns else {}
        risen_ns: dict[Use, int] = {
            each: max(use.total_ns.get(each, 0), told_ns.get(each, 0)) for each in COUNTED
        }
        self._told_ns[job] = _Told(use.began_ns, risen_ns)
        return risen_ns

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
