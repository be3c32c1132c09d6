"""What the checkpoints page shows: where the state is safe, and what a failure would cost now.

A restore prefers Pulsetrain's own tiers. A script that saves by itself goes on from its own file.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from pulsetrain.core.json import JsonObject

OWN = "script's own file"
TIERS = ("memory", "peer", "storage", OWN)
FAILURES = (
    ("a rank", TIERS),
    ("a node", TIERS[1:]),
    ("a node and all that hold its replicas", TIERS[2:]),
)


@dataclass(frozen=True, kw_only=True)
class Safe:
    """The newest step that every rank has in a tier. `copies` is how many there are of each rank's state."""

    tier: str
    step: int
    bytes: int
    copies: float
    ts_ns: int


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one failure would cost now.

    `step` is where the job would resume, -1 for its first step. `lost_ns` is the time of the steps that are
    done again. `pause_ns` is the usual time from a fault to the next step, None if there was no fault yet.
    """

    failure: str
    tier: str
    step: int
    lost_steps: int
    lost_ns: int
    pause_ns: int | None


def safe_steps(rows: Sequence[JsonObject]) -> list[Safe]:
    """Rows of `views.checkpoint_tiers` in the order in which a restore looks at them.

    >>> safe_steps([{"tier": "peer", "step": 7, "bytes": 4, "copies": 8, "ranks": 8, "ts_ns": 1}])[0].copies
    1.0
    """
    known = {row["tier"]: row for row in rows}
    return [
        Safe(
            tier=tier,
            step=known[tier]["step"],
            bytes=known[tier]["bytes"],
            copies=known[tier]["copies"] / known[tier]["ranks"],
            ts_ns=known[tier]["ts_ns"],
        )
        for tier in TIERS
        if tier in known
    ]


def own_file(own: JsonObject | None) -> list[Safe]:
    """Return what the script has saved by itself, as the hub tells it. Nothing, if some rank's part lacks.

    >>> own_file({"step": 9, "bytes": 4, "written_ns": 1, "complete": True})[0].step
    9
    """
    if not own or not own["complete"]:
        return []
    return [Safe(tier=OWN, step=own["step"], bytes=own["bytes"], copies=1.0, ts_ns=own["written_ns"])]


def costs(
    safe: Sequence[Safe], *, last_step: int, step_ns: int, recovery_ns: Sequence[int] = ()
) -> list[Cost]:
    """Return what each kind of failure would cost now. `last_step` is the newest completed step.

    >>> mem = Safe(tier="memory", step=41, bytes=1, copies=1.0, ts_ns=0)
    >>> [(c.failure, c.step, c.lost_steps) for c in costs([mem], last_step=42, step_ns=10)][:2]
    [('a rank', 41, 1), ('a node', -1, 43)]
    """
    pause = int(statistics.median(recovery_ns)) if recovery_ns else None
    return [
        _cost(failure, [s for s in safe if s.tier in tiers], last_step, step_ns, pause)
        for failure, tiers in FAILURES
    ]


def _cost(failure: str, left: Sequence[Safe], last_step: int, step_ns: int, pause: int | None) -> Cost:
    best = max(left, key=lambda s: s.step, default=None)
    step = -1 if best is None else best.step
    lost = max(0, last_step - step)
    return Cost(
        failure=failure,
        tier="" if best is None else best.tier,
        step=step,
        lost_steps=lost,
        lost_ns=lost * step_ns,
        pause_ns=pause,
    )


def headline(safe: Sequence[Safe], failure_costs: Sequence[Cost]) -> str:
    """One sentence: the worst of what a single failure would cost."""
    if not safe:
        return "No step is held by every rank: any failure starts the job from its first step."
    node = failure_costs[1]
    if node.step < 0:
        return "No replica and nothing in storage: the loss of a node starts the job from its first step."
    steps = "1 step" if node.lost_steps == 1 else f"{node.lost_steps} steps"
    where = {"peer": "a peer's memory", OWN: f"the {OWN}"}.get(node.tier, node.tier)
    return f"The loss of a node would cost {steps}: the job would resume from step {node.step} in {where}."


def checkpoint_lines(rows: Sequence[JsonObject]) -> list[JsonObject]:
    """Return one line for each checkpointed step, newest first.

    `stages` holds for each stage how many ranks did it, and the longest time.
    """
    lines: dict[tuple[int, int], JsonObject] = {}
    for row in rows:
        line = lines.setdefault(
            (row["attempt"], row["step"]),
            {"attempt": row["attempt"], "step": row["step"], "bytes": 0, "stages": {}, "ts_ns": 0},
        )
        line["stages"][f"{row['stage']} ({row['tier']})"] = (row["ranks"], row["longest_ns"])
        line["bytes"] = max(line["bytes"], row["bytes"])
        line["ts_ns"] = max(line["ts_ns"], row["ts_ns"])
    return [lines[key] for key in sorted(lines, reverse=True)]
