"""The page Timeline in a real browser: drawn, moved, and the same view again from its address."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.canvas_page import pixels

pytestmark = [pytest.mark.browser, pytest.mark.integration]

COMPUTE, CULPRIT = "#3b7db8", "#d55e00"


@pytest.fixture
def timeline(page, site):
    """The page with its canvas drawn. It fails where the browser logs an error of the page's own."""
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: message.type == "error" and problems.append(message.text))
    page.goto(f"{site}/timeline?job=gpt")
    drawn(page)
    yield page
    # Streamlit itself asks for files beside its page that only its own hosting has
    assert [text for text in problems if "404" not in text] == []


def drawn(page):
    """Wait until the canvas has drawn something."""
    expect(page.locator(".timeline")).to_have_attribute("data-view", re.compile(".*"))


def test_spans_and_the_culprit_are_drawn_beside_the_step_that_was_last(timeline):
    assert pixels(timeline, COMPUTE) > 2000
    assert pixels(timeline, CULPRIT) > 50
    expect(timeline.locator(".lanes button").filter(has_text="◆ rank 5")).to_have_count(1)
    expect(timeline.locator(".plot")).to_have_attribute(
        "aria-label", re.compile("Not ended: rank 5 is in forward for at least")
    )


def test_the_wheel_zooms_and_the_address_restores_the_view(timeline):
    box = timeline.locator(".plot").bounding_box()
    timeline.mouse.move(box["x"] + 600, box["y"] + 60)
    timeline.mouse.wheel(0, -400)
    expect(timeline).to_have_url(re.compile(r"view=1\d\d%3A"))
    expect(timeline).to_have_url(re.compile(r"steps=118%3A120"))  # a running job must not move on meanwhile
    expect(timeline.get_by_role("textbox", name="Steps")).to_have_value("118:120")
    view = timeline.locator(".timeline").get_attribute("data-view")
    other = timeline.context.new_page()
    other.goto(timeline.url)
    drawn(other)
    expect(other.locator(".timeline")).to_have_attribute("data-view", view)


def test_keys_zoom_and_home_lets_the_steps_go(timeline):
    timeline.locator(".plot").focus()
    timeline.keyboard.press("+")
    expect(timeline).to_have_url(re.compile("view="))
    expect(timeline.get_by_role("textbox", name="Steps")).to_have_value("118:120")
    timeline.locator(".plot").focus()
    timeline.keyboard.press("Home")
    expect(timeline).not_to_have_url(re.compile("view="))
    expect(timeline.get_by_role("textbox", name="Steps")).to_have_value("")


def test_a_click_puts_the_rank_into_the_address_and_a_second_one_opens_its_page(timeline):
    timeline.locator(".lanes button").filter(has_text="rank 5").click()
    expect(timeline).to_have_url(re.compile("rank=5"))
    timeline.get_by_role("button", name="Open rank 5").click()
    expect(timeline).to_have_url(re.compile("/rank.*rank=5"))
    expect(timeline.locator("body")).to_contain_text("Beside its cohort")


def test_a_page_that_nothing_changes_on_draws_once(timeline):
    timeline.wait_for_timeout(6_500)  # three looks
    expect(timeline.locator(".timeline")).to_have_attribute("data-loads", re.compile("^[12]$"))


def test_the_same_stands_there_in_words_and_as_a_table(timeline):
    timeline.get_by_text("The same in words and as a table").click()
    expect(timeline.locator("#timeline-words")).to_contain_text("8 ranks, steps 118 to 120")
    row = timeline.locator(".t tbody tr").filter(has_text="culprit")
    expect(row).to_contain_text("forward")
    expect(row.locator("a").first).to_have_attribute("href", "rank?job=gpt&rank=5")


def test_dark_colours_are_drawn_too(browser, site):
    context = browser.new_context(viewport={"width": 1400, "height": 900}, color_scheme="dark")
    page = context.new_page()
    page.goto(f"{site}/timeline?job=gpt")
    drawn(page)
    assert min(pixels(page, COMPUTE), pixels(page, CULPRIT)) > 50
    context.close()
