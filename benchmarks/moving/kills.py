"""A hub, an agent or a rank is killed with SIGKILL at a seeded stage of a move. Real processes.

Each point is a job of its own: two ranks on two nodes, a standby where it is to be moved off a node. It is
asked to be pre-empted, or to leave a node. Jobs of one node are pre-empted by dumping their processes with
CRIU, where the host can. At the stage of the point the victim is killed, and its supervisor starts it anew,
or another node comes. Where the job is found pre-empted, it is resumed, as a person would do.

A point is passed where the job trains again within `LIMIT_S`, ends with the parameters of an undisturbed run,
and no attempt begins before a step that was saved. No rank may run twice then, nobody may go on saving every
step, and no process and no half-written image may be left.

`kill_points`, `kill_passed`: the points, and those that were passed. `kill_worst_s`: the longest time after a
kill without a step of any rank. `kill_failed` has each one that was not passed, with why.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any

from anyjob.kept import Kept

from moving import kill_judge as judge
from moving.kill_draw import NODES, Point, draw
from moving.kill_site import START_S, Site, until
from pulsetrain.core.errors import PulsetrainError
from pulsetrain.diagnostics import process_dump

STEPS: Mapping[str, int] = MappingProxyType({"preempt": 450, "migrate": 1000, "image": 450})
"""A standby takes some seconds to come, and the job must still train then."""
FIRST_STEP = 20
MOVED_OFF, OTHER = "b", "y"
STAGE_S, LIMIT_S, END_S = 60.0, 60.0, 240.0
WAIT_S = 20.0
LOOK_S, LOOKS = 0.1, 5
"""A job must be seen pre-empted so often before somebody resumes it."""
IMAGE_STAGES = ("stopping", "stopped", "checking")
"""While these last, the image is what is saved of a job that was dumped."""
Row = dict[str, Any]


@dataclass(kw_only=True)
class Seen:
    """What became of one point. `bound` is a step that must not be lost, `wrong` why it was not passed."""

    killed: bool = False
    attempt: int = -1
    phase: str = ""
    bound: int = -1
    resumes: int = 0
    worst_s: float = 0.0
    wrong: list[str] = field(default_factory=list)


def strike(point: Point, folder: Path, expected: str) -> Row:
    """Run one point. Returns its row."""
    site, seen = Site(folder, steps=STEPS[point.kind], image=point.kind == "image"), Seen()
    began_s = time.monotonic()
    try:
        _begin(site, point)
        _watch(site, seen, *_kill(site, point, seen))
        ended = [agent for name, agent in site.agents.items() if name != _late(point)]
        until(lambda: all(agent.poll() is not None for agent in ended), LIMIT_S, "the end of all agents")
        _judge(site, point, seen, expected)
    except TimeoutError as error:
        seen.wrong.append(f"{error}; {_told(site)}")
    finally:
        site.close()
    lines = site.lines()
    return {
        "what": "point" if seen.killed else "broken",  # then it is run again
        **asdict(point),
        **asdict(seen),
        "redone": judge.redone(lines),
        "seconds": round(time.monotonic() - began_s, 1),
        "passed": not seen.wrong,
        "folder": str(folder) if seen.wrong else "",
    }


def undisturbed(folder: Path, kind: str) -> str:
    """The digests that a job of this kind ends with which nobody touches."""
    site = Site(folder, steps=STEPS[kind], image=kind == "image")
    try:
        site.start_hub()
        for name in NODES[kind][:2]:
            site.start_agent(name)
        until(lambda: _digests(site), START_S, "the end of the undisturbed job")
    finally:
        site.close()
    return _digests(site)


def _digests(site: Site) -> str:
    files = [site.record / f"end-{rank}" for rank in range(judge.RANKS)]
    found = [file.read_text() for file in files if file.exists()]
    return " ".join(found) if len(found) == judge.RANKS and all(found) else ""


def _told(site: Site) -> str:
    job = site.job() or {}
    return json.dumps({key: job.get(key) for key in ("state", "attempt", "step", "move", "failure")})


def _begin(site: Site, point: Point) -> None:
    """The job trains on its nodes, and its standby is there."""
    site.start_hub()
    until(lambda: site.job() is not None, START_S, "the hub")
    first, spare = NODES[point.kind][:2], NODES[point.kind][2:]
    for name in first:
        site.start_agent(name)
    until(lambda: (site.job() or {}).get("state") in ("starting", "running"), START_S, "the launch")
    for name in spare:
        site.start_agent(name)
    until(lambda: _standbys(site) == len(spare), START_S, "the standby")
    until(lambda: _step(site) >= FIRST_STEP, START_S, "more steps")


def _step(site: Site) -> int:
    return int((site.job() or {}).get("step", -1))


def _standbys(site: Site) -> int:
    nodes = (site.job() or {}).get("nodes", ())
    return sum(node["state"] == "standby" and not node["cordon"] for node in nodes)


def _kill(site: Site, point: Point, seen: Seen) -> tuple[float, int]:
    """Ask for the move, and kill the victim at the stage. Returns when, and how many steps were done then."""
    (site.folder / "armed").write_text(point.stage)
    what, node = ("migrate", MOVED_OFF) if point.kind == "migrate" else ("preempt", "")
    threading.Thread(target=site.ask, args=(what, node, WAIT_S), daemon=True).start()
    reached = site.folder / "reached"
    deadline_s = time.monotonic() + STAGE_S
    resumed, look_s = False, 0.0
    while not reached.exists():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{point.stage}: not within {STAGE_S:g} s")
        if _digests(site):
            raise TimeoutError(f"the job ended before it came to {point.stage}")
        if time.monotonic() < look_s:
            time.sleep(0.001)
            continue
        look_s = time.monotonic() + LOOK_S / 2
        if not resumed and (site.job() or {}).get("state") == "preempted":
            resumed = True
            threading.Thread(target=site.ask, args=("resume",), daemon=True).start()
    known = json.loads(reached.read_text())
    seen.phase = known["phase"]
    if point.after_s:
        (site.folder / "go").touch()
        time.sleep(point.after_s)
    if point.victim == "rank":
        _kill_rank(site, point)
    else:
        victim = site.hub if point.victim == "hub" else site.agents[point.node]
        assert victim is not None, "it was started"
        _note(site, point, seen, known["restorable"])
        victim.kill()
        victim.wait(60)
    if point.victim == "rank":
        _note(site, point, seen, known["restorable"])
    killed_s, done = time.monotonic(), judge.done(site.lines())
    seen.killed = True
    (site.folder / "go").touch()
    time.sleep(point.back_s)
    if point.victim == "hub":
        site.start_hub()
    elif point.victim == "agent":
        site.start_agent(OTHER if point.other else point.node)
    return killed_s, done


def _kill_rank(site: Site, point: Point) -> None:
    def found() -> list[int]:
        live = site.live_ranks().get(point.rank, [])
        if live:
            return live
        if _digests(site):
            raise TimeoutError("the job ended before the kill")
        if (site.job() or {}).get("state") == "preempted":  # the stage is over, so the next rank is killed
            site.ask("resume")  # a hub that stands still at the stage would not answer before the job ends
        return []

    if not found():  # it was forked, and has not come to its first line
        (site.folder / "go").touch()
    [pid] = until(found, START_S, "the rank")
    os.kill(pid, signal.SIGKILL)


def _note(site: Site, point: Point, seen: Seen, restorable: dict[str, int]) -> None:
    """What must not be lost by this kill: what others hold than the victim."""
    lines = site.lines()
    seen.attempt = judge.attempt_of(lines)
    if point.victim == "agent":
        seen.bound = restorable.get(point.node, restorable[""])
    else:
        seen.bound = max(restorable[""], judge.saved(lines))
    if point.kind == "image" and point.stage in IMAGE_STAGES:
        did = [step for _, _, _, word, step in lines if word == "did"]
        seen.bound = max(did, default=-1)


def _watch(site: Site, seen: Seen, killed_s: float, before: int) -> None:
    """Until the job has ended. Who finds it pre-empted resumes it. `before` steps were done at the kill."""
    moved_s, preempted, trained = killed_s, 0, False
    while not _digests(site):
        now_s = time.monotonic()
        done = judge.done(site.lines())
        if done > before:
            seen.worst_s = round(max(seen.worst_s, now_s - moved_s), 2)
            moved_s = now_s
            if not trained:
                trained = True
                seen.wrong += judge.doubled(site.live_ranks())
        before = done
        job = site.job() or {}
        preempted = preempted + 1 if job.get("state") == "preempted" else 0
        if preempted >= LOOKS:
            seen.resumes += site.ask("resume")
            preempted = 0
        if job.get("state") == "failed":
            raise TimeoutError("the job failed")
        if now_s - moved_s > LIMIT_S:
            raise TimeoutError(f"no step for {LIMIT_S:g} s")
        if now_s - killed_s > END_S:
            raise TimeoutError(f"not ended within {END_S:g} s")
        time.sleep(LOOK_S)


def _late(point: Point) -> str:
    """An agent that may come when the job has ended without it, "" for none. It waits for another run."""
    replaced = point.kind == "migrate" and point.victim == "agent"
    return (OTHER if point.other else point.node) if replaced else ""


def _judge(site: Site, point: Point, seen: Seen, expected: str) -> None:
    lines = site.lines()
    if _digests(site) != expected:
        seen.wrong.append("other parameters than those of an undisturbed run")
    seen.wrong += judge.lost(lines, seen.attempt, seen.bound)
    seen.wrong += judge.still_saves(lines, STEPS[point.kind])
    left = [pids for pids in site.live_ranks().values() if pids]
    seen.wrong += [f"ranks run after the end: {left}"] if left else []
    images = [
        path for path in site.folder.glob("*/nodes/*/*/images/*") if not (path / "manifest.json").exists()
    ]
    seen.wrong += [f"half-written image: {path.name}" for path in images]
    state = (site.job() or {}).get("state")
    if state not in (None, "finished") and not _late(point):
        seen.wrong.append(f"the job is {state} after its end")


def points_of(seed: int, count: int) -> list[Point]:
    """The points that this host can do."""
    lacks = process_dump.lacks()
    if lacks:
        print(f"no points with images of processes: {lacks}", file=sys.stderr)
    return draw(seed, count, images=not lacks)


def run(
    *, quick: bool, seed: int, points: int = 50, resume: Path | None = None, beside: int = 1
) -> dict[str, object]:
    """Run the points. With `resume` those that are kept there are not run again, unless they broke."""
    kept, lock = Kept(resume), threading.Lock()
    drawn = points_of(seed, 3 if quick else points)
    expected = dict(_expected(kept, drawn))

    def one(point: Point) -> None:
        unit = f"kills/{seed}/{point.number}"
        if kept.done(unit):
            return
        folder = Path(tempfile.mkdtemp(prefix="pulsetrain-kills-"))
        try:
            row = strike(point, folder / "site", expected[point.kind])
        except (OSError, ValueError, PulsetrainError) as error:  # of the benchmark, so it is run again
            row = {"what": "broken", **asdict(point), "wrong": [repr(error)], "passed": False}
        if row["passed"]:
            shutil.rmtree(folder, ignore_errors=True)
        with lock:
            kept.add(unit, [row])
            print(json.dumps(row), file=sys.stderr, flush=True)

    with ThreadPoolExecutor(beside) as pool:
        list(pool.map(one, drawn))
    wanted = {f"kills/{seed}/{point.number}" for point in drawn}
    last = {row["unit"]: row for row in kept.rows if row["unit"] in wanted}
    return report(list(last.values()))


def _expected(kept: Kept, drawn: Sequence[Point]) -> Iterator[tuple[str, str]]:
    """What undisturbed jobs of each kind end with."""
    for kind in sorted({point.kind for point in drawn}):
        unit = f"kills/undisturbed/{kind}/{STEPS[kind]}"
        if not kept.done(unit):
            with tempfile.TemporaryDirectory(prefix="pulsetrain-kills-") as name:
                digest = undisturbed(Path(name) / "site", kind)
            kept.add(unit, [{"what": "undisturbed", "digest": digest}])
        yield kind, next(row["digest"] for row in reversed(kept.rows) if row["unit"] == unit)


def report(rows: Sequence[Row]) -> dict[str, object]:
    """What the rows of all points say together."""
    passed = [row for row in rows if row["passed"]]
    failed = [row for row in rows if not row["passed"]]
    return {
        "kill_points": len(rows),
        "kill_passed": len(passed),
        "kill_worst_s": max((row["worst_s"] for row in passed), default=None),
        "kill_median_s": median(row["worst_s"] for row in passed) if passed else None,
        "kill_kinds": dict(sorted(Counter(row["kind"] for row in rows).items())),
        "kill_stages": dict(sorted(Counter(row["stage"] for row in rows).items())),
        "kill_victims": dict(sorted(Counter(row["victim"] for row in rows).items())),
        "kill_redone": sum(row.get("redone", 0) for row in rows),
        "kill_failed": [
            {key: row[key] for key in ("number", "kind", "stage", "victim", "wrong")} for row in failed
        ],
    }
