"""Samples of GPUs as series in order of time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pulsetrain.analytics.machines.metric_series import Series, by_device, duration_s


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """Samples of one GPU by metric. `model` is empty where it is not known."""

    node: str
    uuid: str
    series: Mapping[str, Series]
    model: str = ""

    @property
    def name(self) -> str:
        """NODE/UUID, or the UUID alone where the node is not known."""
        return f"{self.node}/{self.uuid}" if self.node else self.uuid

    def values(self, metric: str) -> NDArray[np.float64]:
        """Samples in order of time. Empty where there are none."""
        return self.series[metric][1] if metric in self.series else np.empty(0)

    def increase(self, metric: str) -> float:
        """How much a counter rose. A smaller value than before is a reset, after which it counts from 0."""
        values = self.values(metric)
        if values.size < 2:
            return 0.0
        steps = np.diff(values)
        return float(np.where(steps < 0, values[1:], steps).sum())

    def seconds(self, metric: str) -> float:
        """Seconds between the first and the last sample. 0 without samples."""
        return duration_s(self.series[metric]) if metric in self.series else 0.0


def gpus(table: pa.Table, models: Mapping[str, str] | None = None) -> list[Gpu]:
    """GPUs from rows of `metrics` in any order, sorted by node and UUID. `models` names models by UUID."""
    return [
        Gpu(node=node, uuid=uuid, model=(models or {}).get(uuid, ""), series=series)
        for node, uuid, series in by_device(table, lambda metric: metric.startswith("gpu_"))
    ]


def values_at(series: Series, times: NDArray[np.int64]) -> NDArray[np.float64]:
    """The newest sample at each time. NaN before the first."""
    index = np.searchsorted(series[0], times, side="right") - 1
    return np.where(index >= 0, series[1][np.maximum(index, 0)], np.nan)
