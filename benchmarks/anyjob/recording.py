"""Is what was recorded of an untouched script complete? Its collectives are counted without Pulsetrain."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from jobs.catalogue import JOBS
from jobs.compare import Outcome, Recorded, recorded, run_job

from pulsetrain.protocol.client import HubAddress, HubClient

LIMIT_S, STORED_S = 300.0, 20.0


def check(name: str, hub: HubAddress) -> Iterator[dict[str, Any]]:
    """Run a small job both ways, and yield one row of what was the same and what was recorded."""
    job, run = JOBS[name], f"check-{name}"
    plain = run_job(job, "torchrun", limit_s=LIMIT_S)
    ours = run_job(job, "pulsetrain", hub=hub, name=run, limit_s=LIMIT_S)
    seen = _stored(hub, run, plain)
    yield {
        "what": "recording",
        "job": name,
        "restarts": restarts(hub, run),
        "same_result": plain.result == ours.result and plain.status == 0,
        "collectives_match": bool(plain.traffic) and seen.traffic == plain.traffic,
        "steps": _all_steps(plain, seen),
        "phases": all(set(job.phases) <= of for of in seen.phases.values()) and bool(seen.phases),
        "loss": any(None not in of and of for of in seen.losses.values()),
        "traffic": {str(r): [t.operations, t.bytes] for r, t in plain.traffic.items()},
        "recorded_traffic": {str(r): [t.operations, t.bytes] for r, t in seen.traffic.items()},
    }


def restarts(hub: HubAddress, job: str) -> int:
    """Return how often the hub has launched a job again."""
    jobs = HubClient(hub).status()["jobs"]
    return max((int(row["attempt"]) for row in jobs if row["job"] == job), default=0)


def _stored(hub: HubAddress, run: str, plain: Outcome) -> Recorded:
    """Return what was recorded, once it is as much as the script did, or after `STORED_S`."""
    deadline_s = time.monotonic() + STORED_S
    while True:
        seen = recorded(hub, run)
        if (_all_steps(plain, seen) and seen.traffic == plain.traffic) or time.monotonic() > deadline_s:
            return seen
        time.sleep(1.0)


def _all_steps(plain: Outcome, seen: Recorded) -> bool:
    """Whether every rank recorded as many steps as the script printed."""
    return bool(seen.steps) and all(len(of) == len(plain.losses) for of in seen.steps.values())
