"""The pictures of README and docs, dark and light, from living simulated fleets behind a real hub.

    python benchmarks/browsing/screenshots.py [--nodes 128] [--out docs/images]

One fleet has a slow rank, a slow node and a flapping link, another a rank that stops. It needs Debian's
chromium and takes a few minutes. Pictures have few colours, so that each stays below 150 KB.
"""

from __future__ import annotations

import argparse
import io
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1]))

from browsing.live_site import LiveSite, Planted, faults, fleet, hang, live_site, until
from browsing.seen import PAGES

FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking")
COLOURS = 255
PICTURES = {
    "slow": {"light": ("heatmap", "timeline"), "dark": ()},
    "hang": {"light": ("overview", "topology"), "dark": ("overview",)},
}
"""Which pages of each job are taken in each scheme: those that a document shows."""


def take(page: Page, site: str, job: str, name: str) -> bytes:
    """A page, once its drawing stands."""
    page.goto(f"{site}/{name}?job={job}")
    for selector in PAGES[name].split(" && "):
        page.wait_for_selector(selector, timeout=120_000)
    page.locator("#named a").first.wait_for(timeout=60_000)
    page.wait_for_timeout(2_500)
    return page.screenshot()


def save(picture: bytes, path: Path) -> None:
    """Write it with few colours."""
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path} {path.stat().st_size / 1e3:.0f} KB", flush=True)


def of_fleet(
    browser: Browser, site: LiveSite, job: str, nodes: int, planted: tuple[Planted, ...], out: Path
) -> None:
    """Every picture of one fleet, once the hub names all that was planted."""
    with fleet(site, job, nodes, planted, step_s=1.0):
        site.client.decide_hang(job, "wait", "pictures are taken", seconds=3600.0)
        wanted = {each.name for each in planted}
        until(lambda: wanted <= site.named(job), 400)
        for scheme in ("light", "dark"):
            context = browser.new_context(
                viewport={"width": 1280, "height": 800}, color_scheme="dark" if scheme == "dark" else "light"
            )
            page = context.new_page()
            for name in PICTURES[job][scheme]:
                save(take(page, site.dashboard, job, name), out / f"{job}-{name}-{scheme}.png")
            context.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=128)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[2] / "docs/images")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=list(FLAGS))
        for job, planted in (("slow", faults(options.nodes)), ("hang", (hang(options.nodes),))):
            with (
                tempfile.TemporaryDirectory(prefix="pulsetrain-shots-") as data,
                live_site(Path(data)) as site,
            ):
                of_fleet(browser, site, job, options.nodes, planted, options.out)
        browser.close()


if __name__ == "__main__":
    main()
