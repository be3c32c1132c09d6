"""Transfers of process groups as a matrix, and which groups are siblings."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pulsetrain.analytics.slowness.transfers import transfers_from


def rows(*given):
    """A table from (step, group, phase, transfer_ns, bytes, members)."""
    names = ("step", "group", "phase", "transfer_ns", "bytes", "members")
    return pa.table(dict(zip(names, map(list, zip(*given, strict=True)), strict=True)))


def test_times_are_per_byte_and_what_did_not_run_is_missing():
    table = rows((1, "dp:0", "all_reduce", 300, 100, 2), (2, "dp:1", "all_reduce", 500, 100, 2))
    transfers = transfers_from(table)
    assert transfers.steps.tolist() == [1, 2]
    assert transfers.groups == ("dp:0", "dp:1")
    assert transfers.ns_a_byte[0, 0] == 3
    assert transfers.ns_a_byte[1, 1] == 5
    assert np.isnan(transfers.ns_a_byte[[0, 1], [1, 0]]).all()


def siblings(*given):
    transfers = transfers_from(rows(*given))
    names = zip(transfers.groups, transfers.phases, strict=True)
    return dict(zip(names, transfers.siblings.tolist(), strict=True))


def test_siblings_are_of_one_kind_operation_size_and_payload():
    numbers = siblings(
        (0, "dp:0", "all_reduce", 1, 1000, 4),
        (0, "dp:1", "all_reduce", 1, 1100, 4),
        (0, "dp:2", "all_reduce", 1, 9000, 4),
        (0, "dp:3", "all_reduce", 1, 1000, 2),
        (0, "dp:0", "all_gather", 1, 1000, 4),
        (0, "tp:0", "all_reduce", 1, 1000, 4),
    )
    assert numbers["dp:0", "all_reduce"] == numbers["dp:1", "all_reduce"]
    assert len(set(numbers.values())) == 5


def test_a_group_of_many_numbers_is_of_the_kind_before_them():
    numbers = siblings((0, "mesh_dp_1_2", "all_reduce", 1, 10, 2), (0, "mesh_dp_3_4", "all_reduce", 1, 10, 2))
    assert len(set(numbers.values())) == 1


def test_a_step_without_a_member_does_not_make_a_group_of_another_size():
    table = rows(
        (0, "dp:0", "all_reduce", 1, 10, 3),
        (1, "dp:0", "all_reduce", 1, 10, 4),
        (0, "dp:1", "all_reduce", 1, 10, 4),
    )
    assert set(transfers_from(table).siblings.tolist()) == {0}


def test_no_rows_are_no_groups():
    empty = transfers_from(rows((0, "a", "b", 1, 1, 2)).slice(0, 0))
    assert empty.groups == ()
    assert empty.ns_a_byte.shape == (0, 0)
