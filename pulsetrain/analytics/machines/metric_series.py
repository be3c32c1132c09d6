"""Rows of `metrics` as series in order of time, by device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

NS_PER_S = 1_000_000_000
Series = tuple[NDArray[np.int64], NDArray[np.float64]]
"""Times (UTC ns, rising) and values."""


def by_device(table: pa.Table, wanted: Callable[[str], bool]) -> Iterator[tuple[str, str, dict[str, Series]]]:
    """(node, device, series by metric) of the `wanted` metrics, sorted by node and device.

    `table` has the columns node, device, name, ts and value. Its rows are in any order and may come twice.
    Values that are missing, NaN or infinite are left out.
    """
    columns = [table[name].to_pylist() for name in ("node", "device", "name", "value")]
    times = table["ts"].cast(pa.int64()).to_pylist()
    samples: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
    for node, device, name, value, ts_ns in zip(*columns, times, strict=True):
        if wanted(name) and value is not None and np.isfinite(value):
            samples.setdefault((node, device), {}).setdefault(name, {})[ts_ns] = value
    for (node, device), metrics in sorted(samples.items()):
        yield node, device, {name: _series(values) for name, values in metrics.items()}


def duration_s(series: Series) -> float:
    """Seconds between the first and the last sample."""
    times, _ = series
    return float(times[-1] - times[0]) / NS_PER_S if times.size else 0.0


def _series(values: Mapping[int, float]) -> Series:
    times = sorted(values)
    return np.array(times, np.int64), np.array([values[t] for t in times])
