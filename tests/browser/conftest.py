from __future__ import annotations

import shutil

import pytest
from playwright.sync_api import expect, sync_playwright

from tests.dashboard.hub_process import dashboard, fake_hub

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--enable-unsafe-swiftshader",  # the 3-D topology needs WebGL, in software here
]


# Playwright leaves its event loop running in this thread while it is open, so it closes with the
# module: an asyncio.run() in a later test would refuse to start beside it.
@pytest.fixture(scope="module")
def browser():
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.fail("no chromium: run deploy/test-services")
    expect.set_options(timeout=60_000)  # two cores, shared with whatever else runs
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield found
        found.close()


@pytest.fixture
def page(browser):
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    context.set_default_timeout(60_000)
    yield context.new_page()
    context.close()


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    with fake_hub(tmp_path_factory.mktemp("hub") / "store") as address:
        yield address


@pytest.fixture(scope="module")
def site(hub):
    with dashboard(hub) as url:
        yield url
