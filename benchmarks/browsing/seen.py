"""Whether a person sees who is at fault: the name in the text, and the mark in the drawing, at its place.

Marks are looked for in a screenshot, by their colour, where the page says that they are.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence

import numpy as np
from PIL import Image
from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import FloatRect, Locator, Page

from browsing.live_site import PER_NODE, Planted
from browsing.visits import CHART
from pulsetrain.dashboard.models.states import RANK_STATES

PAGES: Mapping[str, str] = {
    "overview": f"#verdict && {CHART} svg text",
    "heatmap": f"#worst && {CHART} svg text",
    "topology": f"{CHART} svg text:text-matches('^ranks? [0-9]')",
    "timeline": ".timeline[data-view]",
}
_SENTENCES: Mapping[str, str] = {
    "overview": "#verdict",
    "heatmap": "#worst, .strip .sentence",
    "topology": ".strip .sentence",
    "timeline": ".strip .sentence",
}
_SUBJECT = re.compile(r"\b(?:rank (\d+)|(sim-\d{5}))", re.IGNORECASE)
_MARKS = tuple(state.glyph for name, state in RANK_STATES.items() if name in ("culprit", "slow", "part"))
_COLOURS = tuple(state.colour for name, state in RANK_STATES.items() if name in ("culprit", "slow", "part"))
_LOOKS, _BETWEEN_MS = 6, 2_000.0
"""So often a page is looked at until everybody is seen. It draws anew every two to four seconds."""
_CELL_RED = 40  # a cell of the heatmap is red where red exceeds blue by so much


def faults_seen(page: Page, site: str, job: str, planted: Sequence[Planted]) -> dict[str, list[str]]:
    """What is wrong with each page: who is not named or not marked, and who is and should not be."""
    return {name: _on(page, name, site, job, planted) for name in PAGES}


def _on(page: Page, name: str, site: str, job: str, planted: Sequence[Planted]) -> list[str]:
    page.goto(f"{site}/{name}?job={job}")
    try:
        for selector in PAGES[name].split(" && "):
            page.wait_for_selector(selector, timeout=120_000)
    except PlaywrightError as error:
        return [error.message.splitlines()[0]]
    wrong = _named(page, planted)
    problems: list[str] = []
    for _ in range(_LOOKS):  # a drawing may follow the text
        page.wait_for_timeout(_BETWEEN_MS)
        problems = _look(page, name, planted)
        if not problems:
            break
    return wrong + problems


def _look(page: Page, name: str, planted: Sequence[Planted]) -> list[str]:
    """One look at a page as it is now."""
    text = ". ".join(page.locator(_SENTENCES[name]).all_inner_texts())
    screen = np.asarray(Image.open(io.BytesIO(page.screenshot())).convert("RGB")).astype(int)
    wrong = _chips(page, screen, planted)
    wrong += [f"{other} is named in {text!r}" for other in strangers(text, planted)]
    if not names_one(text, planted):
        wrong.append(f"nobody at fault is named in {text!r}")
    match name:
        case "heatmap":
            return wrong + _heatmap(page, screen, planted)
        case "topology":
            return wrong + _topology(page, screen, planted)
        case "timeline":
            return wrong + _timeline(page, screen, planted)
    return wrong


def _chip(page: Page, each: Planted) -> Locator:
    return page.locator("#named a", has_text=re.compile(rf"{re.escape(each.name)}$")).first


def _named(page: Page, planted: Sequence[Planted]) -> list[str]:
    """Wait until everybody planted is named above the page. Who is not."""
    wrong = []
    for each in planted:
        try:
            _chip(page, each).wait_for(timeout=60_000)
        except PlaywrightError:
            wrong.append(f"{each.name}: not named")
    return wrong


def _chips(page: Page, screen: np.ndarray, planted: Sequence[Planted]) -> list[str]:
    """Whose name wears no mark, and who is named beside those who were planted."""
    texts = [text.split(" ", 1)[-1].strip() for text in page.locator("#named a").all_text_contents()]
    wrong = [f"{text} is named" for text in texts if text not in {each.name for each in planted}]
    there = [each for each in planted if each.name in texts]
    return wrong + [
        f"{each.name}: no mark beside its name"
        for each in there
        if not _shows(screen, _chip(page, each).bounding_box(), _COLOURS, 20)
    ]


def strangers(text: str, planted: Sequence[Planted]) -> list[str]:
    """Ranks and nodes that a sentence names and that have nothing to do with what was planted.

    >>> slow = Planted(table={}, name="rank 17", ranks=(17,))
    >>> strangers("Rank 17 on sim-00002 is slow, rank 3 waits", [slow])
    ['rank 3']
    """
    known = {f"rank {rank}" for each in planted for rank in each.ranks}
    known |= {f"sim-{rank // PER_NODE:05d}" for each in planted for rank in each.ranks}
    return sorted(_subjects(text) - known)


def names_one(text: str, planted: Sequence[Planted]) -> bool:
    """Whether a sentence names somebody who was planted, or the machine that was."""
    return any(
        each.name in text or _subjects(text) & {f"rank {rank}" for rank in each.ranks} for each in planted
    )


def _subjects(text: str) -> set[str]:
    return {f"rank {int(rank)}" if rank else node for rank, node in _SUBJECT.findall(text)}


def _heatmap(page: Page, screen: np.ndarray, planted: Sequence[Planted]) -> list[str]:
    ticks = page.locator(f"{CHART} svg text")
    labels = {text: ticks.nth(i) for i, text in enumerate(ticks.all_text_contents())}
    marked = {text: where for text, where in labels.items() if text.startswith(_MARKS)}
    plot = page.locator(f"{CHART} svg").first.bounding_box()
    wrong = []
    for each in planted:
        row = next((w for t, w in marked.items() if re.search(rf" {re.escape(each.name)}(:|$)", t)), None)
        box = row.bounding_box() if row else None
        if box is None or plot is None:
            wrong.append(f"{each.name}: no row on top")
            continue
        right = box["x"] + box["width"]
        width = plot["x"] + plot["width"] - right
        band = FloatRect(x=right, y=box["y"] + 1, width=width, height=box["height"] - 2)
        pixels = _cut(screen, band)
        red = int((pixels[..., 0] - pixels[..., 2] > _CELL_RED).sum())
        if red < 100 and not _shows(screen, band, _COLOURS, 20):
            wrong.append(f"{each.name}: its row shows nothing")
    known = "|".join(re.escape(each.name) for each in planted)
    return wrong + [f"{t} stands out" for t in marked if not re.search(rf" ({known})(:|$)", t)]


def _topology(page: Page, screen: np.ndarray, planted: Sequence[Planted]) -> list[str]:
    texts = page.locator(f"{CHART} svg text:text-matches('^ranks? [0-9]')")
    found: dict[tuple[int, ...], Locator] = {}
    for i, text in enumerate(texts.all_text_contents()):
        numbers = [int(number) for number in re.findall(r"\d+", text)]
        if numbers:
            found[tuple(range(numbers[0], numbers[-1] + 1))] = texts.nth(i)
    wrong = [f"ranks {ranks} are marked" for ranks in found if ranks not in {each.ranks for each in planted}]
    for each in planted:
        where = found.get(each.ranks)
        box = where.bounding_box() if where else None
        if box is None:
            wrong.append(f"{each.name}: no mark in the grid")
            continue
        below = FloatRect(x=box["x"], y=box["y"] + box["height"], width=box["width"], height=24)
        if not _shows(screen, below, _COLOURS, 40):
            wrong.append(f"{each.name}: no mark below its name")
    return wrong


def _timeline(page: Page, screen: np.ndarray, planted: Sequence[Planted]) -> list[str]:
    buttons = page.locator(".lanes button").all()
    labels = [(button.get_attribute("aria-label") or "", button) for button in buttons]
    words = tuple(RANK_STATES[name].label for name in ("culprit", "slow", "part"))
    marked: dict[int, Locator] = {}
    for label, button in labels:
        if any(f", {word}," in label for word in words):
            marked.setdefault(int(re.findall(r"\d+", label)[0]), button)
    theirs = {rank for each in planted for rank in each.ranks}
    wrong = [f"rank {rank} is marked" for rank in marked if rank not in theirs]
    for each in planted:
        box = marked[each.ranks[0]].bounding_box() if each.ranks[0] in marked else None
        if box is None:
            wrong.append(f"{each.name}: no lane with a mark")
            continue
        stripe = FloatRect(x=box["x"] - 4, y=box["y"], width=12, height=box["height"])
        if not _shows(screen, stripe, _COLOURS, 10):
            wrong.append(f"{each.name}: no stripe at its lane")
    return wrong


def _cut(screen: np.ndarray, box: FloatRect) -> np.ndarray:
    top, left = max(0, int(box["y"])), max(0, int(box["x"]))
    return screen[top : int(box["y"] + box["height"]), left : int(box["x"] + box["width"])]


def _shows(screen: np.ndarray, box: FloatRect | None, colours: Sequence[str], least: int) -> bool:
    """Whether so many pixels of a box have one of the colours, up to what smoothing takes from it."""
    if box is None:
        return False
    pixels = _cut(screen, box)
    for colour in colours:
        wanted = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
        if int((abs(pixels - wanted).sum(axis=-1) < 60).sum()) >= least:
            return True
    return False
