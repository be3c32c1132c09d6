"""The dashboard on a large fleet in a headless browser: how long pages take, and whether the culprit is seen.

    python benchmarks/dashboard.py [--ranks 12288] [--steps 24] [--runs 5] [--data FOLDER] [--pages timeline]

A simulated fleet with two faults (a slow rank and a slow node) is written into a store, and a real hub serves
it. Each page is opened `--runs` times in a fresh tab. `cold_s` is the median time until its content stands,
`change_s` the median time after a change of view, `kib` what came over the WebSocket in the first load,
`blocked_ratio` the share of ten seconds in which tasks of more than 50 ms blocked the browser, `heap_mib` the
JavaScript heap after them. The last page is the timeline of a job of 64 ranks that sends a step every 1.2 s.
`culprit_visible`: the slow rank and the slow node are named in the text of Overview and heatmap, and their
rows are pinned on top of the heatmap. `--data` keeps the fleet for another run, `--quick` takes a small one.
It needs Debian's chromium. The last line is one JSON object (minutes).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Browser, Page, sync_playwright

from pulsetrain.protocol.client import HubAddress, HubClient
from pulsetrain.simulate import write
from pulsetrain.simulate.spec import FleetSpec
from pulsetrain.stream.spool.transport import HttpTransport

JOB = "fleet"
RUNNING = "running"
TIMELINE_RANKS = 64
STEP_S = 1.2  # of the running job
WATCHED_S = 10.0
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking")
SWIFT = "--enable-unsafe-swiftshader"
BLOCKED = """
window.blockedMs = 0;
new PerformanceObserver(l => l.getEntries().forEach(e => window.blockedMs += e.duration - 50))
  .observe({entryTypes: ['longtask']});
"""


@dataclass(frozen=True, kw_only=True)
class Visit:
    """A page: its address, what stands there when it is complete, and a change of view."""

    name: str
    path: str
    ready: str
    change: Callable[[Page], None]
    changed: str
    job: str = JOB


def _choose(text: str) -> Callable[[Page], None]:
    return lambda page: page.get_by_text(text, exact=True).first.click()


def _fill(label: str, value: str) -> Callable[[Page], None]:
    def fill(page: Page) -> None:
        box = page.get_by_label(label, exact=True).first
        box.fill(value)
        box.press("Enter")

    return fill


def _nothing(page: Page) -> None:
    """A page without a view to change."""


def visits(rank: int, node: str) -> list[Visit]:
    """The pages that are measured: name, address, what is complete, the change, and what is complete then."""
    chart, cohort, here = ".js-plotly-plot .main-svg", "text=the median of the", f"td:has-text('{node}')"
    time_axis, drawn = ".xtitle:has-text('UTC')", ".timeline[data-view]"
    first = max(0, rank - TIMELINE_RANKS // 2)
    few_ranks = (_fill("Ranks", "0-3"), "text=Ranks 0-3")
    rows = [
        ("overview", "", f"#verdict && {chart}", _choose("time"), time_axis),
        ("heatmap", "heatmap", f"#worst && {chart}", _choose("stage"), "text=stage 3"),
        ("topology", "topology?show=table", ".t", _fill("Find", node), here),
        ("timeline", f"timeline?ranks={first}-{first + TIMELINE_RANKS - 1}", drawn, *few_ranks),
        ("incidents", "incidents", ".incident", _nothing, ".incident"),
        ("nodes", "nodes", ".t", _fill("Find", node), here),
        ("rank", f"rank?rank={rank}", f"{cohort} && {chart}", _fill("Rank", "0"), "text=Rank 0 works"),
        ("node", f"node?node={node}", f"{cohort} && {chart}", _nothing, cohort),
        ("events", "events?last=30+days", ".t", _fill("Kind", "judged"), ".t"),
    ]
    return [
        Visit(name=name, path=path, ready=ready, change=change, changed=changed)
        for name, path, ready, change, changed in rows
    ]


def wait(page: Page, selectors: str, timeout_s: float = 120.0) -> None:
    """Return when all selectors, joined by &&, stand on the page."""
    for selector in selectors.split(" && "):
        page.wait_for_selector(selector, timeout=timeout_s * 1e3)


def url_of(site: str, visit: Visit) -> str:
    """The address of a page."""
    path, _, query = visit.path.partition("?")
    return f"{site}/{path}?job={visit.job}" + (f"&{query}" if query else "")


def look(browser: Browser, site: str, visit: Visit, *, watched_s: float) -> dict[str, float]:
    """Open a page once in a fresh tab."""
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
        began_s = time.perf_counter()
        visit.change(page)
        wait(page, visit.changed)
        return {
            "cold_s": cold_s, "change_s": time.perf_counter() - began_s, "kib": kib, "blocked_ratio": blocked,
            "heap_mib": heap,
        }  # fmt: skip
    finally:
        context.close()


def measure(browser: Browser, site: str, visit: Visit, runs: int, watched_s: float) -> dict[str, Any]:
    """One page: medians over the runs. The browser is watched in the first one."""
    found = [look(browser, site, visit, watched_s=watched_s if run == 0 else 1.0) for run in range(runs)]
    times = {name: round(statistics.median(f[name] for f in found), 2) for name in ("cold_s", "change_s")}
    first = {name: round(found[0][name], 3) for name in ("kib", "blocked_ratio", "heap_mib")}
    return {"name": visit.name, **times, **first}


def culprit_visible(browser: Browser, site: str, rank: int, node: str) -> bool:
    """Whether both faults are named where a person looks first, and stand on top of the heatmap."""
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    try:
        page.goto(f"{site}/?job={JOB}")
        wait(page, "#verdict && .t")
        overview = page.inner_text("body")
        page.goto(f"{site}/heatmap?job={JOB}")
        wait(page, "#worst && .js-plotly-plot .yaxislayer-above")
        pinned = [text for text in page.locator(".js-plotly-plot .ytick").all_text_contents() if "◆" in text]
        named = page.inner_text("#worst")
    finally:
        page.close()
    in_text = f"ank {rank} " in overview and node in overview and f"Rank {rank} " in named
    return in_text and any(f"rank {rank}" in p for p in pinned) and any(node in p for p in pinned)


def fill(data: Path, ranks: int, steps: int, rank: int, node: str) -> None:
    """Write the fleet, unless the folder has one."""
    if (data / "store").exists():
        return
    faults = [f"straggler:rank={rank},factor=1.15", f"straggler:node={node},factor=1.12"]
    command = [sys.executable, "-m", "pulsetrain.cli", "simulate", "telemetry", "--ranks", str(ranks)]
    command += ["--tp", "8", "--pp", "8", "--steps", str(steps), "--job", JOB]
    command += [flag for fault in faults for flag in ("--fault", fault)]
    subprocess.run([*command, "--store", f"chdb://{data / 'store'}"], check=True, stdout=sys.stderr)


@contextlib.contextmanager
def hub(data: Path) -> Iterator[dict[str, Any]]:
    """A hub on the folder, once it has judged the recording. Yields its hub.json."""
    command = [sys.executable, "-m", "pulsetrain.cli", "serve", "--data", str(data), "--port", "0"]
    (data / "hub.json").unlink(missing_ok=True)
    child = subprocess.Popen([*command, "--dashboard-port", "0"], stdout=sys.stderr)
    try:
        yield judged(data / "hub.json")
    finally:
        child.terminate()
        child.wait(30)


@contextlib.contextmanager
def running(facts: dict[str, Any]) -> Iterator[Visit]:
    """A job of 64 ranks that sends the hub a step every 1.2 s. Yields the visit to its timeline."""
    stop = threading.Event()
    transport = HttpTransport(facts["url"], facts["token"])

    def feed() -> None:
        step = 0
        while not stop.wait(STEP_S):
            began_ns = time.time_ns() - int(STEP_S * 1e9)
            spec = FleetSpec(
                ranks=TIMELINE_RANKS, tp=8, pp=4, steps=1, first_step=step, job=RUNNING, start_ns=began_ns
            )
            write.to_transport(spec, transport, lambda rows: None)
            step += 1

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        time.sleep(10 * STEP_S)  # enough shared collectives to put the clocks side by side
        ranks = f"timeline?ranks=0-{TIMELINE_RANKS - 1}"
        change = (_fill("Ranks", "0-3"), "text=Ranks 0-3")
        yield Visit(
            name="timeline of a running job", path=ranks, ready=".timeline[data-view]", change=change[0],
            changed=change[1], job=RUNNING,
        )  # fmt: skip
    finally:
        stop.set()
        feeder.join()
        transport.close()


def judged(path: Path, longest_s: float = 600.0) -> dict[str, Any]:
    """What the hub wrote, once the dashboard answers and the fleet has a verdict."""
    deadline = time.monotonic() + longest_s
    while time.monotonic() < deadline:
        time.sleep(0.5)
        with contextlib.suppress(OSError, ValueError, httpx.HTTPError):
            facts = dict(json.loads(path.read_text()))
            httpx.get(f"{facts['dashboard']}/_stcore/health", timeout=20).raise_for_status()
            status = HubClient(HubAddress(url=facts["url"], token=facts["token"])).status()
            if any(job["verdict"]["state"] == "slow" for job in status["past_jobs"]):
                return facts
    raise TimeoutError("the hub has not judged the fleet")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=12_288)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--data", type=Path, help="keep the fleet in this folder")
    parser.add_argument("--pages", help="only these pages, with commas between")
    parser.add_argument("--quick", action="store_true", help="512 ranks, one run")
    options = parser.parse_args()
    ranks, runs = (512, 1) if options.quick else (options.ranks, options.runs)
    rank, node = min(371, ranks // 2 + 3), f"sim-{min(1000, ranks // 8 - 4):05d}"
    load = round(os.getloadavg()[0], 1)
    chromium = shutil.which("chromium")
    with contextlib.ExitStack() as stack:
        data = options.data or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="pulsetrain-bench-"))
        )
        fill(data, ranks, options.steps, rank, node)
        facts = stack.enter_context(hub(data))
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=chromium, args=[*FLAGS, SWIFT])
        pages = []
        watched_s = 2.0 if options.quick else WATCHED_S
        wanted = options.pages.split(",") if options.pages else [v.name for v in visits(rank, node)]
        for visit in visits(rank, node):
            if visit.name not in wanted:
                continue
            pages.append(measure(browser, facts["dashboard"], visit, runs, watched_s))
            print(pages[-1], file=sys.stderr, flush=True)
        visible = culprit_visible(browser, facts["dashboard"], rank, node)
        with running(facts) as visit:
            pages.append(measure(browser, facts["dashboard"], visit, runs, watched_s))
            print(pages[-1], file=sys.stderr, flush=True)
        browser.close()
    report = {"ranks": ranks, "pages": pages, "culprit_visible": visible, "load_before": load}
    print(json.dumps({**report, "cores": len(os.sched_getaffinity(0))}))


if __name__ == "__main__":
    main()
