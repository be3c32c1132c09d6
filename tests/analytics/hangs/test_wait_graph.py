"""The wait-for graph: its sinks, and who waits for whom through others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.analytics.hangs.evidence import CollectiveKey
from pulsetrain.analytics.hangs.wait_graph import CollectiveNode, WaitGraph

EDGES = st.dictionaries(st.integers(0, 12), st.sets(st.integers(0, 12), max_size=4), max_size=13).map(
    lambda edges: {r: edges.get(r, set()) for r in range(13)}
)


def reachable(edges, start):
    """All nodes on some path from `start`, by a search that is too simple to be wrong."""
    seen, todo = set(), [start]
    while todo:
        for target in edges[todo.pop()]:
            if target not in seen:
                seen.add(target)
                todo.append(target)
    return seen


@given(EDGES)
def test_a_sink_reaches_itself_alone_and_somebody_waits_in_it(edges):
    sinks = WaitGraph(edges).sinks()
    for sink in sinks:
        for rank in sink:
            assert reachable(edges, rank) <= set(sink)
        assert len(sink) > 1 or any(sink[0] in targets for targets in edges.values())


@given(EDGES)
def test_who_waits_ends_in_a_sink(edges):
    ends = {rank for sink in WaitGraph(edges).sinks() for rank in sink}
    for rank, targets in edges.items():
        if targets:
            assert (reachable(edges, rank) | {rank}) & ends


@given(EDGES, st.sets(st.integers(0, 12), max_size=3))
def test_those_who_reach_some_ranks_are_the_others_with_a_path_to_them(edges, ranks):
    expected = {r for r in edges if reachable(edges, r) & ranks} - ranks
    assert WaitGraph(edges).reaching(ranks) == expected


def test_ranks_that_wait_in_a_collective_wait_for_those_who_hold_it_up():
    node = CollectiveNode(CollectiveKey(("dp", (0, 1, 2)), 4), oldest=True)
    graph = WaitGraph({0: {node}, 1: {node}, 2: set(), node: {2}})
    assert graph.sinks() == [(2,)]
    assert graph.reaching({2}) == {0, 1}


def test_a_long_chain_needs_no_recursion():
    size = 50_000
    edges = {rank: {rank + 1} for rank in range(size)} | {size: set()}
    assert WaitGraph(edges).sinks() == [(size,)]


def waits_in_circles(edges):
    return any(rank in reachable(edges, rank) for rank in edges)


@given(EDGES)
def test_a_hub_is_a_rank_without_which_nobody_in_its_sink_waits_in_circles(edges):
    for sink in (s for s in WaitGraph(edges).sinks() if len(s) > 1):
        inside = {rank: edges[rank] for rank in sink}
        expected = tuple(r for r in sink if not waits_in_circles({**inside, r: set()}))
        assert WaitGraph(edges).hubs(sink) == expected
