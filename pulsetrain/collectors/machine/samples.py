"""Samples of a node's counters and gauges as rows of `metrics`."""

from __future__ import annotations

from collections.abc import Sequence

from pulsetrain.records.columns import Columns

Sample = tuple[str, str, float]
"""Device ("" for the node itself), metric name, value."""


def metrics(node: str, samples: Sequence[Sample], times_ns: int | Sequence[int]) -> Columns:
    """A batch of `metrics`. `times_ns` (UTC) is one time for all samples, or one per sample."""
    return Columns.from_values(
        "metrics",
        len(samples),
        {
            "node": node,
            "device": [device for device, _, _ in samples],
            "name": [name for _, name, _ in samples],
            "ts": times_ns,
            "value": [value for _, _, value in samples],
        },
    )
