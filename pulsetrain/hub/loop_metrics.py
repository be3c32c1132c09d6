"""The loops of hub and agents in Prometheus' format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from pulsetrain.hub.loops import LoopRow

LABELS = ("process", "node", "loop")


class LoopCollector(Collector):
    """Reads the loops whenever somebody asks for the metrics."""

    def __init__(self, rows: Callable[[], Sequence[LoopRow]]) -> None:
        self._rows = rows

    def describe(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """The families without samples: registering must not ask for the loops."""
        yield from self._families()

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Age and failures of every loop."""
        age, failures = self._families()
        for row in self._rows():
            labels = [row["process"], row["node"], row["loop"]]
            age.add_metric(labels, row["age_s"])
            failures.add_metric(labels, row["failures"])
        yield age
        yield failures

    def _families(self) -> tuple[GaugeMetricFamily, CounterMetricFamily]:
        return (
            GaugeMetricFamily(
                "pulsetrain_loop_age_seconds", "Time since the last good turn of a loop.", labels=LABELS
            ),
            CounterMetricFamily(
                "pulsetrain_loop_failures", "Turns of a loop that raised an exception.", labels=LABELS
            ),
        )
