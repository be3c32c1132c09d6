"""The barrier with ranks at different places: seeded requests to a real job of TP 2 x PP 2 x DP 2.

Eight ranks of examples/train_gpt.py. For each request every rank hears of it at a moment of its own, spread
over more than a step. Who asks does what an agent and the hub do: it compares where all ranks are, and lets
those run on that others wait for. After each request the ranks must go on, and each round must end
with the parameters of an undisturbed run.

`hold_requests`, `hold_acquired`: requests, and those after which all ranks stood with nothing in flight.
`hold_steps_worst`: the most ends of steps that a rank came to until then. `hold_given_up` says of each other
request what it waited for, `hold_wrong` what else was not as it should be.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Protocol

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from anyjob.kept import Kept  # noqa: E402  # the job of the tests needs the root

from pulsetrain.agent import holding  # noqa: E402
from pulsetrain.elastic.barrier import Position, decide, waited_for  # noqa: E402
from pulsetrain.protocol.messages import HoldRanks  # noqa: E402
from pulsetrain.recovery.hold import LIMIT_S, LIMIT_STEPS  # noqa: E402
from tests.agent.held_job import HeldJob  # noqa: E402

WORLD = 8
SPREAD = 1.3
"""steps over which the ranks hear of one request"""
STEPS_EACH = 6
"""that a round has for each request, with what passes between them"""
START_S, FIRST_STEP = 240.0, 2
STILL_S, PAUSE_S, NEXT_S = 0.01, 0.001, 0.5
GPT = (ROOT / "examples/train_gpt.py", "--layers", 2, "--dim", 32, "--batch", 8, "--seq", 16)
Row = dict[str, Any]


class Job(Protocol):
    """The job that requests are made to."""

    ranks: list[Any]
    number: int

    def last_steps(self) -> list[int]: ...
    def drain(self) -> None: ...
    def look(self, past: dict[int, int]) -> dict[int, Position]: ...
    def let_go(self) -> None: ...
    def reach(self, step: int) -> None: ...


@dataclass(kw_only=True)
class Request:
    """What became of one request. `places`: at how many steps and phases ranks were when they heard of it."""

    acquired: bool = False
    steps: int = 0
    took_s: float = 0.0
    places: int = 0
    why_not: str = ""
    wrong: str = ""


def ask(job: Job, generator: random.Random, step_s: float) -> Request:
    """Make one request, and let the ranks run again."""
    request, began_s = Request(), time.monotonic()
    job.number += 1
    places = set()
    moments = sorted((generator.random() * SPREAD * step_s, rank.rank) for rank in job.ranks)
    for delay_s, number in moments:
        time.sleep(max(0.0, began_s + delay_s - time.monotonic()))
        rank = job.ranks[number]
        status = rank.reader.status()
        places.add((status.step, status.stack[-1].name if status.stack else ""))
        holding.run(HoldRanks(id=1, attempt=0, number=job.number, wait_s=0.0), 0, [rank])
    request.places = len(places)
    _wait(job, request, began_s, max(LIMIT_S, LIMIT_STEPS * step_s))
    request.took_s = round(time.monotonic() - began_s, 4)
    stood = job.last_steps()
    time.sleep(STILL_S)
    if request.acquired and job.last_steps() != stood:
        request.wrong = "a rank went on while all stood"
    job.let_go()
    try:
        job.reach(min(stood) + 1)
    except AssertionError as error:
        request.wrong = f"the job did not go on: {error}"[:500]
    return request


def _wait(job: Job, request: Request, began_s: float, limit_s: float) -> None:
    """Look where the ranks are until all stand, or until the limit."""
    past: dict[int, int] = {}
    world = range(len(job.ranks))
    while True:
        job.drain()
        seen = job.look(past)
        decision = decide(seen, world)
        request.steps = max((position.arrivals for position in seen.values()), default=0)
        if decision.acquired:
            request.acquired = True
            return
        past |= {rank: seen[rank].arrivals for rank in decision.run_on}
        if time.monotonic() - began_s > limit_s:
            request.why_not = waited_for(seen, world)
            return
        time.sleep(PAUSE_S)


def train(folder: Path, steps: int, requests: int, generator: random.Random) -> tuple[list[Request], str]:
    """One job with so many requests. Returns what became of them, and the digest of its parameters."""
    out, made = folder / "hash", []
    command = (*GPT, "--steps", steps, "--params-hash-out", out)
    job = HeldJob(folder, WORLD, *command)
    try:
        _begin(job)
        began_s, first = time.monotonic(), min(job.last_steps())
        job.reach(first + 3)
        step_s = (time.monotonic() - began_s) / 3
        while len(made) < requests and max(job.last_steps()) < steps - STEPS_EACH:
            time.sleep(generator.random() * NEXT_S * step_s)
            made.append(ask(job, generator, step_s))
            if made[-1].wrong:
                return made, ""
        job.wait()
        errors = sum(rank.reader.status().errors for rank in job.ranks)
        if errors:
            made[-1].wrong = f"{errors} faults of hooks were counted"
    finally:
        job.close()
    return made, out.read_text()


def _begin(job: HeldJob) -> None:
    """Wait until the job trains. Eight processes that import torch on two busy cores take a while."""
    deadline_s = time.monotonic() + START_S
    while min(job.last_steps()) < FIRST_STEP:
        job.drain()
        if time.monotonic() > deadline_s:
            said = [rank.output.read_text()[-500:] for rank in job.ranks]
            raise TimeoutError(f"no step {FIRST_STEP} within {START_S:g} s: {said}")
        time.sleep(0.05)


def run(*, quick: bool, seed: int, points: int = 200, resume: Path | None = None) -> dict[str, object]:
    """Make the requests in rounds. Rounds that are kept in `resume` are not run again."""
    kept, each = Kept(resume), 3 if quick else 20
    rounds = 1 if quick else -(-points // each)
    steps = STEPS_EACH * (each + 2)
    expected = _expected(kept, steps)
    for number in range(rounds):
        unit = f"requests/{seed}/{steps}/{number}"
        if kept.done(unit):
            continue
        began_s, load = time.monotonic(), os.getloadavg()[0]
        with tempfile.TemporaryDirectory(prefix="pulsetrain-requests-") as name:
            made, digest = train(Path(name), steps, each, random.Random(f"{seed}/{number}"))
        row = {
            "what": "round",
            "requests": [vars(request) for request in made],
            "identical": digest == expected,
            "load": round((load + os.getloadavg()[0]) / 2, 2),
            "seconds": round(time.monotonic() - began_s, 1),
        }
        kept.add(unit, [row])
        print(json.dumps(row), file=sys.stderr, flush=True)
    wanted = {f"requests/{seed}/{steps}/{number}" for number in range(rounds)}
    return report([row for row in kept.rows if row["unit"] in wanted])


def _expected(kept: Kept, steps: int) -> str:
    """The digest of a job that nobody asks anything."""
    unit = f"requests/undisturbed/{steps}"
    if not kept.done(unit):
        with tempfile.TemporaryDirectory(prefix="pulsetrain-requests-") as name:
            _, digest = train(Path(name), steps, 0, random.Random(0))
        kept.add(unit, [{"what": "undisturbed", "digest": digest}])
    return str(next(row["digest"] for row in reversed(kept.rows) if row["unit"] == unit))


def report(rounds: Sequence[Row]) -> dict[str, object]:
    """What all rounds say together."""
    made = [request for row in rounds for request in row["requests"]]
    acquired = [request for request in made if request["acquired"]]
    return {
        "hold_requests": len(made),
        "hold_acquired": len(acquired),
        "hold_steps_worst": max((request["steps"] for request in acquired), default=None),
        "hold_steps": dict(sorted(Counter(str(request["steps"]) for request in acquired).items())),
        "hold_took_s": round(median(request["took_s"] for request in acquired), 4) if acquired else None,
        "hold_took_worst_s": max((request["took_s"] for request in acquired), default=None),
        "hold_places": dict(sorted(Counter(str(request["places"]) for request in made).items())),
        "hold_given_up": [request["why_not"] for request in made if not request["acquired"]],
        "hold_wrong": [request["wrong"] for request in made if request["wrong"]],
        "hold_rounds": len(rounds),
        "hold_identical": sum(row["identical"] for row in rounds),
        "hold_loads": [row["load"] for row in rounds],
    }
