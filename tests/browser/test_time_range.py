"""The time range in the frame of the pages, in a real browser."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

pytestmark = [pytest.mark.browser, pytest.mark.integration]


def test_one_time_range_goes_along_until_another_is_chosen(page, site):
    page.goto(f"{site}/logs?job=gpt&from=2026-11-25T03:00&to=2026-11-25T03:30")
    expect(page.get_by_label("From, UTC")).to_have_value("2026-11-25T03:00")
    page.get_by_role("link", name="Heatmap").first.click()
    expect(page).to_have_url(re.compile("/heatmap.*from=2026-11-25T03"))
    expect(page.locator(".empty")).to_contain_text("no step of this job began in this time")
    page.get_by_label("From, UTC").fill("yesterday")
    page.get_by_label("From, UTC").press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("time from=yesterday: give a date and time in UTC")
    page.get_by_label("Time", exact=True).click()
    page.get_by_role("option", name="1 hour", exact=True).click()
    expect(page).to_have_url(re.compile(r"/heatmap\?(?!.*from=).*last=1\+hour"))
    expect(page.locator("#worst")).to_have_count(1)
    expect(page.get_by_role("alert")).to_have_count(0)
