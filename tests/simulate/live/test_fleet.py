"""The shape of a live fleet is possible, and its steps take as long as asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pulsetrain.core.errors import UsageError
from pulsetrain.simulate.live.fleet import LiveFleet
from pulsetrain.simulate.timing import simulate_step


@pytest.mark.parametrize(("tp", "pp", "step_s"), [(1, 1, 0.5), (8, 4, 2.0), (2, 2, 30.0)])
def test_a_step_of_a_healthy_fleet_takes_step_s(tp, pp, step_s):
    spec = replace(LiveFleet(nodes=8, tp=tp, pp=pp, step_s=step_s).spec(), noise=0.0)
    assert simulate_step(spec, 3).length == pytest.approx(step_s)


def test_standbys_come_after_the_nodes_that_train():
    assert LiveFleet(nodes=2, standbys=1).names == ("sim-00000", "sim-00001", "sim-00002")


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"nodes": 0}, "--nodes = 0"),
        ({"tp": 3}, "16 ranks: not a multiple of tp x pp = 3"),
        ({"tp": 2, "pp": 2, "dp": 3}, "16 ranks: not tp x pp x dp = 12"),
        ({"standbys": -1}, "--standbys = -1"),
        ({"step_s": 0.0}, "--step-s = 0.0"),
    ],
)
def test_a_shape_that_cannot_be_is_named(values, names):
    with pytest.raises(UsageError) as caught:
        LiveFleet(**{"nodes": 2, **values})
    assert names in str(caught.value)
