"""The timeline's canvas in a real browser: what it draws, how it moves, and what it tells the page."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from pulsetrain.analytics.slowness.clocks import Clock
from pulsetrain.dashboard.models.attribution import Attribution
from pulsetrain.dashboard.models.charts import DARK, LIGHT
from pulsetrain.dashboard.models.timeline.node_clocks import NodeClocks
from pulsetrain.dashboard.models.timeline.payload import fitting
from tests.browser.canvas_page import feed, open_canvas, pixels, told
from tests.dashboard.models.timeline.rows import MS, collective, row, spans, transfer

pytestmark = [pytest.mark.browser, pytest.mark.integration]

COMPUTE, COMMUNICATION, CULPRIT = "#3b7db8", "#e1a034", "#d55e00"
HOUR_NS = 3_600_000 * MS
HELD = Attribution(ranks={1: "culprit"}, victims=frozenset({0}))
CLOCKS = NodeClocks(
    clocks={
        "n0": Clock(at_ns=0.0, offset_ns=0.0, drift=0.0, error_ns=0.0),
        "n1": Clock(at_ns=0.0, offset_ns=0.0, drift=0.0, error_ns=1.5e6),
    }
)


def step(number, start, **values):
    """A step of two ranks on two nodes: forward, a transfer, and a collective that rank 1 joins late."""
    return [
        row(start, 40 * MS, 0, step=number, blocked_ns=10 * MS),
        transfer("send", 0, 1, start + 40 * MS, 5 * MS, step=number, seq=number),
        collective(start + 45 * MS, 45 * MS, 0, step=number, seq=number, bytes=1 << 20, blocked_ns=45 * MS),
        transfer("recv", 1, 0, start, 46 * MS, step=number, seq=number, node="n1"),
        row(start + 46 * MS, 34 * MS, 1, step=number, node="n1"),
        collective(start + 80 * MS, 10 * MS, 1, step=number, seq=number, bytes=1 << 20, node="n1"),
    ]


def data(*rows, blame=HELD, theme=LIGHT):
    return fitting(spans(*rows), CLOCKS, blame, theme)[1]


QUIET = (*step(7, 0), *step(8, 100 * MS))
HUNG = (*QUIET, row(200 * MS, 3 * HOUR_NS, 1, step=9, node="n1", open=True))


def span_of(page, text="0"):
    """From and to of the shown time, in ms after step 7 began."""
    view = page.locator(".timeline").get_attribute("data-view")
    _, begins, ends = view.split(":")
    return float(begins), float(ends)


def at(page, share, lane):
    """A point of the plot: a share of its time, and a lane. Those of rank 1, the culprit, are on top."""
    box = page.locator(".plot").bounding_box()
    lane = (lane + 2) % 4
    return box["x"] + 190 + share * (box["width"] - 190), box["y"] + (lane + 0.75) * box["height"] / 4


@pytest.fixture
def canvas(page):
    """The component with two quiet steps, on a page that fails where the browser logs an error."""
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: message.type == "error" and problems.append(message.text))
    open_canvas(page)
    feed(page, data(*QUIET))
    yield page
    assert problems == []


def test_spans_lanes_and_the_culprit_are_drawn(canvas):
    assert pixels(canvas, COMPUTE) > 2000
    assert pixels(canvas, COMMUNICATION) > 2000
    assert pixels(canvas, CULPRIT) > 50
    lanes = canvas.locator(".lanes button")
    assert lanes.all_text_contents() == [
        "◆ rank 1 · host ± 1.50 ms", "communication", "◷ rank 0 · host", "communication",
    ]  # fmt: skip
    expect(lanes.nth(0)).to_have_attribute("aria-label", "rank 1, host, culprit, 2 spans")
    expect(canvas.locator(".plot")).to_have_attribute(
        "aria-label", re.compile("2 ranks, steps 7 to 8, 12 spans")
    )


def test_dark_is_as_readable(page):
    open_canvas(page, paper=DARK.paper)
    feed(page, data(*QUIET, theme=DARK))
    assert min(pixels(page, COMPUTE), pixels(page, COMMUNICATION)) > 2000


def test_the_wheel_zooms_where_the_pointer_is(canvas):
    x, y = at(canvas, 0.5, 0)
    canvas.mouse.move(x, y)
    canvas.mouse.wheel(0, -300)
    expect(canvas.locator(".timeline")).to_have_attribute("data-view", re.compile("^7:"))
    begins, ends = span_of(canvas)
    assert ends - begins == pytest.approx(191.9 / 2.718, rel=0.01)  # 190 ms of spans, and a hundredth more
    assert (begins + ends) / 2 == pytest.approx(191.9 / 2, rel=0.01)
    canvas.mouse.wheel(0, 3000)
    canvas.wait_for_function(
        "document.getElementById('host').shadowRoot.querySelector('.timeline').dataset.view.includes(':0.0000:')"
    )
    assert span_of(canvas) == pytest.approx((0, 191.9))


def test_keys_zoom_move_and_go_home(canvas):
    canvas.locator(".plot").focus()
    for _ in range(3):
        canvas.keyboard.press("+")
    whole = 191.9
    begins, ends = wait_for_width(canvas, whole * 0.7**3)
    canvas.keyboard.press("ArrowRight")
    canvas.wait_for_timeout(100)
    moved, _ = span_of(canvas)
    assert moved - begins == pytest.approx(0.2 * (ends - begins), rel=0.01)
    canvas.keyboard.press("-")
    wait_for_width(canvas, whole * 0.7**2)
    canvas.keyboard.press("Home")
    expect(canvas.locator(".timeline")).to_have_attribute("data-view", "")


def wait_for_width(page, expected):
    """From and to, once so many ms are shown."""
    for _ in range(50):
        page.wait_for_timeout(20)
        if page.locator(".timeline").get_attribute("data-view"):
            begins, ends = span_of(page)
            if ends - begins == pytest.approx(expected, rel=0.01):
                return begins, ends
    raise AssertionError(page.locator(".timeline").get_attribute("data-view"))


def test_dragging_moves_and_chooses_nothing(canvas):
    canvas.locator("button[data-do=in]").click()
    begins, ends = wait_for_width(canvas, 191.9 * 0.7)
    x, y = at(canvas, 0.5, 0)
    canvas.mouse.move(x, y)
    canvas.mouse.down()
    canvas.mouse.move(x - 100, y, steps=4)
    canvas.mouse.up()
    canvas.wait_for_timeout(100)
    width = canvas.locator(".plot").bounding_box()["width"] - 190
    assert span_of(canvas)[0] - begins == pytest.approx(100 / width * (ends - begins), rel=0.05)
    assert not [name for name, _ in told(canvas) if name == "rank"]


def test_the_part_that_is_shown_is_told_once_and_restored_from_the_address(canvas):
    canvas.locator(".plot").focus()
    for key in ("+", "+", "+", "ArrowRight"):
        canvas.keyboard.press(key)
    canvas.wait_for_function("window.told.length > 0")
    canvas.wait_for_timeout(500)
    ((name, view),) = told(canvas)
    assert (name, view) == ("view", canvas.locator(".timeline").get_attribute("data-view"))
    open_canvas(canvas, query=f"?view={view}&rank=1")
    feed(canvas, data(*QUIET))
    expect(canvas.locator(".timeline")).to_have_attribute("data-view", view)
    expect(canvas.locator(".open")).to_have_text("Open rank 1")


@pytest.mark.parametrize("view", ["nonsense", "99:0:10", "7:10:5", "7:900:901", "::", "7"])
def test_an_address_that_names_nothing_shows_the_whole(page, view):
    open_canvas(page, query=f"?view={view}&rank=x")
    feed(page, data(*QUIET))
    expect(page.locator(".timeline")).to_have_attribute("data-view", "")


def test_a_tooltip_has_phase_step_duration_and_where_the_time_went(canvas):
    tip = canvas.locator(".tip")
    canvas.mouse.move(*at(canvas, 0.1, 0))
    expect(tip).to_contain_text("forward 40.0 ms")
    expect(tip).to_contain_text("rank 0 on n0, step 7, attempt 1")
    expect(tip).to_contain_text("own 30.0 ms, stood still 10.0 ms")
    canvas.mouse.move(*at(canvas, 0.45, 3))
    expect(tip).to_contain_text("all_reduce 10.0 ms")
    expect(tip).to_contain_text("group dp, seq 7, 1.00 MiB")
    expect(tip).to_contain_text("clock ± 1.50 ms")
    canvas.mouse.move(*at(canvas, 0.1, 3))
    expect(tip).to_contain_text("group pp, seq 7, with rank 0")
    canvas.mouse.move(5, 850)
    expect(tip).to_be_hidden()


def test_a_click_chooses_the_rank_and_a_second_one_opens_it(canvas):
    x, y = at(canvas, 0.45, 3)
    canvas.mouse.click(x, y)
    assert told(canvas) == [["rank", "1"]]
    words = canvas.locator(".chosen")
    expect(words).to_contain_text("2 members shown, rank 1 came last, 35.0 ms ± 1.50 ms after rank 0")
    canvas.mouse.click(x, y)
    assert told(canvas)[-1] == ["open", 1]
    canvas.locator(".open").click()
    assert told(canvas)[-1] == ["open", 1]
    canvas.mouse.click(*at(canvas, 0.97, 0))
    assert told(canvas)[-1] == ["rank", ""]
    expect(canvas.locator(".open")).to_be_hidden()


def test_a_chosen_collective_points_at_its_members(canvas):
    before = pixels(canvas, LIGHT.text)
    canvas.mouse.click(*at(canvas, 0.45, 3))
    canvas.wait_for_timeout(100)
    assert pixels(canvas, LIGHT.text) > before + 150


def test_lanes_are_one_stop_of_tab_with_arrows_between_them(canvas):
    canvas.locator(".plot").focus()
    canvas.keyboard.press("Tab")
    focused = canvas.locator(".lanes button:focus")
    expect(focused).to_have_attribute("aria-label", re.compile("^rank 1, host"))
    assert focused.evaluate("e => getComputedStyle(e).outlineStyle") == "solid"
    canvas.keyboard.press("ArrowDown")
    canvas.keyboard.press("ArrowDown")
    expect(focused).to_have_attribute("aria-label", re.compile("^rank 0, host"))
    canvas.keyboard.press("ArrowUp")
    canvas.keyboard.press("ArrowUp")
    expect(focused).to_have_attribute("aria-label", re.compile("^rank 1, host"))
    expect(canvas.locator(".tip")).to_contain_text("forward 34.0 ms")
    canvas.keyboard.press("ArrowRight")
    expect(canvas.locator(".chosen")).to_contain_text("step 8")
    canvas.keyboard.press("Enter")
    assert told(canvas) == [["rank", "1"]]
    canvas.keyboard.press("Enter")
    assert told(canvas)[-1] == ["open", 1]
    canvas.keyboard.press("Tab")
    expect(canvas.locator(".open")).to_be_focused()


def test_the_view_follows_the_keyboard_to_a_span_outside_of_it(canvas):
    canvas.locator(".plot").focus()
    for _ in range(6):
        canvas.keyboard.press("+")
    canvas.keyboard.press("Tab")
    for _ in range(3):
        canvas.keyboard.press("ArrowLeft")
    canvas.wait_for_timeout(100)
    begins, ends = span_of(canvas)
    assert begins < 63 < ends


def test_the_same_bytes_are_drawn_once(canvas):
    for _ in range(3):
        feed(canvas, data(*QUIET))
    expect(canvas.locator(".timeline")).to_have_attribute("data-loads", "1")
    feed(canvas, data(*QUIET, row(300 * MS, MS, 0, step=9)))
    expect(canvas.locator(".timeline")).to_have_attribute("data-loads", "2")


def test_new_spans_do_not_move_what_a_person_looks_at(canvas):
    canvas.locator(".plot").focus()
    canvas.keyboard.press("+")
    wait_for_width(canvas, 191.9 * 0.7)
    seen = span_of(canvas)
    # a span before all others shifts the origin of the canvas
    feed(canvas, data(*QUIET, row(-50 * MS, 10 * MS, 0, step=6)))
    assert span_of(canvas) == pytest.approx(seen)


def test_a_hang_of_hours_leaves_the_room_to_the_last_step(page):
    open_canvas(page)
    feed(page, data(*HUNG))
    assert pixels(page, CULPRIT) > 100
    page.mouse.move(*at(page, 0.97, 2))
    expect(page.locator(".tip")).to_contain_text("forward not ended, for at least 3 h 00 min")
    page.locator("button[data-do=in]").click()
    begins, ends = wait_for_width(page, (100 * 1.25) * 0.7)
    assert 0 < begins < ends < 200  # of step 8, the last that ended


@pytest.mark.parametrize(
    ("bad", "why"), [(b"", "no data came"), (b"x" * 30, ""), (data(*QUIET)[:-9], "is cut off")]
)
def test_what_cannot_be_read_is_said_and_over_with_the_next_data(page, bad, why):
    open_canvas(page)
    feed(page, bad)
    problem = page.get_by_role("alert")
    expect(problem).to_contain_text("The timeline cannot be drawn:")
    expect(problem).to_contain_text(why)
    expect(page.locator(".plot")).to_be_hidden()
    feed(page, data(*QUIET))
    expect(problem).to_be_hidden()
    expect(page.locator(".plot")).to_be_visible()
    assert pixels(page, COMPUTE) > 2000
