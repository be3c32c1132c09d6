"""Passing over most ports of a fleet changes nothing that is said of it."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsetrain.analytics.machines.network_config import NetworkConfig
from pulsetrain.analytics.machines.network_ports import ports
from pulsetrain.analytics.machines.traffic_screen import worth_a_look
from pulsetrain.analytics.verdict import findings
from tests.analytics.machines.ports import T0, Fleet, S, find

CONFIG = NetworkConfig()
STEPS = {
    "none": lambda fleet: [],
    "of 2 s": lambda fleet: fleet.steps,
    "of 7 s": lambda fleet: [int(t) for t in fleet.times[::7]],
    "of 0.7 s": lambda fleet: [int(fleet.times[0]) + i * 7 * S // 10 for i in range(170)],
}


def troubled(seed: int) -> Fleet:
    """A fleet in which some ports stop, drop, waver, or never carried anything."""
    chance = random.Random(seed)
    fleet = Fleet(count=6, seconds=chance.choice([4, 6, 30, 120]), seed=seed)
    for moved in fleet.moved.values():
        begin, kind = chance.randrange(len(moved)), chance.random()
        if kind < 0.3:
            moved[begin:] *= chance.choice([0.0, 0.2, 0.45, 0.6])
        elif kind < 0.45:
            moved[begin:] *= np.where(np.arange(len(moved) - begin) // 4 % 2, 0.3, 1.5)
        elif kind < 0.55:
            moved[:] = 0
    return fleet


def said(table: pa.Table, steps: list[int]) -> list[tuple[str, str, str]]:
    """The findings on traffic."""
    found = findings(find(table, now_ns=T0, job="j", steps_ns=steps))
    return sorted((f.kind, f.subject, f.summary) for f in found if f.kind.startswith("traffic"))


def each_judged(fleet: Fleet) -> pa.Table:
    """The same fleet, but each port has a counter of nothing that was sampled at other times.

    So no port can be passed over.
    """
    table = fleet.table()
    rows = [
        {"node": node, "device": device, "name": "rdma_receive_bytes", "ts": int(at), "value": 0.0}
        for node, device in fleet.names.values()
        for at in fleet.times[:2]
    ]
    return pa.concat_tables([table, pa.Table.from_pylist(rows, table.schema)])


@given(seed=st.integers(0, 10_000), steps=st.sampled_from(sorted(STEPS)))
@settings(max_examples=60, deadline=None)
def test_a_port_that_would_be_named_is_looked_at(seed, steps):
    fleet = troubled(seed)
    assert said(fleet.table(), STEPS[steps](fleet)) == said(each_judged(fleet), STEPS[steps](fleet))


@pytest.mark.parametrize("steps", sorted(STEPS))
def test_ports_that_are_well_are_passed_over_and_counted(steps):
    fleet = Fleet(count=16)
    fleet.moved[3][:] = 0
    fleet.moved[5][80:] *= 0.2
    looked_at, quiet = worth_a_look(ports(fleet.table()), np.array(STEPS[steps](fleet), np.int64), CONFIG)
    assert (looked_at, quiet) == ([5], 14)


def test_a_fleet_without_a_sampled_port_has_nothing_to_look_at():
    fleet = Fleet(count=3, seconds=3)
    assert worth_a_look(ports(fleet.table()), np.empty(0, np.int64), CONFIG) == ([0, 1, 2], 0)
    assert worth_a_look([], np.empty(0, np.int64), CONFIG) == ([], 0)
