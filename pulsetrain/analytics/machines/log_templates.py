"""Lines of logs as templates.

What varies is masked, so that the same message of two ranks is the same template.
"""

from __future__ import annotations

import re

from pulsetrain.analytics.machines.template_tree import TemplateLimits, TemplateTree

MOST_TEMPLATES = 4096
LONGEST_LINE = 500

_MASKS = (
    (re.compile(r"\x1b\[[0-9;]*m"), ""),
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"), "<time>"),
    (
        re.compile(r"\b(?:GPU-)?[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.I),
        "<uuid>",
    ),
    (re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b"), "<ip>"),
    (re.compile(r"0x[0-9a-fA-F]+"), "<hex>"),
    (re.compile(r"(?<![\w.])(?:/[\w.+@-]+){2,}"), "<path>"),
    (re.compile(r"(?<![A-Za-z_])[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"), "<n>"),
)


class Templates:
    """The templates of a log. At most `MOST_TEMPLATES` are kept. The least used are forgotten."""

    def __init__(self) -> None:
        self._tree = TemplateTree(TemplateLimits(templates=MOST_TEMPLATES))

    def add(self, line: str) -> int:
        """The number of the line's template."""
        return self._tree.add(mask(line))

    def text(self, template: int) -> str:
        """The template, with <*> for what varies. Empty where it is forgotten."""
        return self._tree.text(template)


def mask(line: str) -> str:
    """A line with names in place of numbers, times, addresses and paths, cut to `LONGEST_LINE`.

    >>> mask("rank 3: loss 2.5e-3 at 10.0.0.1:29500")
    'rank <n>: loss <n> at <ip>'
    """
    text = line[:LONGEST_LINE]
    for pattern, name in _MASKS:
        text = pattern.sub(name, text)
    return text.strip()
