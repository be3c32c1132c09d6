"""The whole path: a real job, the real hub, its dashboard; a node is evicted by clicking, the job heals."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from pulsetrain.protocol.client import HubAddress
from tests.browser.real_job import hub, job

pytestmark = [
    pytest.mark.alone,
    pytest.mark.browser,
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(500),
]


def test_evicting_by_clicking_heals_a_real_job(page, tmp_path):
    with hub(tmp_path / "hub") as facts:
        site = facts["dashboard"]
        page.goto(site)
        expect(page.locator(".empty").first).to_contain_text("No data", timeout=120_000)
        with job(tmp_path / "job", HubAddress(url=facts["url"], token=facts["token"])):
            expect(page.locator(".verdict .pill")).to_contain_text("healthy", timeout=120_000)
            expect(page.locator("#verdict")).to_contain_text("2 ranks")
            for path, text in (
                ("heatmap", "forward"), ("timeline", "Ranks 0-1, steps"), ("topology", "2 running"),
                ("pipeline", "spool"),
            ):  # fmt: skip
                page.goto(f"{site}/{path}?job=tiny")
                expect(page.locator("body")).to_contain_text(text, timeout=90_000)
            _evict(page, site, "node-b")
            row = page.locator("table tbody tr", has_text="node-b")
            expect(row).to_contain_text("evicted")
            expect(row).to_contain_text("smells of smoke")
            page.goto(f"{site}/recovery?job=tiny")
            expect(page.locator("table tbody tr")).to_have_count(1, timeout=120_000)
            page.goto(f"{site}/?job=tiny")
            expect(page.locator(".verdict .pill")).to_contain_text("healthy", timeout=120_000)
            page.goto(f"{site}/nodes?job=tiny")
            expect(page.locator("table tbody tr", has_text="node-c")).to_contain_text("active")


def _evict(page, site, node):
    page.goto(f"{site}/nodes?job=tiny&node={node}")
    page.get_by_role("button", name="Show the cost").click()
    expect(page.locator("body")).to_contain_text("Its place goes to node-c.")
    page.get_by_label("Reason").fill("smells of smoke")
    page.get_by_label("Reason").press("Enter")
    page.get_by_role("button", name=f"Evict {node}").click()
    expect(page.locator("body")).to_contain_text(re.compile(f"{node} was evicted"))
