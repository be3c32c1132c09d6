"""A wait-for graph of ranks and operations: what it ends in, and who waits for whom through others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any

Node = int | tuple[Any, ...]  # a rank, or an operation that ranks wait in


class Graph:
    """Directed graph, node -> nodes it waits for; every rank is a key. All answers take linear time.

    >>> Graph({0: {1}, 1: set(), 2: {("op",)}, ("op",): {1}}).sinks()
    [(1,)]
    """

    def __init__(self, edges: Mapping[Node, Set[Node]]) -> None:
        self._edges = edges
        self._back: dict[Node, list[Node]] = {}
        for node, outs in edges.items():
            for out in outs:
                self._back.setdefault(out, []).append(node)

    def reaching(self, ranks: Set[int]) -> set[int]:
        """The other ranks that wait, directly or through others, for one of `ranks`."""
        found: set[Node] = set(ranks)
        todo: list[Node] = list(ranks)
        while todo:
            for node in self._back.get(todo.pop(), ()):
                if node not in found:
                    found.add(node)
                    todo.append(node)
        return {n for n in found if isinstance(n, int)} - set(ranks)

    def sinks(self) -> list[tuple[int, ...]]:
        """Ranks of each strongly connected component that waits for nothing outside itself but is waited for,
        or that waits within itself; sorted."""
        found = []
        for component in self._components():
            inside = set(component)
            if any(out not in inside for node in component for out in self._edges.get(node, ())):
                continue
            ranks = tuple(sorted(n for n in component if isinstance(n, int)))
            if ranks and (len(component) > 1 or component[0] in self._back):
                found.append(ranks)
        return sorted(found)

    def _components(self) -> Iterator[list[Node]]:
        """Strongly connected components (Tarjan's algorithm without recursion)."""
        index: dict[Node, int] = {}
        low: dict[Node, int] = {}
        stack: list[Node] = []
        on_stack: set[Node] = set()
        for root in self._edges:
            if root in index:
                continue
            work = [(root, self._open(root, index, low, stack, on_stack))]
            while work:
                node, outs = work[-1]
                for out in outs:
                    if out not in index:
                        work.append((out, self._open(out, index, low, stack, on_stack)))
                        break
                    if out in on_stack:
                        low[node] = min(low[node], index[out])
                else:
                    work.pop()
                    if work:
                        low[work[-1][0]] = min(low[work[-1][0]], low[node])
                    if low[node] == index[node]:
                        yield _pop_until(node, stack, on_stack)

    def _open(
        self,
        node: Node,
        index: dict[Node, int],
        low: dict[Node, int],
        stack: list[Node],
        on_stack: set[Node],
    ) -> Iterator[Node]:
        index[node] = low[node] = len(index)
        stack.append(node)
        on_stack.add(node)
        outs: Iterable[Node] = self._edges.get(node, ())
        return iter(outs)


def _pop_until(node: Node, stack: list[Node], on_stack: set[Node]) -> list[Node]:
    component: list[Node] = []
    while not component or component[-1] != node:
        component.append(stack.pop())
        on_stack.discard(component[-1])
    return component
