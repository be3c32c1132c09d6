"""The pages that are measured: what stands when one is complete, and a change of view with its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from playwright.sync_api import Page

from browsing.live_site import FOUND_LINE

TIMELINE_RANKS = 64
CHART = "[data-testid=stEChartsChart]"
_PATIENCE_S = 120.0
Change = Callable[[Page], None]


class StoodBefore(Exception):
    """The end of a change of view stood on the page before the change: its time would say nothing."""


@dataclass(frozen=True, kw_only=True)
class Visit:
    """A page: its address and what stands there when it is complete.

    `change` changes the view and `changed` stands then, and not before. None for a page whose view cannot be
    changed. Selectors are Playwright's, joined by &&.
    """

    name: str
    path: str
    ready: str
    change: Change | None = None
    changed: str = ""


PLAIN = Visit(name="plain", path="", ready=f"text=One chart && {CHART} svg text")
"""The page of `plain_page.py`."""


def visits(rank: int, node: str, nodes: int) -> list[Visit]:
    """Every page. `rank` and `node` are at fault in a fleet of `nodes` machines. Others are looked for.

    Alerts, Recovery, Checkpoints, Pipeline and Pool have no view to change. Stacks has one, but simulated
    ranks have one thread each.
    """
    chart, table, cohort = f"{CHART} svg text", ".t, .empty", "text=the median of the"
    first, last = max(0, rank - TIMELINE_RANKS // 2), f"sim-{nodes - 1:05d}"
    counter, row = "rdma_receive_bytes", f"{CHART} text:has-text('stage 3')"
    folded = ":nth-match([data-testid='stExpander'], 1) details:not([open])"
    only_simulated = ".t tbody:has(td:text-is('simulated')):not(:has(td:text-is('attempt_started')))"
    rows: list[tuple[str, str, str, Change | None, str]] = [
        ("overview", "", f"#verdict && {chart}", _choose("time"), f"{CHART} text:text-is('UTC')"),
        ("heatmap", "heatmap", f"#worst && {chart}", _choose("stage"), row),
        ("topology", "topology", chart, _fill("Find", last), f"td:has-text('{last}')"),
        (
            "timeline", f"timeline?ranks={first}-{first + TIMELINE_RANKS - 1}", ".timeline[data-view]",
            _fill("Ranks", "0-3"), "text=Ranks 0-3, steps",
        ),
        ("incidents", "incidents", ".incident", _fold, folded),
        ("alerts", "alerts", "text=straggler", None, ""),
        ("stacks", "stacks", table, None, ""),
        ("nodes", "nodes", ".t", _fill("Find", last), f".t tbody tr:only-child:has-text('{last}')"),
        ("rank", f"rank?rank={rank}", f"{cohort} && {chart}", _fill("Rank", "0"), "text=Rank 0 works"),
        (
            "node", f"node?node={node}", f"{cohort} && {chart}", _fill("Node", "sim-00000"),
            "text=/Rank [0-7] works/",
        ),
        (
            "logs", "logs", ".t", _fill("Search", FOUND_LINE),
            f".t tbody tr:only-child:has-text('{FOUND_LINE}')",
        ),
        ("metrics", "metrics", chart, _fill("Counter", counter), f"{CHART} text:text-is('{counter}')"),
        ("events", "events?last=30+days", ".t", _fill("Kind", "simulated"), only_simulated),
        ("recovery", "recovery", table, None, ""),
        ("checkpoints", "checkpoints", table, None, ""),
        ("pipeline", "pipeline", ".t", None, ""),
        ("pool", "pool", ".t", None, ""),
    ]  # fmt: skip
    return [
        Visit(name=name, path=path, ready=ready, change=change, changed=changed)
        for name, path, ready, change, changed in rows
    ]


def wait(page: Page, selectors: str, timeout_s: float = _PATIENCE_S) -> None:
    """Return when all selectors, joined by &&, stand on the page."""
    for selector in selectors.split(" && "):
        page.wait_for_selector(selector, timeout=timeout_s * 1e3)


def change_s(page: Page, visit: Visit, timeout_s: float = _PATIENCE_S) -> float | None:
    """Change the view. Returns how long it took, None where there is none to change.

    Raises `StoodBefore`.
    """
    if visit.change is None:
        return None
    if all(page.locator(each).first.is_visible() for each in visit.changed.split(" && ")):
        raise StoodBefore(f"{visit.changed!r} stands before the change of view")
    began_s = time.perf_counter()
    visit.change(page)
    wait(page, visit.changed, timeout_s)
    return time.perf_counter() - began_s


def _choose(text: str) -> Change:
    return lambda page: page.get_by_text(text, exact=True).first.click()


def _fill(label: str, value: str) -> Change:
    def fill(page: Page) -> None:
        box = page.get_by_label(label, exact=True).first
        box.fill(value)
        box.press("Enter")

    return fill


def _fold(page: Page) -> None:
    page.locator("[data-testid='stExpander'] summary").first.click()
