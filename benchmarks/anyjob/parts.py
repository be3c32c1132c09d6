"""The units of work of each part, and running them one after the other."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import watching_cost

from anyjob import costs, pauses, plan, recording, scripts, sessions, untouched, verdicts
from anyjob.giving_way import giving_way
from anyjob.kept import Kept
from anyjob.launch import Script
from anyjob.slowing import WAYS, quota_allowed
from pulsetrain.agent.local_hub import LocalHub, local_hub

PARTS = ("scripts", "slow", "pauses", "clean", "demo", "idle")
DEMOS, IDLE_S = 3, 60.0
DEMO_TIMEOUT_S = 900.0
ATTEMPTS = 2
CLEAN_A_SESSION = 10
PAIRS, STEPS, PAIR_S = 6, 40, 400.0
"""runs under torchrun and Pulsetrain by turns, their steps, and the most seconds of a run"""
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What the command line asks for. None stands for all."""

    parts: tuple[str, ...] = PARTS
    jobs: tuple[str, ...] | None = None
    variants: tuple[str, ...] | None = None
    trials: int = 20
    clean: int = 300
    seed: int = 0
    shape: tuple[int, int] = (2, 2)
    """local nodes of the slow and clean parts, and ranks of each, where ranks share cores"""
    steps: int = STEPS
    after_s: float = 0.0
    """steps of each run of a script, and for how long after the first they do not count"""
    quick: bool = False
    logs: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Unit:
    """One piece of work that is done or not. `run` gets an empty folder, and yields rows."""

    name: str
    run: Callable[[Path], Iterator[Row]]


def units(wanted: Wanted, *, cores: int) -> list[Unit]:
    """Return all units of the wanted parts, in their order."""
    makers: dict[str, Callable[[Wanted, int], list[Unit]]] = {
        "scripts": _scripts,
        "slow": _slow,
        "pauses": _pauses,
        "clean": _clean,
        "demo": _demo,
        "idle": _idle,
    }
    return [unit for part in wanted.parts for unit in makers[part](wanted, cores)]


def run(todo: Sequence[Unit], kept: Kept, *, until_s: float, logs: Path | None) -> None:
    """Run the units that are not done yet. None begins after `until_s`. One that fails is told and kept."""
    for number, unit in enumerate(todo):
        if kept.done(unit.name):
            continue
        if time.monotonic() >= until_s:
            print(f"out of time: {number} of {len(todo)} units are done", flush=True)
            return
        print(f"[{number + 1}/{len(todo)}] {unit.name}", flush=True)
        rows = attempted(unit, logs)
        kept.add(unit.name, rows)


def attempted(unit: Unit, logs: Path | None) -> list[Row]:
    """Return a unit's rows. What breaks it is a row too, after as many attempts as are allowed."""
    rows: list[Row] = []
    for attempt in range(ATTEMPTS):
        with _folder(unit, attempt, logs) as folder:
            try:
                for row in unit.run(folder):
                    rows.append({"try": attempt, **row})
                    print(f"    {verdicts.line(rows[-1])}", flush=True)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - a unit that breaks must not end the others
                rows.append({"try": attempt, "what": "broken", "reason": str(error)[:2000]})
                print(f"    broken: {str(error)[:300]}", flush=True)
                continue
            break
    return rows


@contextmanager
def _folder(unit: Unit, attempt: int, logs: Path | None) -> Iterator[Path]:
    if logs is not None:
        folder = logs.absolute() / f"{unit.name.replace('/', '-')}-{attempt}"
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="any-job-") as name:
        yield Path(name)


def _of_session(session: plan.Session) -> Callable[[Path], Iterator[Row]]:
    about = {
        "session": session.key,
        "job": session.script.name,
        "variant": session.variant,
        "pinned": session.pinned,
    }

    def rows(folder: Path) -> Iterator[Row]:
        with local_hub(folder / "hub", dashboard=False) as hub:
            for row in sessions.Running(session, hub.address, folder).run():
                yield {**about, **row}

    return rows


def _jobs(wanted: Wanted, default: Sequence[str]) -> list[tuple[str, str]]:
    """Return (job, variant) of everything that is wanted and can run here."""
    names = untouched.runnable(wanted.jobs or default)
    variants = wanted.variants or untouched.VARIANTS
    if wanted.quick:
        names, variants = names[:1], variants[:1]
    return [(name, variant) for name in names for variant in variants]


def _slow(wanted: Wanted, cores: int) -> list[Unit]:
    """Sessions with episodes, one of each job after the other, so that a run that is cut short has all."""
    ways = [way for way in WAYS if way != "quota" or quota_allowed()]
    trials, clean = (1, 1) if wanted.quick else (wanted.trials, wanted.trials)
    tables = [
        plan.sessions(
            loaded(name, variant, wanted.shape),
            loaded(name, variant, (cores, 1)),
            variant,
            trials=trials,
            clean=clean,
            seed=wanted.seed,
            ways=ways[:1] if wanted.quick else ways,
        )
        for name, variant in _jobs(wanted, untouched.SLOW_JOBS)
    ]
    about = f"{wanted.seed}-{wanted.shape[0]}x{wanted.shape[1]}"
    return [Unit(name=f"slow/{about}/{s.key}", run=_of_session(s)) for s in _dealt(tables)]


def _dealt(tables: Sequence[Sequence[plan.Session]]) -> list[plan.Session]:
    """Return the first of each table, then the second of each, and so on."""
    longest = max((len(table) for table in tables), default=0)
    return [table[i] for i in range(longest) for table in tables if i < len(table)]


def loaded(name: str, variant: str, shape: tuple[int, int]) -> Script:
    """Return an endless job of that many local nodes, and ranks of each."""
    return untouched.endless(name, variant, nodes=shape[0], ranks_per_node=shape[1])


def _clean(wanted: Wanted, cores: int) -> list[Unit]:
    """Sessions without an episode: the clean windows that the slow part does not have."""
    jobs = _jobs(wanted, untouched.SLOW_JOBS)
    with_slow = len(jobs) * wanted.trials if "slow" in wanted.parts else 0
    left = 0 if wanted.quick and with_slow else max(0, wanted.clean - with_slow)
    count = -(-left // CLEAN_A_SESSION)
    made = []
    for number in range(count):
        name, variant = jobs[number % len(jobs)]
        pinned = number // len(jobs) % 2 == 0
        made.append(
            plan.Session(
                number=1000 + number,
                script=loaded(name, variant, (cores, 1) if pinned else wanted.shape),
                variant=variant,
                pinned=pinned,
                episodes=(),
                clean=1 if wanted.quick else CLEAN_A_SESSION,
            )
        )
    return [Unit(name=f"clean/{wanted.seed}/{s.key}", run=_of_session(s)) for s in made]


def _scripts(wanted: Wanted, cores: int) -> list[Unit]:
    """Pairs of runs, the first of each script before the second of any."""
    names = untouched.runnable(wanted.jobs)
    steps, pairs = (20, 1) if wanted.quick else (wanted.steps, PAIRS)
    after = f"+{wanted.after_s:g}s" if wanted.after_s else ""

    def unit(name: str, number: int) -> Unit:
        def rows(folder: Path) -> Iterator[Row]:
            with quiet_hub(folder / "hub") as hub:
                script, ranks = untouched.short(name, steps)
                yield from scripts.pair(
                    name,
                    script,
                    ranks,
                    hub.address,
                    folder,
                    number=number,
                    timeout_s=PAIR_S,
                    after_s=wanted.after_s,
                )

        return Unit(name=f"scripts/{steps}{after}/{name}/{number}", run=rows)

    def check(name: str) -> Unit:
        def rows(folder: Path) -> Iterator[Row]:
            with local_hub(folder / "hub", dashboard=False) as hub:
                yield from recording.check(name, hub.address)

        return Unit(name=f"scripts/check/{name}", run=rows)

    names = names[:1] if wanted.quick else names
    return [*map(check, names), *(unit(name, i) for i in range(pairs) for name in names)]


@contextmanager
def quiet_hub(folder: Path) -> Iterator[LocalHub]:
    """Run a hub that gives way to everything else at once, as if it had a machine of its own."""
    with local_hub(folder, dashboard=False) as hub:
        pid = int(json.loads((folder / "hub.json").read_text())["pid"])
        with giving_way(pid):
            yield hub


def _pauses(wanted: Wanted, cores: int) -> list[Unit]:
    def unit(name: str, what: str, jobs: Sequence[tuple[str, float, bool]]) -> Unit:
        def rows(folder: Path) -> Iterator[Row]:
            with local_hub(folder / "hub", dashboard=False) as hub:
                yield from pauses.together(what, jobs, hub.address, folder)

        return Unit(name=f"pauses/{name}", run=rows)

    if wanted.quick:
        return [unit("quick", "pause", [("debugger", 5, True)])]
    made = [unit(f"group-{i}", "pause", group) for i, group in enumerate(pauses.groups())]
    return made + [unit(kind, "hang", [(kind, 0.0, True)]) for kind in pauses.HANGS]


def _demo(wanted: Wanted, cores: int) -> list[Unit]:
    def rows(folder: Path) -> Iterator[Row]:
        report = costs.demo(folder, 0, DEMO_TIMEOUT_S)
        yield {"what": "demo", "step_ratio": report["overhead_ratio"], "identical": report["identical"]}

    return [Unit(name=f"demo/{number}", run=rows) for number in range(0 if wanted.quick else DEMOS)]


def _idle(wanted: Wanted, cores: int) -> list[Unit]:
    seconds = 2.0 if wanted.quick else IDLE_S

    def hub(folder: Path) -> Iterator[Row]:
        yield {"what": "idle hub", "cpu_ratio": watching_cost.idle_hub_cpu_ratio(seconds)}

    def agent(folder: Path) -> Iterator[Row]:
        yield {"what": "quiet agent", "cpu_ratio": watching_cost.agent_cpu_ratio(seconds)}

    return [Unit(name="idle/hub", run=hub), Unit(name="idle/agent", run=agent)]
