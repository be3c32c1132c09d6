"""The wait-for graph of ranks and collectives: where waiting ends, and who waits for whom through others."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from pulsetrain.analytics.hangs.evidence import CollectiveKey


class CollectiveNode(NamedTuple):
    """A collective as a node of the graph.

    `oldest`: ranks for which it is the oldest operation in flight wait here. Ranks that wait for something
    older too have a node of their own for the same collective.
    """

    collective: CollectiveKey
    oldest: bool


Node = int | CollectiveNode  # a rank, or a collective that ranks wait in
Edges = dict[Node, Set[Node]]


class WaitGraph:
    """A directed graph: each node is mapped to the nodes it waits for. Every rank is a key.

    All methods take linear time.

    >>> op = CollectiveNode(CollectiveKey(("dp", (1, 2)), 7), oldest=True)
    >>> graph = WaitGraph({0: {1}, 1: set(), 2: {op}, op: {1}})
    >>> graph.sinks(), graph.reaching({1})
    ([(1,)], {0, 2})
    """

    def __init__(self, edges: Mapping[Node, Set[Node]]) -> None:
        self._edges = edges
        self._waiting_for: dict[Node, list[Node]] = {}
        self._found: dict[tuple[Node, ...], frozenset[int]] = {}
        for node, targets in edges.items():
            for target in targets:
                self._waiting_for.setdefault(target, []).append(node)

    def reaching(self, ranks: Set[int]) -> Set[int]:
        """Return the other ranks that wait, directly or through others, for one of `ranks`."""
        first = tuple(node for rank in ranks for node in self._waiting_for.get(rank, ()))
        found = self._found.get(first)
        if found is None:  # the same ranks wait for thousands that are late for one collective
            found = self._found[first] = self._reached_from(first)
        return found if found.isdisjoint(ranks) else found - ranks

    def _reached_from(self, first: Iterable[Node]) -> frozenset[int]:
        reached: set[Node] = set(first)
        todo = list(reached)
        while todo:
            for node in self._waiting_for.get(todo.pop(), ()):
                if node not in reached:
                    reached.add(node)
                    todo.append(node)
        return frozenset(n for n in reached if isinstance(n, int))

    def hubs(self, sink: tuple[int, ...]) -> tuple[int, ...]:
        """Return the ranks of a sink through each of which all waiting in circles goes, sorted.

        If one of them went on, nobody in the sink would wait for each other any more. Ranks that follow one
        program do not wait in circles. So where one rank does not follow it, it is among these.

        >>> WaitGraph({0: {1, 2}, 1: {0}, 2: {0, 1}}).hubs((0, 1, 2))
        (0,)
        >>> WaitGraph({0: {1}, 1: {0}}).hubs((0, 1))
        (0, 1)
        """
        circle = self._circle(sink[0])
        ranks = sorted(node for node in circle if isinstance(node, int))
        return tuple(r for r in ranks if not self._has_circle(without=r, begin=sink[0]))

    def _circle(self, begin: Node) -> list[Node]:
        """Return the nodes of a shortest way from a node of a sink back to it."""
        before: dict[Node, Node] = {}
        todo = deque([begin])
        while todo and begin not in before:
            node = todo.popleft()
            for target in self._edges.get(node, ()):
                if target not in before:
                    before[target] = node
                    todo.append(target)
        way = [begin]
        while (node := before[way[-1]]) != begin:
            way.append(node)
        return way

    def _has_circle(self, *, without: Node, begin: Node) -> bool:
        """Whether some nodes of the sink of `begin` wait for each other if one did not wait."""
        inside, todo = {begin}, [begin]
        while todo:
            for target in self._edges.get(todo.pop(), ()):
                if target not in inside:
                    inside.add(target)
                    todo.append(target)
        waits_for = {node: len(self._edges.get(node, ())) for node in inside if node != without}
        free = [without, *(node for node, count in waits_for.items() if not count)]
        while free:
            for node in self._waiting_for.get(free.pop(), ()):
                if node in waits_for:
                    waits_for[node] -= 1
                    if not waits_for[node]:
                        free.append(node)
        return any(waits_for.values())

    def sinks(self) -> list[tuple[int, ...]]:
        """Return the ranks of each sink, sorted.

        A sink is a strongly connected component that waits for nothing outside itself. It is one rank that
        others wait for, or several that wait for each other.
        """
        sinks = []
        for component in _Tarjan(self._edges).components():
            inside = set(component)
            if any(target not in inside for node in component for target in self._edges.get(node, ())):
                continue
            ranks = tuple(sorted(n for n in component if isinstance(n, int)))
            if ranks and (len(component) > 1 or component[0] in self._waiting_for):
                sinks.append(ranks)
        return sorted(sinks)


@dataclass
class _Tarjan:
    """Tarjan's algorithm for strongly connected components, without recursion."""

    edges: Mapping[Node, Set[Node]]
    index: dict[Node, int] = field(default_factory=dict)
    low: dict[Node, int] = field(default_factory=dict)
    stack: list[Node] = field(default_factory=list)
    on_stack: set[Node] = field(default_factory=set)

    def components(self) -> Iterator[list[Node]]:
        """Yield the components. Each comes after those that it points to."""
        for root in self.edges:
            if root not in self.index:
                yield from self._from(root)

    def _from(self, root: Node) -> Iterator[list[Node]]:
        index, low = self.index, self.low
        work = [(root, self._open(root))]
        while work:
            node, targets = work[-1]
            for target in targets:
                if target not in index:
                    work.append((target, self._open(target)))
                    break
                if target in self.on_stack:
                    low[node] = min(low[node], index[target])
            else:
                work.pop()
                if work:
                    parent = work[-1][0]
                    low[parent] = min(low[parent], low[node])
                if low[node] == index[node]:
                    yield self._pop_until(node)

    def _open(self, node: Node) -> Iterator[Node]:
        self.index[node] = self.low[node] = len(self.index)
        self.stack.append(node)
        self.on_stack.add(node)
        return iter(self.edges.get(node, ()))

    def _pop_until(self, node: Node) -> list[Node]:
        component: list[Node] = []
        while not component or component[-1] != node:
            component.append(self.stack.pop())
            self.on_stack.discard(component[-1])
        return component
