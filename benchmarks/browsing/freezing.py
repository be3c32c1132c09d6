"""How soon pages say that the hub does not answer: those that are open, and those that are opened then."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Sequence
from typing import Any

from playwright.sync_api import Browser, Page
from playwright.sync_api import Error as PlaywrightError

from browsing.visits import Visit, wait

NOTICE = "text=/does not answer|hub is away/"
TOGETHER = 3
"""Pages that are open at a time. More of them would wait for the processors."""
LONGEST_S, BACK_S = 40.0, 60.0
_LOOK_MS = 100.0


def freezing(browser: Browser, address: str, job: str, hub: int, pages: Sequence[Visit]) -> dict[str, Any]:
    """Stop the process `hub` again and again. Seconds until each page says so. None: not within 40 s."""
    found = {visit.name: {"open_s": None, "fresh_s": None} for visit in pages}
    for begin in range(0, len(pages), TOGETHER):
        some = pages[begin : begin + TOGETHER]
        with contextlib.ExitStack() as stack:
            shown = {visit.name: stack.enter_context(_tab(browser)) for visit in some}
            for visit in some:
                shown[visit.name].goto(_url(address, job, visit))
                wait(shown[visit.name], visit.ready)
            for page in shown.values():  # the hub may still be late from the time before
                page.locator(NOTICE).first.wait_for(state="hidden", timeout=BACK_S * 1e3)
            with _frozen(hub):
                _note(found, "open_s", shown, time.perf_counter())
        with contextlib.ExitStack() as stack, _frozen(hub):
            began_s = time.perf_counter()
            shown = {visit.name: stack.enter_context(_tab(browser)) for visit in some}
            for visit in some:
                shown[visit.name].goto(_url(address, job, visit), wait_until="commit")
            _note(found, "fresh_s", shown, began_s)
    return found


def _url(address: str, job: str, visit: Visit) -> str:
    path, _, query = visit.path.partition("?")
    return f"{address}/{path}?job={job}" + (f"&{query}" if query else "")


@contextlib.contextmanager
def _tab(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    try:
        yield context.new_page()
    finally:
        context.close()


@contextlib.contextmanager
def _frozen(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _note(
    found: dict[str, dict[str, float | None]], what: str, shown: dict[str, Page], began_s: float
) -> None:
    """Note when each page shows the notice first."""
    waiting = dict(shown)
    while waiting and time.perf_counter() - began_s < LONGEST_S:
        for name, page in list(waiting.items()):
            with contextlib.suppress(PlaywrightError):  # it may navigate just now
                if page.locator(NOTICE).first.is_visible():
                    found[name][what] = round(time.perf_counter() - began_s, 1)
                    del waiting[name]
            page.wait_for_timeout(_LOOK_MS)
