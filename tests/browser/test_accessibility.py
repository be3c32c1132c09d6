"""Every page as the accessibility checker axe-core sees it, with the keyboard alone, and on a wide screen."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile

import pytest
from playwright.sync_api import expect

from tests.browser.pages import PAGES, address

pytestmark = [pytest.mark.browser, pytest.mark.integration]

AXE = "axe-core@4.10.3"  # MPL-2.0, for tests only
SIZE = {"width": 1400, "height": 900}
LINKS = {"Heatmap", "Timeline", "Topology", "Nodes", "Pipeline", "Pool"}
# What takes the focus, also inside of a component: by its kind, and its address or what it says.
FOCUS = """() => {
  const name = (e) => e.role === 'radio' ? 'one of a group' : [e.tagName,
    e.getAttribute('href') || e.ariaLabel || e.innerText.trim().slice(0, 60)
    || e.title || e.type || e.dataset.testid || e.className].join(' ');
  const within = (root) => [...root.querySelectorAll('*')]
    .flatMap(e => [e, ...(e.shadowRoot ? within(e.shadowRoot) : [])]);
  const wanted = 'a[href], button, input, select, textarea, summary, [tabindex]';
  window.focusable = () => [...new Set(within(document)
    .filter(e => e.matches(wanted) && e.tabIndex >= 0 && !e.disabled
      && e.checkVisibility({visibilityProperty: true}) && e.getBoundingClientRect().width > 0)
    .map(name))];
  window.focused = () => {
    let e = document.activeElement;
    while (e && e.shadowRoot && e.shadowRoot.activeElement) e = e.shadowRoot.activeElement;
    if (!e || e === document.body) return null;
    const style = getComputedStyle(e);
    const marked = style.outlineStyle !== 'none' || style.boxShadow !== 'none';
    return [name(e), e.innerText.trim(), !marked && ['A', 'BUTTON'].includes(e.tagName)];
  };
}"""
RIGHT = """() => Math.max(...[...document.querySelectorAll(
  '.verdict, .js-plotly-plot, .scroll, .empty, .incident, .figures, [data-testid=stHorizontalBlock], '
  + '[data-testid=stEChartsChart], '
  + '[data-testid=stBidiComponentIsolated]')]
  .map(e => e.getBoundingClientRect().right))"""


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


def serious(page, axe):
    """What axe finds that keeps somebody from using the page."""
    page.evaluate(axe)
    violations = page.evaluate("axe.run(document, {resultTypes: ['violations']}).then(r => r.violations)")
    return [
        f"{v['id']} ({v['impact']}) at {node['target']}: {node['failureSummary']}"
        for v in violations
        if v["impact"] in ("serious", "critical")
        for node in v["nodes"][:2]
    ]


def tabbed(page):
    """Press Tab until everything was reached that takes the focus. Returns (texts, problems)."""
    page.evaluate(FOCUS)
    wanted, names, texts, problems = set(page.evaluate("focusable()")), set(), set(), []
    for _ in range(2 * len(wanted) + 20):
        page.keyboard.press("Tab")
        here = page.evaluate("focused()")
        if here is not None:
            names.add(here[0])
            texts.add(here[1])
            problems += [f"the focus does not show on {here[0]}"] if here[2] else []
        if wanted <= names:
            break
    problems += [f"Tab does not reach {name}" for name in sorted(wanted - names)]
    return texts, list(dict.fromkeys(problems))


def narrow(page):
    """Whether the content of a page leaves a part of 2560 pixels unused, or takes more."""
    page.set_viewport_size({"width": 2560, "height": 1200})
    page.wait_for_timeout(300)
    right, width = page.evaluate(RIGHT), page.evaluate("document.documentElement.scrollWidth")
    page.set_viewport_size(SIZE)
    return [] if 2440 < right <= 2560 >= width else [f"of 2560 pixels it uses {right}, and is {width} wide"]


@pytest.fixture
def each_page(browser, site):
    """Opens every page in a colour scheme. Returns what is wrong with each."""

    def look(scheme, check):
        context = browser.new_context(viewport=SIZE, color_scheme=scheme)
        context.set_default_timeout(60_000)
        page, found = context.new_page(), []
        for path in PAGES:
            page.goto(address(site, path))
            settled(page)
            found += [f"{path or 'overview'}: {problem}" for problem in check(page)]
        context.close()
        return found

    return look


def test_in_light_axe_finds_nothing_serious_and_the_keyboard_reaches_everything(each_page, axe):
    def check(page):
        found = serious(page, axe)
        texts, problems = tabbed(page)
        missing = [f"Tab does not reach {link}" for link in sorted(LINKS - texts)]
        return found + problems + missing

    found = each_page("light", check)
    assert found == [], "\n".join(found)


def test_in_dark_axe_finds_nothing_serious_and_a_wide_screen_is_used(each_page, axe):
    found = each_page("dark", lambda page: serious(page, axe) + narrow(page))
    assert found == [], "\n".join(found)


def test_a_choice_is_made_and_a_page_opened_with_the_keyboard_alone(page, site):
    page.goto(address(site, ""))
    settled(page)
    page.get_by_role("radio", name="step").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("radio", name="time")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("axis=time"))
    page.get_by_role("link", name="Nodes").first.focus()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/nodes"))
    settled(page)
