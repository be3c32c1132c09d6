"""Random walks of clicks: no white page, no error, no lost style, and an address that restores every view."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Page
from playwright.sync_api import Error as PlaywrightError

from browsing.clicks import act
from browsing.views import restored, settle, view, whole

STARTS = (
    "", "heatmap", "timeline", "topology", "incidents", "stacks", "alerts", "nodes", "rank?rank=3",
    "node?node=sim-00001", "logs", "metrics", "events", "recovery", "checkpoints", "pipeline", "pool",
)  # fmt: skip
_HARMLESS = ("GL Driver Message", "willReadFrequently")
_OUTSIDE = "ERR_NETWORK_CHANGED"
"""Chromium drops what it loads when an interface of the machine comes or goes. Such a walk is made anew."""
_TRIES = 4
SIZE = {"width": 1400, "height": 900}


@dataclass(kw_only=True)
class Walk:
    """What became of one walk: its seed, what was done, and every problem in words."""

    seed: int
    clicks: int = 0
    done: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class WalkLog:
    """Walks in a file, one JSON object a line. A walk is not made twice. None: nothing is kept."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        self.walks = [Walk(**json.loads(line)) for line in lines if line.strip()]

    def missing(self, seeds: Iterable[int]) -> list[int]:
        """The seeds that are not in the file."""
        made = {each.seed for each in self.walks}
        return [seed for seed in seeds if seed not in made]

    def add(self, made: Walk) -> None:
        """Keep a walk."""
        self.walks.append(made)
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(asdict(made)) + "\n")

    def report(self) -> dict[str, Any]:
        """How many walks and clicks there were, and what was wrong."""
        problems = [f"walk {each.seed}: {problem}" for each in self.walks for problem in each.problems]
        clicks = sum(each.clicks for each in self.walks)
        return {"walks": len(self.walks), "clicks": clicks, "problems": problems}


def walks(browser: Browser, site: str, job: str, seeds: Iterable[int], clicks: int) -> Iterator[Walk]:
    """One walk for each seed, each in a browser context of its own."""
    for seed in seeds:
        for _ in range(_TRIES):
            context = browser.new_context(viewport=SIZE)
            made = walk(context, site, job, seed=seed, clicks=clicks)
            context.close()
            if not any(_OUTSIDE in problem for problem in made.problems):
                break
        yield made


def walk(context: BrowserContext, site: str, job: str, *, seed: int, clicks: int) -> Walk:
    """Click `clicks` times at random in a fresh tab, beginning at a random page. Nothing is evicted."""
    found, chance = Walk(seed=seed), random.Random(seed)
    page = context.new_page()
    _listen(page, found)
    try:
        start = chance.choice(STARTS)
        page.goto(f"{site}/{start}{'&' if '?' in start else '?'}job={job}")
        found.done.append(f"open {start or 'overview'}")
        settle(page)
        before = None
        for _ in range(clicks):
            found.done.append(act(page, chance) or "nothing")
            found.clicks += found.done[-1] != "nothing"
            before = _look(context, page, job, found, before)
    except PlaywrightError as error:
        _note(found, page, error.message.splitlines()[0])
    finally:
        page.close()
    return found


def _look(context: BrowserContext, page: Page, job: str, found: Walk, before: object) -> object:
    """Look at the page after a click. A view that has just been restored is not tried again."""
    settle(page)
    wrong = whole(page, job)
    now = (page.url, view(page))
    if now != before:
        wrong += restored(context, page)
    for problem in wrong:
        _note(found, page, problem)
    return now


def _note(found: Walk, page: Page, problem: str) -> None:
    done = found.done[-1] if found.done else "open"
    found.problems.append(f"after {done} at {page.url}: {problem}")


def _listen(page: Page, found: Walk) -> None:
    def console(kind: str, text: str, where: object) -> None:
        if kind == "error" and not any(word in text for word in _HARMLESS):
            _note(found, page, f"error in the console: {text[:300]} ({where})")

    page.on("pageerror", lambda error: _note(found, page, f"error in the page: {error}"))
    page.on("console", lambda message: console(message.type, message.text, message.location.get("url")))
    page.on("crash", lambda crashed: _note(found, crashed, "the page crashed"))
