"""Who may have other work, by the process groups in which ranks communicate."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from pulsetrain.analytics.slowness.work_groups import ALONE, APART, work_groups

WORLD = [(range(8), "world", "all_reduce", 1, 8)]


def table(work, seed=None):
    """Rows of (ranks, group, phase, operations, bytes) for each rank, shuffled by `seed`."""
    rows = [(rank, *more) for ranks, *more in work for rank in ranks]
    if seed is not None:
        np.random.default_rng(seed).shuffle(rows := list(rows))
    names = ("rank", "group", "phase", "operations", "bytes")
    return pa.table({name: [row[i] for row in rows] for i, name in enumerate(names)})


def roles(work):
    found = work_groups(table(work))
    return [
        sorted(r for r, role in found.roles.items() if role == of) for of in sorted({*found.roles.values()})
    ]


MESH = [
    *[(range(2 * i, 2 * i + 2), f"tp:{i}", "all_reduce", 48, 48 << 20) for i in range(4)],
    *[(range(i, 8, 2), f"dp:{i}", "reduce_scatter", 4, 4 << 20) for i in range(2)],
]
NODES = [(range(4 * i, 4 * i + 4), str(i), "all_reduce", 3, 3 << 20) for i in range(2)]
CRITICS = [(range(6), "1", "all_gather", 40, 40 << 20), (range(6, 8), "2", "all_gather", 12, 40 << 20)]
ENCODERS = [(range(4), "1", "all_reduce", 4, 1 << 20), (range(4, 8), "2", "all_reduce", 4, 9 << 20)]
LONE = [(range(7), "1", "all_reduce", 4, 1 << 20)]


@pytest.mark.parametrize(
    ("work", "wanted"),
    [
        ([], [[*range(8)]]),
        (MESH, [[*range(8)]]),
        (NODES, [[*range(8)]]),
        (CRITICS, [[6, 7], [*range(6)]]),
        (ENCODERS, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (LONE, [[7], [*range(7)]]),
    ],
    ids=["world", "mesh", "nodes", "critics", "encoders", "one alone"],
)
def test_ranks_of_one_role_do_the_same_collectives_as_often(work, wanted):
    assert sorted(roles([*WORLD, *work])) == sorted(wanted)


def test_what_depends_on_the_data_makes_no_role():
    routed = [(range(2 * i, 2 * i + 2), f"ep:{i}", "all_to_all", 4, 10**i) for i in range(4)]
    longer = [
        (range(2 * i, 2 * i + 2), f"tp:{i}", "all_reduce", 40 + 10 * i, (1 + i) << 20) for i in range(4)
    ]
    assert roles([*WORLD, *routed, *longer]) == [[*range(8)]]


def test_circles_are_ranks_that_share_groups_also_through_others():
    assert set(work_groups(table([*WORLD, *MESH])).circles.values()) == {0}
    assert set(work_groups(table(WORLD)).circles.values()) == {ALONE}
    assert work_groups(table([*WORLD, *CRITICS])).circles_of(np.arange(9)).tolist() == [*[0] * 6, 6, 6, ALONE]
    chain = [((i, i + 1), str(i), "all_reduce", 1, 8) for i in range(6)]
    assert work_groups(table([*WORLD, *chain])).circles_of(np.arange(8)).tolist() == [*[0] * 7, ALONE]


def test_with_whom_a_rank_of_another_world_works_is_not_known():
    others = [((rank,), f"world seen by rank {rank}", "all_reduce", 4, 1 << 20) for rank in range(4, 8)]
    found = work_groups(table([*NODES[:1], *others]))
    assert found.circles_of(np.arange(8)).tolist() == [*[0] * 4, *[APART] * 4]


@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_rows_changes_nothing(seed):
    assert work_groups(table([*WORLD, *MESH, *LONE], seed)) == work_groups(table([*WORLD, *MESH, *LONE]))


def test_nothing_known_gives_no_role():
    found = work_groups(table([]))
    assert found.roles_of(np.arange(3)).tolist() == [ALONE] * 3
