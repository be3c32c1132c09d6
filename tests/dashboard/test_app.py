"""The dashboard's entry: its navigation, and what it says without a hub."""

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

import pulsetrain.dashboard
from pulsetrain.core.errors import Unavailable, UsageError
from pulsetrain.dashboard import page
from tests.dashboard.conftest import DrawnPage

APP = Path(pulsetrain.dashboard.__file__).with_name("app.py")


@pytest.fixture
def start(source):
    def run():
        app = AppTest.from_file(str(APP), default_timeout=30)
        app.run()
        assert not app.exception
        return DrawnPage(app)

    return run


def test_it_opens_on_the_overview(start):
    assert "Rank 5 is <b>stopped</b>." in start().text


def test_a_hub_that_cannot_count_alerts_does_not_stop_the_page(start, source, monkeypatch):
    def alerts():
        raise Unavailable("hub does not answer")

    monkeypatch.setattr(source, "alerts", alerts)
    assert "Rank 5" in start().text


def test_without_a_hub_it_says_how_to_name_one(start, monkeypatch):
    def none():
        raise UsageError("no hub: set PULSETRAIN_HUB")

    monkeypatch.setattr(page, "_connect", none)
    assert "no hub: set PULSETRAIN_HUB." in start().text
