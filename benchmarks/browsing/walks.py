"""Random walks of clicks: no white page, no error, no lost style, and an address that restores the view."""

from __future__ import annotations

import contextlib
import random
import re
from dataclasses import dataclass, field

from playwright.sync_api import BrowserContext, Locator, Page
from playwright.sync_api import Error as PlaywrightError

_LINKS = '[data-testid="stTopNavLink"], .t a, #links a, #named a'
_VIEWS = '[data-testid^="stBaseButton-segmented_control"], [data-testid="stExpander"] summary'
_FRAME = "#verdict, .strip"
_HARMLESS = ("GL Driver Message", "willReadFrequently")
_SHOWN_S = 60.0
_STYLED = "getComputedStyle(document.querySelector('.stApp')).fontVariantNumeric === 'tabular-nums'"
_STYLED_S = 5.0
STATE = """() => ({
  inputs: [...document.querySelectorAll('input[aria-label]')].filter(e => e.type === 'text')
    .map(e => [e.ariaLabel, e.value]).sort(),
  chosen: [...document.querySelectorAll('[data-testid="stBaseButton-segmented_controlActive"]')]
    .map(e => e.innerText).sort(),
})"""


@dataclass(kw_only=True)
class Walk:
    """What became of one walk: how many clicks were made, and every problem in words."""

    seed: int
    clicks: int = 0
    problems: list[str] = field(default_factory=list)


def walk(context: BrowserContext, site: str, job: str, *, seed: int, clicks: int) -> Walk:
    """Click `clicks` times at random in a fresh tab, beginning at a random page. Nothing is evicted."""
    found, chance = Walk(seed=seed), random.Random(seed)
    page = context.new_page()
    page.on("pageerror", lambda error: found.problems.append(f"error in the page: {error}"))
    page.on("console", lambda message: _console(found, message.type, message.text))
    try:
        start = chance.choice(("", "heatmap", "timeline", "topology", "nodes", "alerts"))
        page.goto(f"{site}/{start}?job={job}")
        page.locator(_FRAME).first.wait_for(timeout=_SHOWN_S * 1e3)
        for _ in range(clicks):
            _click(page, chance)
            found.clicks += 1
            _check(page, job, found)
        _restores(context, page, found)
    except PlaywrightError as error:
        found.problems.append(f"at {page.url}: {error.message.splitlines()[0]}")
    finally:
        page.close()
    return found


def _console(found: Walk, kind: str, text: str) -> None:
    if kind == "error" and not any(word in text for word in _HARMLESS):
        found.problems.append(f"error in the console: {text}")


def _click(page: Page, chance: random.Random) -> None:
    """Click a link or a control. One that was redrawn meanwhile is chosen anew."""
    for attempt in range(4):
        page.locator(_LINKS).first.wait_for(timeout=_SHOWN_S * 1e3)
        kinds = [page.locator(selector).all() for selector in (_LINKS, _VIEWS)]
        known = [kind for kind in kinds if kind]
        target: Locator = chance.choice(chance.choice(known))
        try:
            target.click(timeout=5_000)
        except PlaywrightError:
            if attempt == 3:
                raise
        else:
            return


def _check(page: Page, job: str, found: Walk) -> None:
    page.locator(_FRAME).first.wait_for(timeout=_SHOWN_S * 1e3)
    if page.locator('[data-testid="stException"]').count():
        found.problems.append(f"an exception stands on {page.url}")
    try:  # a change of page may show the new one a moment before its style
        page.wait_for_function(_STYLED, timeout=_STYLED_S * 1e3)
    except PlaywrightError:
        found.problems.append(f"the style is lost on {page.url}")
    with contextlib.suppress(PlaywrightError):
        page.wait_for_url(re.compile(rf"[?&]job={re.escape(job)}(&|$)"), timeout=20_000, wait_until="commit")
        return
    found.problems.append(f"the job is lost: {page.url}")


def _restores(context: BrowserContext, page: Page, found: Walk) -> None:
    """Open the address in another tab, and compare what is chosen there."""
    page.wait_for_timeout(700)  # a click reaches the address with the next answer of the server
    other = context.new_page()
    try:
        other.goto(page.url)
        other.locator(_FRAME).first.wait_for(timeout=_SHOWN_S * 1e3)
        here = there = None
        for _ in range(20):
            here, there = page.evaluate(STATE), other.evaluate(STATE)
            if here == there:
                return
            other.wait_for_timeout(250)
        found.problems.append(f"{page.url} shows {there} instead of {here}")
    finally:
        other.close()
