"""What stands on a page of the dashboard, and whether it is whole."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import parse_qs, urlsplit

from playwright.sync_api import BrowserContext, Page
from playwright.sync_api import Error as PlaywrightError

FRAME = "#verdict, .strip"
SHOWN_S = 60.0
_CONTENT = (
    ".verdict, .t, .empty, .incident, .figures, .timeline, [data-testid=stEChartsChart] svg, "
    ".js-plotly-plot, "
    '[data-testid="stAlert"], [data-testid="stTextInput"], [data-testid="stButton"]'
)
_STYLED = "getComputedStyle(document.querySelector('.stApp')).fontVariantNumeric === 'tabular-nums'"
_STYLED_S = 5.0
_STILL_S = 0.6
_LEAST_LETTERS = 60
_FORMS = ("Note", "Reason", "In the name of", "Devices", "Silence for")
"""Fields of an action in progress. They are not part of the view."""
STATE = """(forms) => {
  const texts = (selector) => [...document.querySelectorAll(selector)].map(e => e.innerText.trim());
  const inputs = [...document.querySelectorAll('input[aria-label]')]
    .filter(e => e.type === 'text' && !forms.some(form => e.ariaLabel.endsWith(form)));
  const host = document.querySelector('[data-testid=stBidiComponentIsolated]');
  const canvas = host && host.shadowRoot && host.shadowRoot.querySelector('.timeline');
  const held = new URLSearchParams(location.search).has('view');
  const subheads = texts('[data-testid="stHeading"]');
  return {
    path: location.pathname,
    inputs: inputs.map(e => [e.ariaLabel, e.value]).sort(),
    chosen: texts('[role="radiogroup"] [role="radio"][aria-checked="true"]').sort(),
    switches: [...document.querySelectorAll('[data-testid="stCheckbox"]')]
      .map(e => [e.innerText.trim(), e.querySelector('input').checked]).sort(),
    heads: [...new Set(subheads)].sort(),
    view: held && canvas ? canvas.dataset.view : '',
  };
}"""
View = Mapping[str, object]


def view(page: Page) -> View:
    """What is chosen on a page: fields, menus, switches, headings, and the part that the timeline shows."""
    found: View = page.evaluate(STATE, list(_FORMS))
    return found


def settle(page: Page, longest_s: float = SHOWN_S) -> None:
    """Return when the script does not run, and address and view have stood still for a moment."""
    page.locator(FRAME).first.wait_for(timeout=longest_s * 1e3)
    page.locator(_CONTENT).locator("visible=true").first.wait_for(timeout=longest_s * 1e3)
    before, since = None, 0.0
    for _ in range(int(longest_s / 0.2)):
        now = (page.url, view(page), _running(page))
        since = since + 0.2 if now == before and not now[2] else 0.0
        if since >= _STILL_S:
            return
        before = now
        page.wait_for_timeout(200)


def _running(page: Page) -> bool:
    """Whether the whole script runs, or something of the page has not come yet."""
    return bool(
        page.evaluate("""() => {
      const app = document.querySelector('[data-testid="stApp"]');
      return !app || app.dataset.testScriptState === 'running'
        || !!document.querySelector('[data-testid="stSkeleton"]');
    }""")
    )


def whole(page: Page, job: str) -> list[str]:
    """What is missing on a page, in words: its title, its content, its style, its job. Or what disturbs."""
    wrong = []
    if not page.title().strip():
        wrong.append("it has no title")
    letters = len(page.locator("body").inner_text().strip())
    if letters < _LEAST_LETTERS:
        wrong.append(f"it is white: {letters} letters")
    for what, selector in (("an exception", '[data-testid="stException"]'), ("a dialog", '[role="dialog"]')):
        shown = page.locator(selector)
        wrong += [f"{what}: {text[:200]}" for text in shown.all_inner_texts()]
    try:  # a change of page may show the new one a moment before its style
        page.wait_for_function(_STYLED, timeout=_STYLED_S * 1e3)
    except PlaywrightError:
        wrong.append("its style is lost")
    try:
        page.wait_for_url(re.compile(rf"[?&]job={re.escape(job)}(&|$)"), timeout=10_000, wait_until="commit")
    except PlaywrightError:
        wrong.append("the job is not in the address")
    return wrong


def restored(context: BrowserContext, page: Page, *, longest_s: float = 8.0) -> list[str]:
    """Open the address of a page in a fresh tab. What is chosen there otherwise, in words."""
    other = context.new_page()
    try:
        other.goto(page.url)
        settle(other)
        here = there = view(page)
        for _ in range(int(longest_s / 0.25)):
            here, there = view(page), view(other)
            if here == there and _asked(page.url) == _asked(other.url):
                return []
            other.wait_for_timeout(250)
        return [_difference(here, there) or f"the address becomes {other.url}"]
    finally:
        other.close()


def _asked(url: str) -> dict[str, list[str]]:
    return parse_qs(urlsplit(url).query)


def _difference(here: View, there: View) -> str:
    parts = [
        f"{name} is {there[name]} in a fresh tab instead of {here[name]}"
        for name in here
        if here[name] != there[name]
    ]
    return ", ".join(parts)
