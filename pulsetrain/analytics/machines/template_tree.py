"""Groups lines into templates as they come: Drain (He et al., ICWS 2017) with a limited memory.

Lines of equal length and equal first words share a leaf of the tree. Within a leaf, a line belongs to the
template with which it shares the most words. Words that differ within a template become ``<*>``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

ANY = "<*>"
"""Stands for a word that varies."""


@dataclass(slots=True)
class _Node:
    """A node by the word that leads to it. A leaf holds the numbers of its templates."""

    children: dict[str, _Node] = field(default_factory=dict)
    templates: list[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class TemplateLimits:
    """When lines are alike, and how much is kept."""

    prefix_words: int = 2
    """Leading words that lines of one leaf share."""
    similarity: float = 0.5
    """Share of a line's words that must equal the template's."""
    children: int = 100
    """Words that are told apart at one place of the prefix. Further ones count as varying."""
    templates: int = 4096
    """Templates that are kept. The one that no line matched for the longest time is forgotten first."""


class TemplateTree:
    """Templates of the lines that were added. Numbers of templates count from 1 and are not used again."""

    def __init__(self, limits: TemplateLimits | None = None) -> None:
        self._limits = limits or TemplateLimits()
        self._by_length: dict[int, _Node] = {}
        self._templates: OrderedDict[int, tuple[str, ...]] = OrderedDict()
        self._count = 0

    def add(self, line: str) -> int:
        """The number of the template that the line belongs to."""
        words = line.split()
        leaf = self._find_leaf(words)
        number = self._best(leaf, words) if leaf else None
        if number is None:
            return self._create(words)
        template = self._templates[number]
        pairs = zip(template, words, strict=True)
        self._templates[number] = tuple(known if known == word else ANY for known, word in pairs)
        self._templates.move_to_end(number)
        return number

    def text(self, number: int) -> str:
        """The template, with ``<*>`` for what varies. Empty where it is forgotten."""
        return " ".join(self._templates.get(number, ()))

    def _prefix(self, words: Sequence[str]) -> Sequence[str]:
        return words[: max(0, min(self._limits.prefix_words, len(words) - 1))]

    def _find_leaf(self, words: Sequence[str]) -> _Node | None:
        node = self._by_length.get(len(words))
        for word in self._prefix(words):
            if node is None:
                return None
            node = node.children.get(word) or node.children.get(ANY)
        return node

    def _best(self, leaf: _Node, words: Sequence[str]) -> int | None:
        """The most similar template of a leaf. Among equals the one with more words that vary."""
        best, best_rank = None, (-1, -1)
        for number in leaf.templates:
            template = self._templates.get(number)
            if template is None:
                continue
            varying = template.count(ANY)
            equal = sum(a == b and a != ANY for a, b in zip(template, words, strict=True))
            if (equal, varying) > best_rank:
                best, best_rank = number, (equal, varying)
        return best if best_rank[0] >= self._limits.similarity * len(words) else None

    def _create(self, words: Sequence[str]) -> int:
        self._count += 1
        if len(self._templates) >= self._limits.templates:
            self._templates.popitem(last=False)
        self._templates[self._count] = tuple(words)
        leaf = self._by_length.setdefault(len(words), _Node())
        for word in self._prefix(words):
            leaf = leaf.children.setdefault(self._key(leaf, word), _Node())
        leaf.templates = [number for number in leaf.templates if number in self._templates]
        leaf.templates.append(self._count)
        return self._count

    def _key(self, node: _Node, word: str) -> str:
        """The child of `node` that a new template with this word goes to."""
        if word in node.children:
            return word
        room = len(node.children) + (ANY not in node.children) < self._limits.children
        return word if room and not any(map(str.isdigit, word)) else ANY
