"""Replicas of unequal degree train as one model that nobody split, in real processes over gloo."""

from __future__ import annotations

import os

import numpy as np
import pytest

from pulsetrain.elastic.shard_mapping import shard_mapping
from tests.elastic.unequal_job import SPLIT, rank_main, rows_of, uninterrupted

STEPS = 50
TOLERANCE = 1e-12  # float64


def trained(degrees, folder):
    """What each replica holds in the end, put together from its ranks."""
    pids = []
    for rank in range(sum(degrees)):
        if (pid := os.fork()) == 0:
            status = 1
            try:
                rank_main(rank, degrees, STEPS, folder)
                status = 0
            finally:
                os._exit(status)
        pids.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * len(pids)
    first, replicas = 0, []
    for degree in degrees:
        ranks = [np.load(folder / f"{first + rank}.npz") for rank in range(degree)]
        replicas.append({name: joined(name, ranks, min(degrees)) for name in ranks[0]})
        first += degree
    return replicas


def joined(name, ranks, reduced):
    plain = name.removeprefix("grad-")
    if plain not in SPLIT:
        assert all(np.array_equal(rank[name], ranks[0][name]) for rank in ranks)
        return ranks[0][name]
    axis, units, size = SPLIT[plain]
    mapping = shard_mapping(units, len(ranks), reduced)
    order = [row for part in mapping.compute for row in rows_of(part, size)]
    stacked = np.concatenate([rank[name] for rank in ranks], axis=axis)
    return np.take(stacked, np.argsort(order), axis=axis)


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize(
    "degrees", [(4, 4), (4, 3), (4, 2), (8, 6)], ids=["TP4 TP4", "TP4 TP3", "TP4 TP2", "TP8 TP6"]
)
def test_fifty_steps_of_unequal_replicas_equal_the_model_that_nobody_split(degrees, tmp_path):
    expected = uninterrupted(STEPS)
    larger, smaller = trained(degrees, tmp_path)
    for name, values in expected.items():
        assert np.abs(larger[name] - values).max() < TOLERANCE, name
        assert np.array_equal(larger[name], smaller[name]), name  # one sum, so bit for bit
