"""What a page is going to ask the hub, asked as soon as a browser wants its document.

The browser needs about a second until the page's script may run: it loads and compiles code, and opens a
connection. The hub answers meanwhile. What was asked ahead is in the cache of `Source`, or on its way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from urllib.parse import parse_qsl

from pulsetrain.core.errors import PulsetrainError
from pulsetrain.dashboard import heatmap, metrics, node, nodes, overview, page, rank, topology
from pulsetrain.dashboard.source import Questions, Source, begin
from pulsetrain.stream.queries import views

Asked = Mapping[str, str]
"""The query of a page's address."""
_OF_PAGE: Mapping[str, Callable[[Source, str, Asked], Questions]] = MappingProxyType(
    {
        "": overview.ahead,
        "overview": overview.ahead,
        "heatmap": heatmap.ahead,
        "topology": topology.ahead,
        "nodes": nodes.ahead,
        "rank": rank.ahead,
        "node": node.ahead,
        "metrics": metrics.ahead,
    }
)
"""By the page's place in the address."""
_NOT_SO_EARLY = frozenset({"heatmap"})
"""Pages whose question names the newest steps. A second later it may be another one, and this one costs."""


def begin_page(source: Source, path: str, job: str, asked: Asked) -> None:
    """Ask what every page needs and what the one at `path` is going to. Nobody waits here."""
    of_page = _OF_PAGE.get(path.rsplit("/", 1)[-1])
    own = of_page(source, job, asked) if of_page is not None and job else ()
    begin([source.alerts, partial(source.rows, views.jobs), *own])


def begin_document(path: str, query: str) -> None:
    """A browser wants the document of the page at `path`. Asks nothing where no job is named.

    Nor does it for a page whose question would be another one when its script runs.
    """
    asked = dict(parse_qsl(query))
    if not asked.get("job") or path.rsplit("/", 1)[-1] in _NOT_SO_EARLY:
        return
    try:
        source = page.source()
    except PulsetrainError:
        return  # the page says why
    begin_page(source, path, asked["job"], asked)
