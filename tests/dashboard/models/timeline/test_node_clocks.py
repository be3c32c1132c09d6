"""The clocks of nodes from the ends of their collectives."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pulsetrain.dashboard.models.timeline.node_clocks import node_clocks

UTC = 1_760_000_000_000_000_000
AHEAD_NS = 7_000_000


def ends(collectives, nodes=("a", "b"), ahead=(0, AHEAD_NS)):
    rows = [
        {
            "attempt": 0, "step": k, "group": "dp", "seq": k, "node": node,
            "end_ns": UTC + k * 10**9 + own + 1000 * ((k * 7 + i) % 5),
        }
        for k in range(collectives)
        for i, (node, own) in enumerate(zip(nodes, ahead, strict=True))
    ]  # fmt: skip
    return pa.Table.from_pylist(rows)


def test_a_clock_that_is_ahead_is_told_to_within_its_error():
    found = node_clocks(ends(20))
    times = np.array([UTC + 5 * 10**9])
    assert found.error_ns("a") == 0
    assert 0 < found.error_ns("b") < 100_000
    assert abs(int(found.ahead_ns("b", times)[0]) - AHEAD_NS) <= found.error_ns("b")


def test_the_order_of_rows_changes_nothing():
    table = ends(20)
    mixed = table.take(pa.array(np.random.default_rng(0).permutation(table.num_rows)))
    assert node_clocks(mixed) == node_clocks(table)


def test_too_few_collectives_tell_nothing():
    found = node_clocks(ends(4))
    assert found.error_ns("b") is None
    assert found.ahead_ns("b", np.array([UTC])).tolist() == [0]


def test_no_row_tells_nothing():
    assert node_clocks(pa.table({})).error_ns("a") is None
