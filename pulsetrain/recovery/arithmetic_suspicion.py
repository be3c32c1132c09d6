"""Whose arithmetic is suspected in one job, and whose was found wrong. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

Key = tuple[int, str, str]
"""The attempt and the subject of a finding."""


class Report(Protocol):
    """What a check said: nodes that were right, and what others got wrong."""

    @property
    def right(self) -> Sequence[str]: ...
    @property
    def wrong(self) -> Mapping[str, str]: ...


@dataclass(frozen=True, kw_only=True)
class WrongArithmetic:
    """A node that computes wrongly, and when that was found."""

    reason: str
    at_ns: int


class ArithmeticSuspicions:
    """Suspicions stay until a check has looked into them. `wrong` stays until a node was right again."""

    def __init__(self) -> None:
        self.wrong: dict[str, WrongArithmetic] = {}
        self.right: frozenset[str] = frozenset()  # at the last stop
        self._open: dict[Key, tuple[tuple[str, ...], str]] = {}
        self._checked: set[Key] = set()

    def suspect(self, key: Key, nodes: Sequence[str], reason: str) -> bool:
        """Suspect nodes, all of them where none is named. Whether that is new."""
        if key in self._open or key in self._checked:
            return False
        self._open[key] = (tuple(nodes), reason)
        return True

    def reasons(self) -> list[str]:
        """Why anybody is suspected, [] where nobody is."""
        return [reason for _, reason in self._open.values()]

    def nodes(self) -> set[str]:
        """Who is suspected, empty for everybody."""
        if not all(nodes for nodes, _ in self._open.values()):
            return set()
        return {node for nodes, _ in self._open.values() for node in nodes}

    def checked(self, report: Report, now_ns: int) -> None:
        """A check has looked into all suspicions."""
        self._checked |= self._open.keys()
        self._open.clear()
        self.right = frozenset(report.right)
        for node in report.right:
            self.wrong.pop(node, None)
        for node, reason in report.wrong.items():
            self.wrong[node] = WrongArithmetic(reason=reason, at_ns=now_ns)
