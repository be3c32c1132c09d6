"""Rows of `metrics` as series in order of time, by device."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pulsetrain.records.arrow import sorted_codes

NS_PER_S = 1_000_000_000
Series = tuple[NDArray[np.int64], NDArray[np.float64]]
"""Times (UTC ns, rising) and values."""


def by_device(table: pa.Table, wanted: Callable[[str], bool]) -> Iterator[tuple[str, str, dict[str, Series]]]:
    """(node, device, series by metric) of the `wanted` metrics, sorted by node and device.

    `table` has the columns node, device, name, ts and value. Its rows are in any order and may come twice.
    Values that are missing, NaN or infinite are left out.
    """
    nodes, devices, names = (sorted_codes(table[name]) for name in ("node", "device", "name"))
    value = np.asarray(table["value"].to_numpy(), np.float64)
    times = np.asarray(table["ts"].cast(pa.int64()).to_numpy(), np.int64)
    kept = np.array([wanted(name) for name in names[1]], np.bool_)[names[0]] & np.isfinite(value)
    rows = np.flatnonzero(kept)
    series = (nodes[0][rows] * len(devices[1]) + devices[0][rows]) * len(names[1]) + names[0][rows]
    order = np.lexsort((times[rows], series))  # stable: of rows at one time the last one counts
    last = order[_lasts(series[order], times[rows][order])]
    series, rows = series[last], rows[last]
    node, device, name = nodes[0][rows], devices[0][rows], names[0][rows]
    times, value, ends = times[rows], value[rows], (np.flatnonzero(_lasts(series)) + 1).tolist()
    samples: dict[tuple[int, int], dict[str, Series]] = {}
    for begin, end in zip([0, *ends], ends, strict=False):
        device_samples = samples.setdefault((int(node[begin]), int(device[begin])), {})
        device_samples[names[1][name[begin]]] = times[begin:end], value[begin:end]
    for (at_node, at_device), metrics in samples.items():
        yield nodes[1][at_node], devices[1][at_device], metrics


def _lasts(*columns: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which rows are the last of those in a row that are equal in all columns."""
    changes = np.ones(len(columns[0]), np.bool_)
    changes[:-1] = (np.diff(np.stack(columns)) != 0).any(axis=0)
    return changes


def duration_s(series: Series) -> float:
    """Seconds between the first and the last sample."""
    times, _ = series
    return float(times[-1] - times[0]) / NS_PER_S if times.size else 0.0
