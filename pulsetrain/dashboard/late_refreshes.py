"""Refreshes that come late: of a page that the browser had left when they arrived.

A part of a page that refreshes itself is asked for by the browser, with the page that the browser showed.
While a new page is made, such a request waits. Streamlit runs it afterwards and tells the browser the page of
the request. The browser takes that for a change of page and drops what it shows: a white page, and then "Bad
delta path" for what the next refresh draws. So a refresh of another page is not run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Protocol


class Rerun(Protocol):
    """What a browser asks: parts of a page, or the whole of it where there are none."""

    fragment_id_queue: Sequence[str]
    page_script_hash: str


def is_late(asked: Rerun, page: str) -> bool:
    """Whether parts are asked for of another page than `page`, the one that the session shows."""
    return bool(asked.fragment_id_queue) and asked.page_script_hash != page


def without_late(run: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """`run`, the method of Streamlit's script runner that runs a request, without late ones."""

    @wraps(run)
    def run_in_time(runner: Any, asked: Any) -> None:
        if not is_late(asked, runner._pages_manager.current_page_script_hash):
            run(runner, asked)

    return run_in_time


def drop_late_refreshes() -> None:
    """Have Streamlit not run late refreshes in this process."""
    from streamlit.runtime.scriptrunner.script_runner import ScriptRunner

    setattr(ScriptRunner, "_run_script", without_late(ScriptRunner._run_script))  # noqa: B010 - mypy has no word for it
