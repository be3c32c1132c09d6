"""The units of work of each part, and running them one after the other."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from anyjob.kept import Kept

from clustered import agents, failing, failover, simulated, slurm

PARTS = ("failover", "slurm", "failing", "agents", "simulated")
POINTS_A_JOB = 10
CASES_A_HUB = 5
SIZES = (250, 500, 1000, 2000)
SIMULATED = (1000, 10_000, 100_000)
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What the command line asks for."""

    parts: tuple[str, ...] = PARTS
    points: int = 30
    failing: int = 50
    seed: int = 0
    agents: tuple[int, ...] = SIZES
    simulated: tuple[int, ...] = SIMULATED
    steady_s: float = 20.0


@dataclass(frozen=True, kw_only=True)
class Unit:
    """One piece of work that is done or not. `run` gets an empty folder, and yields rows."""

    name: str
    run: Callable[[Path], Iterator[Row]]


def units(wanted: Wanted) -> list[Unit]:
    """All units of the wanted parts, in their order."""
    made = {
        "failover": _failover,
        "slurm": _slurm,
        "failing": _failing,
        "agents": _agents,
        "simulated": _simulated,
    }
    return [unit for part in wanted.parts for unit in made[part](wanted)]


def run(todo: Sequence[Unit], kept: Kept, *, until_s: float) -> None:
    """Run the units that are not done yet. None begins after `until_s`. One that fails is told and kept."""
    for number, unit in enumerate(todo):
        if kept.done(unit.name):
            continue
        if time.monotonic() >= until_s:
            print(f"out of time: {number} of {len(todo)} units are done", flush=True)
            return
        print(f"[{number + 1}/{len(todo)}] {unit.name}", flush=True)
        kept.add(unit.name, _rows(unit))


def _rows(unit: Unit) -> list[Row]:
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="pulsetrain-cluster-") as folder:
        try:
            for row in unit.run(Path(folder)):
                rows.append(row)
                print(f"    {json.dumps(row)}", flush=True)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a unit that breaks must not end the others
            rows.append({"what": "broken", "reason": f"{type(error).__name__}: {error}"[:2000]})
            print(f"    broken: {error!s:.300}", flush=True)
    return rows


def _left_out(part: str, why: str) -> list[Unit]:
    return [Unit(name=part, run=lambda _: iter([{"what": "left out", "part": part, "reason": why}]))]


def _failover(wanted: Wanted) -> list[Unit]:
    """One job for each ten points."""
    if failover.missing():
        return _left_out("failover", failover.missing())
    points = failover.draw(wanted.seed, wanted.points)
    return [
        Unit(
            name=f"failover/{wanted.seed}/{at}-{at + len(points[at : at + POINTS_A_JOB])}",
            run=partial(failover.run, points[at : at + POINTS_A_JOB]),
        )
        for at in range(0, len(points), POINTS_A_JOB)
    ]


def _slurm(wanted: Wanted) -> list[Unit]:
    if slurm.missing():
        return _left_out("slurm", slurm.missing())
    return [Unit(name="slurm", run=slurm.run)]


def _failing(wanted: Wanted) -> list[Unit]:
    cases = failing.draw(wanted.seed, wanted.failing)
    return [
        Unit(
            name=f"failing/{wanted.seed}/{at}-{at + len(cases[at : at + CASES_A_HUB])}",
            run=partial(failing.run, cases[at : at + CASES_A_HUB]),
        )
        for at in range(0, len(cases), CASES_A_HUB)
    ]


def _agents(wanted: Wanted) -> list[Unit]:
    sizes = [agents.Size(agents=count, steady_s=wanted.steady_s) for count in wanted.agents]
    return [Unit(name=f"agents/{size.agents}", run=partial(agents.run, size)) for size in sizes]


def _simulated(wanted: Wanted) -> list[Unit]:
    sizes = [agents.Size(agents=count, steady_s=wanted.steady_s) for count in wanted.simulated]
    return [Unit(name=f"simulated/{size.agents}", run=partial(simulated.run, size)) for size in sizes]
