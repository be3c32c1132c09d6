"""Specifications of fleets and faults: what is read, what is refused, and when a fleet starts."""

from __future__ import annotations

import time
from datetime import datetime

import pytest

from pulsetrain.core.errors import UsageError
from pulsetrain.simulate.spec import FleetSpec, parse_fault, starting


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("explode:rank=1", "unknown fault 'explode'"),
        ("straggler:rank=1", "lacks factor="),
        ("straggler:factor=x", "factor=x"),
        ("straggler:factor=2,colour=red", "unknown key 'colour'"),
        ("straggler:factor", "not key=value"),
        ("straggler:rank=inf,factor=2", "rank=inf.*finite"),
        ("straggler:factor=2,since=nan", "since=nan.*finite"),
        ("straggler:rank=-7,factor=2", "rank=-7.*whole number"),
    ],
)
def test_a_fault_that_cannot_be_read_is_named(text, words):
    with pytest.raises(UsageError, match=words):
        parse_fault(text)


def test_a_rank_beyond_the_fleet_is_refused():
    with pytest.raises(UsageError, match=r"rank 8 is not below --ranks = 8"):
        FleetSpec(ranks=8, tp=2, pp=2, faults=(parse_fault("straggler:rank=8,factor=2"),))


def test_a_stage_beyond_the_pipeline_is_refused():
    with pytest.raises(UsageError, match="stage=99 of a fault: allowed: below 2"):
        FleetSpec(ranks=8, pp=2, faults=(parse_fault("stage:stage=99,factor=2"),))


def test_a_fleet_that_does_not_divide_is_refused():
    with pytest.raises(UsageError, match="not a multiple"):
        FleetSpec(ranks=9, tp=2)


def test_a_fault_affects_its_steps_and_defaults_to_all_ranks():
    fault = parse_fault("data_stall:seconds=2,since=5,until=7,node=sim-00001")
    assert [step for step in range(10) if fault.affects(step)] == [5, 6, 7]
    assert (fault.rank(), fault.node, fault.numbers["seconds"]) == (-1, "sim-00001", 2.0)


@pytest.mark.parametrize("change", [{"tp": 0}, {"microbatches": 0}, {"steps": -1}, {"seed": -1}])
def test_counts_that_cannot_be_are_refused_by_the_name_of_their_flag(change):
    (name,) = change
    with pytest.raises(UsageError, match=f"--{name}"):
        FleetSpec(**{"ranks": 8} | change)


def test_a_fleet_starts_when_told_or_so_that_it_ends_about_now():
    spec = FleetSpec(ranks=8, steps=100)
    assert starting(spec, datetime(2026, 1, 1)).start_ns == 1_767_225_600 * 10**9
    ago_s = (time.time_ns() - starting(spec, None).start_ns) / 1e9
    assert 50 < ago_s < 150
    assert starting(spec, None).ranks == 8


def test_nodes_are_named_by_rank():
    spec = FleetSpec(ranks=16, tp=2, pp=2, ranks_per_node=8)
    assert (spec.dp, spec.node(7), spec.node(8)) == (4, "sim-00000", "sim-00001")
