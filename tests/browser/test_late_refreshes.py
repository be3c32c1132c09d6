"""A part of a page that refreshes itself, and asks for it when the browser shows another page already."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect
from streamlit.proto.BackMsg_pb2 import BackMsg

pytestmark = [pytest.mark.browser, pytest.mark.integration]


class Wire:
    """Stands between a browser and the dashboard. It sends refreshes of the first page once more, late."""

    def __init__(self, page):
        self.refreshes = {}
        self.page_hash = None
        page.route_web_socket("**/_stcore/stream", self._connect)

    def _connect(self, browser):
        self.server = browser.connect_to_server()
        browser.on_message(self._pass)

    def _pass(self, message):
        self.server.send(message)
        if not isinstance(message, bytes):
            return
        asked = BackMsg.FromString(message).rerun_script
        if asked.fragment_id:
            self.page_hash = self.page_hash or asked.page_script_hash
            if asked.page_script_hash == self.page_hash:
                self.refreshes[asked.fragment_id] = message
        elif asked.page_script_hash != self.page_hash:
            for refresh in self.refreshes.values():
                self.server.send(refresh)


@pytest.mark.parametrize(("path", "link"), [("stacks", "Nodes"), ("logs", "Stacks")])
def test_a_refresh_of_the_page_that_was_left_does_not_touch_the_new_one(page, site, path, link):
    there = ".t, .empty"
    wire, errors = Wire(page), []
    page.on("console", lambda message: message.type == "error" and errors.append(message.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"{site}/{path}?job=gpt")
    page.locator(there).first.wait_for()
    while len(wire.refreshes) < 2:
        page.wait_for_timeout(200)
    page.get_by_role("link", name=link).first.click()
    expect(page).to_have_url(re.compile(f"/{link.lower()}"))
    expect(page.locator(there).first).to_be_visible()
    for _ in range(20):
        page.wait_for_timeout(200)
        expect(page.locator(there).first).to_be_visible(timeout=1_000)
    assert errors == []
