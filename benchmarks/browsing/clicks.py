"""What a person may do on a page of the dashboard without changing anything in the fleet."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from types import MappingProxyType

from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import Locator, Page

Act = Callable[[Page, random.Random], str]
"""Does one thing on a page and says which. "" where the page has nothing of that kind."""

_PATIENCE_MS = 6_000.0
_TRIES = 12
_PLOT = "[data-testid=stEChartsChart] svg, .js-plotly-plot .nsewdrag"
_DESCRIBED = "(node) => (node.innerText || node.ariaLabel || node.title || node.tagName).trim().slice(0, 60)"
_WORDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "Ranks": ("0-3", "7", "0-3, 70", "seven"),
        "Steps": ("3:5", "4", "9000:9001", "a:b"),
        "Find": ("sim-00003", "17", "nobody has this", "cpu"),
        "Block": ("3/0-1", "0/0", "99/0-7", "x"),
        "Phase over steps": ("forward", "backward", "all_reduce", "nonesuch"),
        "or steps": ("1:20", "4", "a"),
        "Within": ("stage=3,rank=0:63", "stage=1", "dp=0:3", "colour=2"),
        "Rank": ("0", "17", "999999", "x"),
        "Node": ("sim-00002", "nobody"),
        "Search": ("rank", "100% \"'"),
        "Kind": ("simulated", "nonesuch"),
        "Counter": ("port_xmit_data_bytes", "nonesuch"),
    }
)
"""What is typed into a field, by its label. Some of it is wrong, as people type."""
_UNBOUND = ("Silence for", "Node")
"""Menus that belong to an action in progress, and not to the view."""
_KEYS = ("+", "-", "ArrowRight", "ArrowLeft", "Home")


def act(page: Page, chance: random.Random) -> str:
    """Do one thing of a kind that the page has. A control that was redrawn meanwhile is chosen anew."""
    kinds = list(ACTS)
    for _ in range(_TRIES):
        kind = chance.choice(kinds)
        try:
            if done := ACTS[kind](page, chance):
                return f"{kind}: {done}"
        except PlaywrightError:
            page.keyboard.press("Escape")
    return ""


def _visible(page: Page, selector: str) -> list[Locator]:
    return [each for each in page.locator(selector).all() if each.is_visible()]


def _clicks(selector: str) -> Act:
    """Click one of what a selector finds."""

    def click(page: Page, chance: random.Random) -> str:
        found = _visible(page, selector)
        if not found:
            return ""
        target = chance.choice(found[:40])
        said = str(target.evaluate(_DESCRIBED, timeout=_PATIENCE_MS))
        target.click(timeout=_PATIENCE_MS)
        return said

    return click


def _type(page: Page, chance: random.Random) -> str:
    fields = [
        (label, each)
        for each in _visible(page, '[data-testid="stTextInput"] input')
        if (label := each.get_attribute("aria-label", timeout=_PATIENCE_MS) or "") in _WORDS
    ]
    if not fields:
        return ""
    label, field = chance.choice(fields)
    text = chance.choice((*_WORDS[label], ""))
    field.fill(text, timeout=_PATIENCE_MS)
    field.press("Enter", timeout=_PATIENCE_MS)
    return f"{label} = {text!r}"


def _menu(page: Page, chance: random.Random) -> str:
    menus = [
        (label, each)
        for each in _visible(page, '[data-testid="stSelectbox"] input')
        if (label := each.get_attribute("aria-label", timeout=_PATIENCE_MS) or "") not in _UNBOUND
    ]
    if not menus:
        return ""
    label, menu = chance.choice(menus)
    menu.click(timeout=_PATIENCE_MS)
    page.locator('[role="option"]').first.wait_for(timeout=_PATIENCE_MS)
    option = chance.choice(page.locator('[role="option"]').all())
    said = option.inner_text(timeout=_PATIENCE_MS)
    option.click(timeout=_PATIENCE_MS)
    return f"{label} = {said}"


def _cell(page: Page, chance: random.Random) -> str:
    """Click anywhere in a chart: a cell of the heatmap, a block of the topology."""
    plots = _visible(page, _PLOT)
    box = chance.choice(plots).bounding_box(timeout=_PATIENCE_MS) if plots else None
    if box is None:
        return ""
    across, down = chance.uniform(0.02, 0.98), chance.uniform(0.02, 0.98)
    page.mouse.click(box["x"] + across * box["width"], box["y"] + down * box["height"])
    return f"{across:.2f}, {down:.2f} of a chart"


def _canvas(page: Page, chance: random.Random) -> str:
    """Zoom, move or click on the canvas of the timeline."""
    plots = _visible(page, ".timeline .plot")
    box = plots[0].bounding_box(timeout=_PATIENCE_MS) if plots else None
    if box is None:
        return ""
    x = box["x"] + chance.uniform(0.1, 0.9) * box["width"]
    y = box["y"] + min(chance.uniform(0.0, 1.0) * box["height"], 300.0)
    match chance.choice(("wheel", "click", "key", "drag")):
        case "wheel":
            page.mouse.move(x, y)
            page.mouse.wheel(0, chance.choice((-400, -200, 200)))
            return "wheel"
        case "key":
            plots[0].focus(timeout=_PATIENCE_MS)
            page.keyboard.press(key := chance.choice(_KEYS))
            return key
        case "drag":
            page.mouse.move(x, y)
            page.mouse.down()
            page.mouse.move(x + 120, y, steps=4)
            page.mouse.up()
            return "drag"
    page.mouse.click(x, y)
    return "click"


def _back(page: Page, chance: random.Random) -> str:
    """The browser's own buttons. A walk never goes back to before its first page."""
    length = int(page.evaluate("history.length"))
    way = chance.choice(("back", "back", "forward", "reload"))
    if way == "back" and length > 2:
        here = page.url
        page.evaluate("history.back()")
        page.wait_for_timeout(400)
        if page.url == "about:blank":
            page.goto(here)
            return ""
    elif way == "forward":
        page.evaluate("history.forward()")
        page.wait_for_timeout(400)
    elif way == "reload":
        page.reload()
    else:
        return ""
    return way


ACTS: Mapping[str, Act] = MappingProxyType(
    {
        "page": _clicks('[data-testid="stTopNavLink"]'),
        "link": _clicks(".t a, #links a, #named a, .links a, .figures a, .legend a"),
        "choice": _clicks('[role="radiogroup"] [role="radio"]'),
        "unfold": _clicks('[data-testid="stExpander"] summary'),
        "switch": _clicks('[data-testid="stCheckbox"] label'),
        "button": _clicks('button:has-text("Up"), button:has-text("Show the cost")'),
        "lane": _clicks(".timeline .lanes button, .timeline .tools button, .timeline .open"),
        "type": _type,
        "menu": _menu,
        "cell": _cell,
        "canvas": _canvas,
        "browser": _back,
    }
)
