"""What a browser should load with the document of a page, and not one thing after the other.

Streamlit's page loads the code of an element when the first one of its kind arrives. So the code of charts
(1.2 MB) would only be asked for when the hub has answered. The document names it, so that the browser loads
and compiles it while the hub works.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import streamlit

_SCRIPTS = Path(streamlit.__file__).with_name("static") / "static" / "js"
_EVERYWHERE = ("Html",)
_WIDGETS = ("ButtonGroup", "TextInput", "Selectbox")
_CHART = "EChartsChart"
_CHARTED = frozenset({"", "overview", "heatmap", "topology", "rank", "node", "metrics", "recovery"})
"""Pages with a chart."""
_WITHOUT_WIDGETS = frozenset({"incidents", "alerts"})
_IMPORT = re.compile(r'(?:from|import)\s*["\'`]\./([\w.~-]+\.js)["\'`]')
_LINKED = re.compile(rb"static/js/([\w.~-]+\.js)")


def with_scripts(document: bytes, path: str, *, scripts: Path = _SCRIPTS) -> bytes:
    """The document of the page at `path`, whose head names the code of what the page will draw.

    What the document names already is not named again. What this version of Streamlit does not have is left
    out. Then the page loads it when it needs it.
    """
    page = path.strip("/")
    wanted = [*_EVERYWHERE, *(() if page in _WITHOUT_WIDGETS else _WIDGETS)]
    wanted += [_CHART] if page in _CHARTED else []
    known = {name.decode() for name in _LINKED.findall(document)}
    names = [name for kind in wanted for name in needed(scripts, kind) if name not in known]
    links = "".join(
        f'<link rel="modulepreload" crossorigin href="./static/js/{name}">' for name in dict.fromkeys(names)
    )
    return document.replace(b"</head>", links.encode() + b"</head>", 1)


@cache
def needed(scripts: Path, kind: str) -> tuple[str, ...]:
    """The files that draw one kind of element: its own, and all that it imports. () where there is none."""
    found: dict[str, None] = {}
    waiting = sorted(path.name for path in scripts.glob(f"{kind}.*.js"))[:1]
    while waiting:
        name = waiting.pop()
        if name in found or not (scripts / name).is_file():
            continue
        found[name] = None
        waiting += _IMPORT.findall((scripts / name).read_text(encoding="utf-8"))
    return tuple(found)
