"""Placement against the published vectors, and the exact probability against enumeration."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.checkpoint.peers.placement import (
    across_groups,
    backups,
    by_enumeration,
    gemini_bound,
    group,
    group_formula,
    mixed,
    peers_of,
    recovery_probability,
    ring,
    storage_sets,
    survives,
)
from pulsetrain.core.errors import UsageError

sizes = st.integers(1, 12).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n)))


@given(sizes, st.sampled_from([ring, mixed]))
def test_every_machine_has_k_distinct_holders_its_own_memory_first(size, place):
    machines, replicas = size
    holders = place(machines, replicas)
    assert len(holders) == machines
    for machine, held_by in enumerate(holders):
        assert held_by[0] == machine
        assert len(set(held_by)) == replicas
        assert all(0 <= m < machines for m in held_by)


@given(sizes, st.sampled_from([ring, mixed]))
def test_every_machine_holds_as_many_as_any_other(size, place):
    machines, replicas = size
    load = [0] * machines
    for held_by in place(machines, replicas):
        for m in held_by:
            load[m] += 1
    assert set(load) == {replicas}


@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n), st.integers(0, n))))
def test_the_exact_probability_is_that_of_enumeration(case):
    machines, replicas, failures = case
    for place in (ring, mixed):
        holders = place(machines, replicas)
        assert recovery_probability(holders, failures) == by_enumeration(holders, failures)


@pytest.mark.parametrize("failures", [2, 3])
@pytest.mark.parametrize(("replicas", "place"), [(2, group), (2, ring), (3, mixed), (4, group)])
def test_sixteen_machines_over_all_sets(replicas, place, failures):
    holders = place(16, replicas)
    assert recovery_probability(holders, failures) == by_enumeration(holders, failures)


def test_the_papers_figure_for_sixteen_machines():
    assert round(float(recovery_probability(group(16, 2), 2)), 3) == 0.933
    assert recovery_probability(group(16, 2), 2) == 1 - Fraction(8, 120)
    assert recovery_probability(ring(16, 2), 2) == 1 - Fraction(16, 120)  # a ring loses twice as often


@pytest.mark.parametrize(
    ("machines", "replicas", "failures", "by_group", "by_ring", "bound"),
    [
        (16, 2, 2, 0.9333, 0.8667, 0.9333),
        (16, 2, 3, 0.8000, 0.6286, 0.8000),
        (16, 2, 4, 0.6154, 0.3626, 0.6000),
        (16, 2, 5, 0.4103, None, 0.3333),
        (16, 4, 4, 0.9978, None, 0.9978),
        (128, 2, 2, 0.9921, None, 0.9921),
        (1000, 2, 2, 0.9990, None, 0.9990),
        (1000, 2, 3, 0.9970, None, 0.9970),
        (1000, 2, 15, 0.8989, None, 0.8949),
        (4, 2, 2, 0.6667, 0.3333, 0.6667),
    ],
)
def test_published_recovery_probabilities(machines, replicas, failures, by_group, by_ring, bound):
    """Corollary 1 of the paper and its figure 3; from twice `replicas` failures on the exact value is above
    the paper's bound."""
    assert round(float(recovery_probability(group(machines, replicas), failures)), 4) == by_group
    assert round(float(gemini_bound(machines, replicas, failures)), 4) == bound
    if by_ring is not None:
        assert round(float(recovery_probability(ring(machines, replicas), failures)), 4) == by_ring


@pytest.mark.parametrize("machines", [8, 12, 16, 24, 60])
@pytest.mark.parametrize("replicas", [2, 3, 4])
def test_inclusion_and_exclusion_is_exact_and_the_papers_formula_a_bound(machines, replicas):
    if machines % replicas:
        return
    holders = group(machines, replicas)
    for failures in range(min(machines, 3 * replicas) + 1):
        exact = recovery_probability(holders, failures)
        assert exact == group_formula(machines, replicas, failures)
        bound = gemini_bound(machines, replicas, failures)
        if failures < 2 * replicas:
            assert exact == bound
        else:
            assert exact > bound


@pytest.mark.parametrize(("machines", "replicas"), [(5, 2), (7, 3), (11, 4), (16, 3), (17, 2)])
def test_mixed_placement_loses_as_many_sets_as_the_theorem_says(machines, replicas):
    sets = storage_sets(mixed(machines, replicas))
    assert len(sets) == machines - (replicas - 1) * (machines // replicas - 1)
    gap = len(sets) - -(-machines // replicas)
    assert gap <= 2 * replicas - 3
    assert by_enumeration(mixed(machines, replicas), replicas) >= by_enumeration(
        ring(machines, replicas), replicas
    )


def test_a_thousand_machines_are_quick_and_certain_cases_are_certain():
    holders = mixed(1000, 2)
    assert recovery_probability(holders, 1) == 1
    assert recovery_probability(holders, 1000) == 0
    assert 0.89 < float(recovery_probability(holders, 15)) < 0.91


def test_machines_two_and_four_of_two_groups_survive():
    """G16's example, from 0: {0,1},{2,3} lose 1 and 3; each is brought back by its partner."""
    holders = group(4, 2)
    assert survives(holders, frozenset({1, 3}))
    assert not survives(holders, frozenset({2, 3}))


@given(st.integers(1, 4), st.integers(1, 6), st.integers(1, 6))
def test_a_backup_across_groups_shares_no_group_with_its_rank(tp, pp, dp):
    if sum(size > 1 for size in (tp, pp, dp)) < 2:
        with pytest.raises(UsageError, match="two above 1"):
            across_groups(tp, pp, dp)
        return
    partners = across_groups(tp, pp, dp)
    assert sorted(partners) == list(range(tp * pp * dp))  # each holds one other's

    def coordinates(rank):
        return rank % tp, rank // tp % dp, rank // (tp * dp)

    for rank, partner in enumerate(partners):
        same = sum(a == b for a, b in zip(coordinates(rank), coordinates(partner), strict=True))
        assert same <= 1


def test_the_published_example_of_a_backup_across_groups():
    partners = across_groups(2, 4, 2)
    assert (partners[8], partners[2], partners[9], partners[3]) == (2, 8, 3, 9)


def test_peers_by_name_follow_the_placement_and_fall_back_where_nodes_are_few():
    nodes = ["a", "b", "c", "d", "e"]
    assert peers_of("a", nodes, 2, "ring") == ("e",)
    assert peers_of("d", nodes[:4], 2, "group") == ("c",)
    assert peers_of("d", nodes, 2, "group") in {("c",), ("e",)}
    assert peers_of("a", ["a"], 2, "ring") == ()
    assert peers_of("a", nodes, 1, "ring") == ()
    assert peers_of("x", nodes, 2, "ring") == ()


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
def test_backups_by_rank_are_other_nodes_and_outside_every_group_where_there_is_one(tp, pp, dp, nproc):
    world = tp * pp * dp
    if sum(size > 1 for size in (tp, pp, dp)) < 2 or world % nproc:
        return
    home = {rank: f"n{rank // nproc}" for rank in range(world)}
    for rank in range(world):
        found = backups(rank, home, tp=tp, pp=pp, dp=dp, copies=1)
        assert len(found) == (world > nproc)
        assert home[rank] not in found
        if nproc == 1:
            partner = int(found[0][1:])
            same = [a == b for a, b in zip(at(rank, tp=tp, dp=dp), at(partner, tp=tp, dp=dp), strict=True)]
            assert sum(same) <= 1


def at(rank, *, tp, dp):
    return rank % tp, rank // tp % dp, rank // (tp * dp)


def test_the_eviction_of_any_whole_group_loses_nothing_on_the_examples_grid():
    """TP2 PP2 DP2 on four nodes of two ranks: a tensor-parallel group is a node, the others span two."""
    home = {rank: f"n{rank // 2}" for rank in range(8)}
    holders = {r: {home[r], *backups(r, home, tp=2, pp=2, dp=2, copies=1)} for r in range(8)}
    for axis in range(3):
        for rank in range(8):
            group_of = [
                r
                for r in range(8)
                if all(
                    a == b
                    for i, (a, b) in enumerate(zip(at(r, tp=2, dp=2), at(rank, tp=2, dp=2), strict=True))
                    if i != axis
                )
            ]
            evicted = {home[r] for r in group_of}
            assert all(holders[r] - evicted for r in range(8))


@pytest.mark.parametrize("bad", [(4, 0), (4, 5), (0, 1)])
def test_impossible_sizes_are_refused(bad):
    with pytest.raises(UsageError, match="replicas"):
        ring(*bad)
    with pytest.raises(UsageError, match="does not divide"):
        group(5, 2)
