"""Generated fleets: the same numbers as through the store, and every planted fault named in them."""

from __future__ import annotations

import random

import numpy as np
import pytest
from trials import fleets, score

from pulsetrain.analytics import watch
from pulsetrain.analytics.slowness.load_timings import load
from pulsetrain.analytics.verdict import findings
from pulsetrain.simulate.spec import FleetFault, FleetSpec
from pulsetrain.simulate.telemetry import telemetry
from pulsetrain.stream.queries.queryable import AttemptSteps
from pulsetrain.stream.store.clickhouse import open_store


def small(**changes):
    return FleetSpec(
        **{"ranks": 16, "tp": 2, "pp": 2, "steps": 12, "microbatches": 2, "job": "fleet"} | changes
    )


def test_the_matrices_are_those_that_the_store_gives(tmp_path):
    faults = (
        FleetFault(kind="straggler", numbers={"rank": 3, "factor": 1.5}),
        FleetFault(kind="data_stall", numbers={"rank": 5, "seconds": 0.05}),
    )
    spec = small(faults=faults)
    store = open_store(f"chdb://{tmp_path}")
    store.migrate()
    for record, table in telemetry(spec):
        store.insert(record, table)
    stored = load(store, AttemptSteps(job="fleet", attempt=0, first=0, last=11), first_step=0, now_ns=0)
    store.close()
    direct = fleets.timings_of(spec)
    assert (stored.ranks.tolist(), stored.stages.tolist()) == (direct.ranks.tolist(), direct.stages.tolist())
    assert stored.nodes.tolist() == direct.nodes.tolist()
    for name in ("compute", "wait", "forward", "backward", "optimizer", "data", "gc"):
        assert np.allclose(stored.parts[name], direct.parts[name], atol=50), name  # rounding of each span
    for name in ("duration_ns", "tokens", "loss", "grad_norm"):
        assert np.allclose(stored.numbers[name], direct.numbers[name], atol=1, equal_nan=True), name


@pytest.mark.parametrize("kind", fleets.KINDS)
def test_a_planted_fault_is_named(kind):
    spec = fleets.spec_of(256, seed=5)
    row = fleets.trial(spec, fleets.planted(spec, kind, random.Random(kind)))
    said = score.judge(row)
    assert said["detected"]
    assert said["top1"]
    assert not said["victim_root"]


def test_a_clean_fleet_is_left_alone():
    for seed in range(5):
        assert fleets.clean(fleets.spec_of(256, seed=seed))["findings"] == []


@pytest.mark.parametrize("culprit", [0, 100, 511])
def test_a_rank_that_stops_is_named_among_many(culprit):
    (finding,) = findings(watch.hang(fleets.stuck(fleets.spec_of(512), culprit)))
    assert (finding.kind, finding.subject) == ("hang", str(culprit))
