"""One event is one line on standard error: JSON for programs, readable for a terminal."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys

import pytest
import structlog

from pulsetrain.core.log import configure


@pytest.fixture(autouse=True)
def _restored():
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def logged(capfd):
    return capfd.readouterr().err.splitlines()


def test_where_nobody_watches_each_event_is_one_json_object(capfd):
    configure()
    structlog.get_logger().warning("rows_lost", rows=3, text="two\nlines")
    (line,) = map(json.loads, logged(capfd))
    assert {"event": "rows_lost", "level": "warning", "rows": 3, "text": "two\nlines"}.items() <= line.items()
    assert line["timestamp"].endswith("Z")


def test_a_line_that_nobody_can_take_is_lost_and_nothing_else(monkeypatch):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w", buffering=1) as broken:
        monkeypatch.setattr(sys, "stderr", broken)
        configure()
        structlog.get_logger().error("nobody reads this")
        monkeypatch.undo()
        with contextlib.suppress(BrokenPipeError):
            broken.close()


def test_events_below_the_level_are_not_written(capfd):
    configure(level="warning")
    log = structlog.get_logger()
    log.debug("quiet")
    log.info("quiet")
    log.error("loud")
    assert [json.loads(line)["event"] for line in logged(capfd)] == ["loud"]


def test_an_exception_stays_within_its_line_of_json(capfd):
    configure(as_json=True)
    try:
        int("broken")
    except ValueError:
        structlog.get_logger().exception("failed")
    (line,) = logged(capfd)
    assert "invalid literal for int" in json.loads(line)["exception"]


def test_a_terminal_gets_text_with_the_traceback_below_it(capfd):
    configure(as_json=False)
    try:
        int("broken")
    except ValueError:
        structlog.get_logger().exception("failed", step=7)
    text = "\n".join(logged(capfd))
    assert "failed" in text
    assert "ValueError" in text
    with pytest.raises(ValueError, match="Expecting value"):
        json.loads(text)


def test_a_line_goes_to_standard_error_as_it_is_then(monkeypatch):
    configure(as_json=True)
    later = io.StringIO()
    monkeypatch.setattr(sys, "stderr", later)
    structlog.get_logger().warning("rows_lost")
    assert json.loads(later.getvalue())["event"] == "rows_lost"
