"""Each page of the dashboard in a real browser, over a real store and a hub's API."""

from __future__ import annotations

import contextlib
import json
import random
import re

import httpx
import psutil
import pytest
from playwright.sync_api import TimeoutError as NotInTime
from playwright.sync_api import expect

from tests.dashboard.hub_process import dashboard, fake_hub

CHART = "[data-testid=stEChartsChart]"
pytestmark = [pytest.mark.browser, pytest.mark.integration]


def test_overview_reads_the_verdict(page, site):
    page.goto(site)
    expect(page.locator("#verdict")).to_have_text("Rank 5 is stopped in forward; 7 others wait for it.")
    expect(page.locator(".verdict .pill")).to_contain_text("hung")
    expect(page.locator("table")).to_contain_text("straggler")
    expect(page.locator(CHART)).to_contain_text("restart")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("heatmap", "on node-2 loses most: backward"),
        ("rank?rank=5", "Beside its cohort"),
        ("node?node=node-2", "Its ranks beside their cohort"),
        ("logs", "No line matches."),
        ("metrics", "No data: no counter"),
        ("events", "recovery"),
        ("timeline", "Ranks 0-7"),
        ("topology", "1 culprit, 1 slow, 6 waits"),
        ("alerts", "straggler"),
        ("nodes", "connection closed"),
        ("recovery", "1 recovery, 3.80 s on average"),
        ("checkpoints", "replicate (peer)"),
        ("checkpoints", "what a failure now would cost"),
        ("pipeline", "span_rollup"),
        ("pipeline", "blind"),
    ],
)
def test_page_shows_its_data_and_the_verdict(page, site, path, text):
    page.goto(f"{site}/{path}")
    expect(page.locator("body")).to_contain_text(text)
    expect(page.locator(".strip")).to_contain_text("Rank 5 is stopped")
    expect(page).to_have_url(re.compile("job=gpt"))
    expect(page.locator('[data-testid="stException"]')).to_have_count(0)


def test_no_page_asks_another_host(page, site):
    hosts = set()
    page.on("request", lambda request: hosts.add(re.sub(r"^\w+://([^/:]+).*", r"\1", request.url)))
    for path, chart in (("", CHART), ("heatmap", CHART), ("topology", ".js-plotly-plot")):
        page.goto(f"{site}/{path}")
        page.locator(chart).first.wait_for()
    assert {host for host in hosts if not host.startswith(("data:", "blob:"))} == {"127.0.0.1"}


def test_a_click_in_the_heatmap_opens_that_ranks_timeline(page, site):
    page.goto(f"{site}/heatmap?job=gpt&by=rank&phase=forward&range=100:119")
    name = page.locator(f"{CHART} text", has_text=re.compile("^rank 5$"))
    name.wait_for()
    row, chart = name.bounding_box(), page.locator(f"{CHART} svg").bounding_box()
    there = re.compile("/timeline.*ranks=5&steps=119%3A121")
    for _ in range(4):  # a busy machine has them bound later
        page.mouse.click(chart["x"] + 0.97 * chart["width"], row["y"] + row["height"] / 2)
        with contextlib.suppress(AssertionError):
            expect(page).to_have_url(there, timeout=15_000)
            break
    expect(page).to_have_url(there)
    expect(page.get_by_role("textbox", name="Ranks")).to_have_value("5")
    expect(page.locator(".lanes")).to_contain_text("rank 5")


def test_a_copied_address_shows_the_same_view(page, site):
    page.goto(f"{site}/topology?job=gpt")
    page.get_by_text("table", exact=True).click()
    page.get_by_label("Find").fill("node-3")
    page.get_by_label("Find").press("Enter")
    expect(page).to_have_url(re.compile("find=node-3"))
    expect(page).to_have_url(re.compile("show=table"))
    expect(page.locator("table tbody tr")).to_have_count(2)
    other = page.context.new_page()
    other.goto(page.url)
    expect(other.get_by_label("Find")).to_have_value("node-3")
    expect(other.locator("table tbody tr")).to_have_count(2)


def test_pages_keep_the_job_when_the_operator_moves_on(page, site):
    page.goto(f"{site}/?job=gpt")
    page.locator("#verdict").wait_for()
    page.get_by_role("link", name="Recovery").first.click()
    expect(page).to_have_url(re.compile("/recovery.*job=gpt"))


def test_bad_input_is_one_sentence(page, site):
    page.goto(f"{site}/timeline?job=gpt&ranks=seven")
    expect(page.get_by_role("alert")).to_contain_text("'seven' is not a rank or a range such as 0-3")


def test_download_is_a_trace(page, site):
    page.goto(f"{site}/timeline?job=gpt&ranks=4-5&steps=100:101")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download for ui.perfetto.dev").click()
    trace = json.loads(download.value.path().read_text())
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert {span["pid"] for span in spans} == {4, 5}
    assert {span["args"]["step"] for span in spans} == {100, 101}


def test_silencing_by_clicking_mutes_until_it_is_ended(page, site, hub):
    page.goto(f"{site}/alerts?job=gpt")
    silence = page.get_by_role("button", name="Silence", exact=True)
    expect(silence).to_have_count(2)
    silence.first.click()
    expect(silence).to_have_count(1)
    expect(page.locator("body")).to_contain_text("1 h 59 min left")
    assert [s["matchers"] for s in asked(hub, "silences")] == [{"kind": "hang", "subject": "rank 5"}]
    page.get_by_role("button", name="End", exact=True).click()
    expect(page.locator("body")).to_contain_text("None is in force")
    expect(silence).to_have_count(2)


def test_acknowledging_takes_the_alert_off_the_list(page, site, hub):
    page.goto(f"{site}/alerts?job=gpt")
    buttons = page.get_by_role("button", name="Acknowledge")
    expect(buttons).to_have_count(2)
    buttons.nth(1).click()
    expect(buttons).to_have_count(1)
    assert [a["kind"] for a in asked(hub, "alerts") if a["acknowledged_by"]] == ["straggler"]


def test_an_incident_is_a_story_and_blind_detectors_are_said(page, site):
    page.goto(f"{site}/incidents?job=gpt")
    story = page.locator(".incident").first
    expect(story).to_contain_text("rank 5: Rank 5 is stopped in forward")
    expect(story).to_contain_text("What to do:")
    expect(story).to_contain_text("rank 7")
    expect(page.locator("body")).to_contain_text("something else")
    expect(page.locator("#blind")).to_contain_text("network: no sample of an RDMA port")


def test_stacks_are_read_by_a_click(page, site):
    page.goto(f"{site}/stacks?job=gpt")
    expect(page.locator(".empty")).to_contain_text("No stacks were read")
    page.get_by_role("button", name="Read the stacks now").click()
    expect(page.locator("#stacks")).to_contain_text("Stacks differ: rank 5 in")
    expect(page.locator("table tbody tr")).to_have_count(5)
    expect(page.locator(".stale")).to_contain_text("ranks 7: its process is gone")


def test_evicting_a_node_by_clicking(page, site, hub):
    page.goto(f"{site}/nodes?job=gpt")
    page.get_by_label("Node", exact=False).last.click()
    page.get_by_role("option", name="node-3").click()
    page.get_by_role("button", name="Show the cost").click()
    expect(page.locator("body")).to_contain_text("Its place goes to node-5.")
    expect(page.locator("body")).to_contain_text("resumes from step 119; 1 step is done again")
    assert state_of(hub, "node-3") == "active"
    page.get_by_label("Reason").fill("throttled twice today")
    page.get_by_label("Reason").press("Enter")
    page.get_by_role("button", name="Evict node-3").click()
    expect(page.locator("body")).to_contain_text("node-3 was evicted: throttled twice today")
    row = page.locator("table tbody tr", has_text="node-3")
    expect(row).to_contain_text("evicted")
    expect(row).not_to_contain_text("6-7")
    assert state_of(hub, "node-3") == "evicted"


def test_a_pending_hang_is_decided_after_its_cost_and_a_reason(page, tmp_path):
    with fake_hub(tmp_path / "store", "pending") as hub, dashboard(hub) as site:
        page.goto(f"{site}/?job=gpt")
        expect(page.locator("#controller")).to_contain_text("The job may only pause.")
        page.get_by_role("button", name="Wait", exact=True).click()
        expect(page.locator("body")).to_contain_text("Nothing restarts the job for a hang for 10 minutes")
        page.get_by_role("button", name="Leave gpt alone").click()
        expect(page.get_by_role("status").filter(has_text="Give a reason first")).to_be_visible()
        assert asked(hub, "decisions") == []
        page.get_by_label("Reason").fill("I look at it in a debugger")
        page.get_by_label("Reason").press("Enter")
        page.get_by_role("button", name="Leave gpt alone").click()
        expect(page.locator("body")).to_contain_text("gpt is left alone for 10 minutes: I look at it")
        (decision,) = asked(hub, "decisions")
        assert (decision["decision"], decision["seconds"]) == ("wait", 600.0)
        expect(page.get_by_role("button", name="Restart now")).to_have_count(0)


def state_of(hub, name):
    return next(n["state"] for n in asked(hub, "nodes") if n["node"] == name)


def asked(hub, what):
    answer = httpx.get(f"{hub.url}/v1/{what}", headers={"Authorization": f"Bearer {hub.token}"}, timeout=60)
    return answer.json()[what]


def test_without_data_nothing_is_called_healthy(page, tmp_path):
    with fake_hub(tmp_path / "store", "empty") as hub, dashboard(hub) as site:
        for path in ("", "heatmap", "timeline", "topology", "nodes", "checkpoints"):
            page.goto(f"{site}/{path}")
            expect(page.locator(".empty").first).to_contain_text("No data")
            expect(page.locator("body")).not_to_contain_text("healthy")


def test_a_hub_that_goes_away_is_said_and_its_verdict_expires(page, tmp_path):
    with fake_hub(tmp_path / "store") as hub, dashboard(hub) as site:
        page.goto(site)
        expect(page.locator(".verdict .pill")).to_contain_text("hung")
        # leave the hub's block early: its process is killed here, the dashboard goes on
        hub_process_gone(hub)
        expect(page.locator(".stale")).to_contain_text("does not answer")
        expect(page.locator(".verdict .pill")).to_contain_text("no data", timeout=90_000)


def test_a_hub_that_freezes_is_said_on_an_open_and_on_a_fresh_page(page, tmp_path):
    with fake_hub(tmp_path / "store") as hub, dashboard(hub) as site:
        page.goto(f"{site}/recovery")
        expect(page.locator(".strip")).to_contain_text("Rank 5 is stopped")
        process = hub_process(hub)
        process.suspend()
        try:
            expect(page.locator("#away")).to_contain_text("The page shows what was known", timeout=30_000)
            fresh = page.context.new_page()
            fresh.goto(f"{site}/incidents")
            expect(fresh.locator("#away")).to_be_visible(timeout=30_000)
            expect(fresh.locator(".strip")).to_contain_text("no data", timeout=30_000)
        finally:
            process.resume()
        expect(page.locator("#away")).to_have_count(0, timeout=30_000)


def follow_any(page, walk):
    """Click a link of the page. One that is drawn anew at that moment is left for another."""
    for _ in range(10):
        links = page.locator('[data-testid="stTopNavLink"], .t a, #links a').all()
        with contextlib.suppress(NotInTime):
            walk.choice([link for link in links if link.is_visible()]).click(timeout=5_000)
            return
    raise AssertionError(f"no link of {page.url} can be followed")


def test_a_random_walk_meets_no_white_page_and_keeps_the_style(page, site):
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"{site}/?job=gpt")
    page.locator("#verdict").wait_for()
    walk = random.Random(7)
    for _ in range(25):
        follow_any(page, walk)
        expect(page.locator("#verdict, .strip").first).to_be_visible()
        expect(page.locator('[data-testid="stException"]')).to_have_count(0)
        expect(page.locator(".stApp")).to_have_css("font-variant-numeric", "tabular-nums")
        expect(page).to_have_url(re.compile("job=gpt"))
    assert errors == []


def test_a_refused_click_says_so_and_keeps_the_style(page, tmp_path):
    with fake_hub(tmp_path / "store") as hub, dashboard(hub) as site:
        page.goto(f"{site}/alerts?job=gpt")
        page.get_by_role("button", name="Acknowledge").first.wait_for()
        hub_process_gone(hub)
        page.get_by_role("button", name="Acknowledge").first.click()
        expect(page.get_by_role("status").filter(has_text="Not acknowledged")).to_be_visible()
        expect(page.locator(".stApp")).to_have_css("font-variant-numeric", "tabular-nums")


def hub_process(hub):
    port = int(hub.url.rsplit(":", 1)[1])
    (pid,) = {
        c.pid
        for c in psutil.net_connections("tcp")
        if c.laddr.port == port and c.status == psutil.CONN_LISTEN
    }
    return psutil.Process(pid)


def hub_process_gone(hub):
    hub_process(hub).kill()
