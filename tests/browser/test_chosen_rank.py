"""A rank that is chosen on the page Topology: by its number, by a link, and by a click in the 3-D chart."""

from __future__ import annotations

import contextlib
import re

import pytest
from playwright.sync_api import expect

pytestmark = [pytest.mark.browser, pytest.mark.integration]

_WHERE = """([tp, pp, dp]) => {
  const scene = document.querySelector('.st-key-mesh .js-plotly-plot')._fullLayout.scene._scene;
  const { model, view, projection } = scene.glplot.cameraParams;
  const times = (m, v) => [0, 1, 2, 3].map((i) => v.reduce((sum, each, k) => sum + m[4 * k + i] * each, 0));
  const [sx, sy, sz] = scene.dataScale;
  const [x, y, , w] = [model, view, projection].reduce((v, m) => times(m, v), [tp * sx, pp * sy, dp * sz, 1]);
  const box = scene.container.getBoundingClientRect();
  return [box.x + (0.5 + (0.5 * x) / w) * box.width, box.y + (0.5 - (0.5 * y) / w) * box.height];
}"""
"""Where a point of the mesh is on the screen: Plotly's own matrices."""


def test_a_chosen_rank_shows_its_groups_its_peers_and_what_it_has_in_flight(page, site):
    page.goto(f"{site}/topology?job=gpt&rank=5")
    panel = page.locator(".st-key-rank_panel")
    expect(panel).to_contain_text("Rank 5")
    expect(panel.locator("#in-flight")).to_have_text("No operation is in flight.")
    expect(panel.locator("tr", has_text="mesh_dp:5")).to_contain_text("1, 5")
    panel.locator("tr", has_text="tensor parallel").get_by_role("link", name="4").first.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("textbox", name="Rank")).to_have_value("4")
    expect(panel.locator("#in-flight")).to_contain_text("all_reduce in group mesh_dp:5, seq 120")
    expect(page.locator(".js-plotly-plot")).to_contain_text("rank 4, chosen")
    click_at(page, (1, 1, 1), "rank=7")
    expect(panel).to_contain_text("Rank 7")
    expect(page.get_by_role("textbox", name="Rank")).to_have_value("7")


def click_at(page, place, address):
    """Click a point of the mesh until the address says so. A busy machine draws the chart late."""
    for _ in range(5):
        page.wait_for_timeout(300)
        page.mouse.move(*page.evaluate(_WHERE, place))
        page.wait_for_timeout(300)
        page.mouse.down()
        page.mouse.up()
        with contextlib.suppress(AssertionError):
            expect(page).to_have_url(re.compile(address), timeout=2_000)
            return
    expect(page).to_have_url(re.compile(address), timeout=1)
