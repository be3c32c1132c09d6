"""Replicas of unequal tensor parallelism: how far from equal ones they end, and what they cost the others."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pulsetrain.elastic.shard_mapping import shard_mapping

ROOT = Path(__file__).resolve().parents[2]
DEGREES = ((4, 3), (4, 2), (8, 6))
STEPS = 50

# A layer of a model of 70 billion parameters on eight H100 of a node: bfloat16 gradients, 40 % of the peak.
WIDTH, HIDDEN, LAYERS, TOKENS = 8192, 28672, 80, 8192
FLOPS_PER_S, NVLINK_BYTES_PER_S = 0.4 * 989e12, 300e9


def rows(folder: Path, *, quick: bool = False) -> Iterator[dict[str, Any]]:
    """One row for each pair of degrees, with the error of real processes and the cost in the model."""
    del folder
    for degrees in DEGREES[: 1 if quick else None]:
        yield {
            "what": "ntp",
            "degrees": degrees,
            "max_error": max_error(degrees, 5 if quick else STEPS),
            "overhead_ratio": overhead_ratio(*degrees),
        }


def max_error(degrees: tuple[int, ...], steps: int) -> float:
    """The largest difference of any parameter or first gradient from the model that nobody split, float64."""
    sys.path.insert(0, str(ROOT))
    from tests.elastic import test_gradient_sync, unequal_job  # the tests' own model

    test_gradient_sync.STEPS = steps
    expected = unequal_job.uninterrupted(steps)
    with tempfile.TemporaryDirectory(prefix="pulsetrain-bench-") as name:
        replicas = test_gradient_sync.trained(degrees, Path(name))
    return max(
        float(np.abs(replica[key] - values).max()) for replica in replicas for key, values in expected.items()
    )


def overhead_ratio(full: int, reduced: int) -> float:
    """The share of a step by which the larger replica is slower, in a model of overlap.

    Gradients of a layer move over NVLink before and after their sum, while the backward pass of the next
    layer runs. What takes longer than that, and the moves of the last layer, are not hidden.

    >>> overhead_ratio(8, 8)
    0.0
    >>> overhead_ratio(8, 6) < 0.01
    True
    """
    mapping = shard_mapping(HIDDEN, full, reduced)
    column_bytes = 3 * WIDTH * 2
    parameters = HIDDEN * 3 * WIDTH + 4 * WIDTH * WIDTH
    move_s = 2 * mapping.moved * column_bytes / full / NVLINK_BYTES_PER_S
    backward_s = 4 * parameters * TOKENS / full / FLOPS_PER_S
    exposed_s = move_s + max(0.0, move_s - backward_s) * (LAYERS - 1)
    return exposed_s / (1.5 * backward_s * LAYERS)
