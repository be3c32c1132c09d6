"""The dashboard on a living fleet in a headless browser: how long pages take, whether culprits are seen.

    python benchmarks/dashboard.py [--ranks 12288] [--runs 5] [--pages overview,heatmap] [--walks 200]

`pulsetrain simulate fleet-live` feeds a real hub with a slow rank, a slow node and a flapping link. Each
page is opened `--runs` times in a fresh tab. `cold_s` is the median time until its content stands,
`change_s` the median time after a change of view until something stands that did not stand before, null
for a page whose view cannot be changed, `kib` what came over the WebSocket in the first load,
`blocked_ratio` the share of ten seconds in which tasks of more than 50 ms blocked the browser, `heap_mib`
the JavaScript heap after them. `culprit_visible`: on Overview, heatmap, topology and timeline each of the
three is named in the text and has its mark in the drawing (looked for in a screenshot), nobody else is
named or marked, and the same holds for a rank that stops in a second fleet. `--walks` adds random walks of
clicks with their problems: after each click the page must be whole, and its address must restore the view
in a fresh tab. `--walks-file` keeps them, so that a later run goes on. `--freeze` stops the hub's process
while pages are open and before pages are opened, and says how soon each says so. `plain_page_s` is the same
as `cold_s` for the least page with a chart that Streamlit makes, before the fleet begins, and each page's
`cold_ratio` is beside it: machines differ. `cpu_s` is what hub and dashboard used meanwhile. `fleet` says
how late its heartbeats went out at worst, how many were held back, and how many nodes the hub lost: its
process gives way to hub, dashboard and browser, because its machines are other ones in production.
`problems` are pages that could not be measured, and the exit status is 1 then. It needs Debian's chromium.
The last line is one JSON object (minutes).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from browsing.freezing import freezing
from browsing.live_site import (
    PER_NODE,
    POOL,
    Feed,
    LiveSite,
    Planted,
    faults,
    fleet,
    hang,
    live_site,
    plain_site,
    until,
    write_lines,
)
from browsing.seen import faults_seen
from browsing.visits import PLAIN, StoodBefore, Visit, change_s, visits, wait
from browsing.walks import WalkLog, walks
from playwright.sync_api import Browser, sync_playwright
from playwright.sync_api import Error as PlaywrightError

JOB, HUNG = "fleet", "hung"
WATCHED_S = 10.0
NAMED_S = 400.0
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking")
SWIFT = "--enable-unsafe-swiftshader"
BLOCKED = """
window.blockedMs = 0;
new PerformanceObserver(l => l.getEntries().forEach(e => window.blockedMs += e.duration - 50))
  .observe({entryTypes: ['longtask']});
"""


def url_of(site: str, visit: Visit) -> str:
    """The address of a page."""
    path, _, query = visit.path.partition("?")
    return f"{site}/{path}?job={JOB}" + (f"&{query}" if query else "")


def look(browser: Browser, site: str, visit: Visit, *, watched_s: float) -> dict[str, Any]:
    """Open a page once in a fresh tab. Raises `StoodBefore`."""
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    page, received = context.new_page(), [0]
    page.on("websocket", lambda w: w.on("framereceived", lambda d: received.append(len(d))))
    page.add_init_script(BLOCKED)
    try:
        began_s = time.perf_counter()
        page.goto(url_of(site, visit))
        wait(page, visit.ready)
        cold_s, kib = time.perf_counter() - began_s, sum(received) / 1024
        page.evaluate("window.blockedMs = 0")
        page.wait_for_timeout(watched_s * 1e3)
        blocked = page.evaluate("window.blockedMs") / 1e3 / watched_s
        heap = page.evaluate("performance.memory ? performance.memory.usedJSHeapSize : 0") / 2**20
        return {
            "cold_s": cold_s, "change_s": change_s(page, visit), "kib": kib, "blocked_ratio": blocked,
            "heap_mib": heap,
        }  # fmt: skip
    finally:
        context.close()


def measure(browser: Browser, site: str, visit: Visit, runs: int, watched_s: float) -> dict[str, Any]:
    """One page: medians over the runs. The browser is watched in the first one. Raises `StoodBefore`."""
    before_s = cpu_s()
    found = [look(browser, site, visit, watched_s=watched_s if run == 0 else 1.0) for run in range(runs)]
    names = ("cold_s", "change_s") if visit.change is not None else ("cold_s",)
    times = {"change_s": None} | {n: round(statistics.median(f[n] for f in found), 2) for n in names}
    first = {name: round(found[0][name], 3) for name in ("kib", "blocked_ratio", "heap_mib")}
    used = {name: round(cpu_s()[name] - before_s[name], 2) for name in before_s}
    return {"name": visit.name, **times, **first, "cpu_s": used}


def plain_page_s(browser: Browser, runs: int) -> float:
    """The median time until the least page stands."""
    with plain_site() as site:
        found = [look(browser, site, PLAIN, watched_s=0.1)["cold_s"] for _ in range(runs)]
    return round(statistics.median(found), 2)


def add_page(
    report: dict[str, Any], browser: Browser, site: str, visit: Visit, runs: int, watched_s: float
) -> None:
    """Measure a page into the report. What could not be measured is a problem there."""
    try:
        found = measure(browser, site, visit, runs, watched_s)
        report["pages"].append({**found, "cold_ratio": round(found["cold_s"] / report["plain_page_s"], 2)})
    except (StoodBefore, PlaywrightError) as error:
        report["problems"].append(f"{visit.name}: {str(error).splitlines()[0]}")
        print(report["problems"][-1], file=sys.stderr, flush=True)
    else:
        print(report["pages"][-1], file=sys.stderr, flush=True)


def fleet_state(site: LiveSite, feed: Feed) -> dict[str, Any]:
    """How heartbeats came while pages were loaded, and how many nodes the hub does not count as active."""
    nodes = [node for node in site.client.nodes() if node["job"] == JOB]
    away = [node["node"] for node in nodes if node["state"] not in ("active", "standby")]
    return {**feed.heartbeats(), "nodes_away": len(away)}


def cpu_s() -> dict[str, float]:
    """Processor seconds of hub and dashboard since they began."""
    used: dict[str, float] = {}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            words, times = " ".join(process.cmdline()), process.cpu_times()
            name = (
                "dashboard" if "dashboard" in words else "hub" if "hub" in words or "serve" in words else ""
            )
            if name:
                used[name] = used.get(name, 0.0) + times.user + times.system
    return used


def seen(browser: Browser, site: LiveSite, job: str, planted: tuple[Planted, ...]) -> bool:
    """Whether everybody planted is seen on every page, and nobody else, once the hub names them."""
    wanted = {each.name for each in planted}
    try:
        until(lambda: wanted <= site.named(job), NAMED_S)
    except TimeoutError:
        missing = sorted(wanted - site.named(job))
        print(f"{job}: the hub does not name {missing} within {NAMED_S:g} s", file=sys.stderr, flush=True)
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    try:
        wrong = faults_seen(page, site.dashboard, job, planted)
    finally:
        page.close()
    for name, problems in wrong.items():
        for problem in problems:
            print(f"{job}, {name}: {problem}", file=sys.stderr, flush=True)
    return not any(wrong.values())


def walked(browser: Browser, site: str, options: argparse.Namespace) -> dict[str, Any]:
    """Random walks, without those that the file has already."""
    log = WalkLog(options.walks_file)
    seeds = log.missing(range(options.first_walk, options.first_walk + options.walks))
    for made in walks(browser, site, JOB, seeds, options.clicks):
        log.add(made)
        for problem in made.problems:
            print(f"walk {made.seed}: {problem}", file=sys.stderr, flush=True)
    return log.report()


def hang_seen(nodes: int, step_s: float) -> bool:
    """Whether a rank that stops is seen, by a hub of its own, which does not know the other faults."""
    with (
        tempfile.TemporaryDirectory(prefix="pulsetrain-bench-") as data,
        live_site(Path(data)) as site,
        chromium() as browser,
        fleet(site, HUNG, nodes, (hang(nodes),), step_s=step_s),
    ):
        site.client.decide_hang(HUNG, "wait", "the pages are looked at", seconds=3600.0)
        return seen(browser, site, HUNG, (hang(nodes),))


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's Chromium, without a profile."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=[*FLAGS, SWIFT])
        yield browser
        browser.close()


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started ends in order
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=12_288)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--step-s", type=float, default=4.0, help="length of a step of the fleet")
    parser.add_argument("--data", type=Path, help="folder of the hub's data, kept")
    parser.add_argument("--pages", help="only these pages, with commas between. '' for none")
    parser.add_argument("--walks", type=int, default=0, help="random walks of clicks")
    parser.add_argument("--clicks", type=int, default=5, help="clicks of each walk")
    parser.add_argument("--first-walk", type=int, default=0, help="seed of the first walk")
    parser.add_argument("--walks-file", type=Path, help="keeps the walks. Those in it are not made again")
    parser.add_argument("--freeze", action="store_true", help="stop the hub and see which pages say so")
    parser.add_argument("--no-seen", action="store_true", help="do not look for the culprits")
    parser.add_argument("--quick", action="store_true", help="1,024 ranks, one run")
    options = parser.parse_args()
    ranks, runs, step_s = (1024, 1, 1.0) if options.quick else (options.ranks, options.runs, options.step_s)
    nodes, watched_s = ranks // PER_NODE, 2.0 if options.quick else WATCHED_S
    planted = faults(nodes)
    pages_of = visits(planted[0].ranks[0], planted[1].name, nodes)
    wanted = [v.name for v in pages_of] if options.pages is None else options.pages.split(",")
    report: dict[str, Any] = {"ranks": ranks, "pages": [], "culprit_visible": None, "problems": []}
    report["load_before"] = round(os.getloadavg()[0], 1)
    visible = []
    with contextlib.ExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(prefix="pulsetrain-bench-", ignore_cleanup_errors=True)
        data = options.data or Path(stack.enter_context(temporary))
        site, browser = stack.enter_context(live_site(data, POOL)), stack.enter_context(chromium())
        report["plain_page_s"] = plain_page_s(browser, runs)
        with fleet(site, JOB, nodes, planted, step_s=step_s) as feed:
            write_lines(site, JOB, nodes)
            if options.no_seen:
                until(lambda: planted[0].name in site.named(JOB), NAMED_S)
            else:
                visible.append(seen(browser, site, JOB, planted))
            for visit in pages_of:
                if visit.name in wanted:
                    add_page(report, browser, site.dashboard, visit, runs, watched_s)
            if options.freeze:
                report["freeze"] = freezing(browser, site.dashboard, JOB, site.pid, pages_of)
            if options.walks:
                report["walks"] = walked(browser, site.dashboard, options)
            report["fleet"] = fleet_state(site, feed)
    if not options.no_seen:
        visible.append(hang_seen(nodes, step_s))
        report["culprit_visible"] = all(visible)
    print(json.dumps({**report, "cores": len(os.sched_getaffinity(0))}))
    if report["problems"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
