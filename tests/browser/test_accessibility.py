"""Every page as the accessibility checker axe-core sees it, with the keyboard alone, and on a wide screen."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile

import pytest
from playwright.sync_api import expect

pytestmark = [pytest.mark.browser, pytest.mark.integration]

AXE = "axe-core@4.10.3"  # MPL-2.0, for tests only
PAGES = (
    "", "heatmap", "timeline", "topology", "incidents", "stacks", "alerts", "nodes", "rank?rank=5",
    "node?node=node-2", "logs", "metrics", "events", "recovery", "checkpoints", "pipeline",
)  # fmt: skip


@pytest.fixture(scope="module")
def axe(tmp_path_factory):
    """The checker's script, from the npm registry."""
    npm = shutil.which("npm")
    if npm is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("no npm: it fetches axe-core")
    folder = tmp_path_factory.mktemp("axe")
    subprocess.run(
        [npm, "pack", AXE, "--silent", "--pack-destination", folder], check=True, cwd=folder, timeout=120
    )
    (archive,) = folder.glob("axe-core-*.tgz")
    with tarfile.open(archive) as files:
        script = files.extractfile("package/axe.min.js")
        assert script is not None
        return script.read().decode()


def settled(page):
    """Wait for the frame and for what is drawn in it."""
    page.locator("#verdict, .strip").first.wait_for()
    expect(page.locator('[data-testid="stSkeleton"]')).to_have_count(0)
    page.wait_for_timeout(400)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_on_any_page(browser, site, axe, scheme):
    context = browser.new_context(viewport={"width": 1400, "height": 900}, color_scheme=scheme)
    context.set_default_timeout(60_000)
    page = context.new_page()
    found = []
    for path in PAGES:
        page.goto(f"{site}/{path}{'&' if '?' in path else '?'}job=gpt")
        settled(page)
        page.evaluate(axe)
        violations = page.evaluate("axe.run(document, {resultTypes: ['violations']}).then(r => r.violations)")
        found += [
            f"{path or 'overview'}: {v['id']} ({v['impact']}) at {node['target']}: {node['failureSummary']}"
            for v in violations
            if v["impact"] in ("serious", "critical")
            for node in v["nodes"][:2]
        ]
    context.close()
    assert found == [], "\n".join(found)


def test_every_page_is_reached_and_read_with_the_keyboard_alone(page, site):
    page.goto(f"{site}/?job=gpt")
    settled(page)
    seen = []
    for _ in range(60):
        page.keyboard.press("Tab")
        here = page.evaluate("""() => {
          const e = document.activeElement, style = getComputedStyle(e);
          const marked = style.outlineStyle !== 'none' || style.boxShadow !== 'none';
          return [e.innerText || e.ariaLabel || e.tagName, e.tagName, marked];
        }""")
        seen.append(here)
    names = [name.strip() for name, _, _ in seen]
    assert {"Heatmap", "Timeline", "Topology", "Nodes", "Pipeline"} <= set(names)
    assert any(re.search("rank 5", name) for name in names)
    assert [here for here in seen if here[1] in ("A", "BUTTON") and not here[2]] == []
    page.get_by_role("link", name="Nodes").first.focus()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/nodes"))
    settled(page)


@pytest.mark.parametrize("path", ["", "heatmap", "timeline", "topology", "nodes"])
def test_a_wide_screen_is_used(browser, site, path):
    context = browser.new_context(viewport={"width": 2560, "height": 1200})
    page = context.new_page()
    page.goto(f"{site}/{path}?job=gpt")
    settled(page)
    page.locator(".js-plotly-plot, .timeline, .t").first.wait_for()
    right = page.evaluate("""() => Math.max(...[...document.querySelectorAll(
      '.verdict, .js-plotly-plot, .scroll, .strip, [data-testid=stBidiComponentIsolated]')]
      .map(e => e.getBoundingClientRect().right))""")
    assert 2440 < right <= 2560
    assert page.evaluate("document.documentElement.scrollWidth") <= 2560
    context.close()
