"""How often to save: what a failure costs at each interval, and the interval that costs least."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pulsetrain.core.errors import UsageError


def wasted_s(save_s: float, interval_s: float, retrieve_s: float) -> float:
    """Mean time that one failure throws away: the save in flight, half an interval, and fetching (Gemini,
    equation 1).

    >>> wasted_s(42, 42, 42)  # a checkpoint takes 42 minutes, and the next one starts at once
    105.0
    """
    return save_s + interval_s / 2 + retrieve_s


def shortest_interval_s(save_s: float, step_s: float) -> float:
    """A checkpoint begins after the one before it has ended, and not more than once a step."""
    return max(save_s, step_s)


def young_s(mttf_s: float, stall_s: float) -> float:
    """Interval that wastes least where a save stops training for `stall_s` (Young 1974): sqrt(2 * MTTF *
    stall)."""
    return math.sqrt(2 * mttf_s * stall_s)


def most_available_s(mttf_s: float, recover_s: float, stall_s: float) -> float:
    """Interval of the highest availability where recovery takes `recover_s` (arXiv 2410.18124)."""
    return stall_s + math.sqrt(2 * (mttf_s + recover_s) * stall_s + stall_s**2)


def job_mttf_s(mttf_s: float | None, failures_per_node_day: float | None, nodes: int) -> float:
    """Mean time between failures of a whole job, given as such or by its nodes. Raises `UsageError`.

    >>> job_mttf_s(None, 0.01, 100)
    86400.0
    """
    if (mttf_s is None) == (failures_per_node_day is None):
        raise UsageError("give one of --mttf-s and --failures-per-node-day")
    if mttf_s is not None:
        return mttf_s
    assert failures_per_node_day is not None, "one of the two is given"
    if failures_per_node_day <= 0 or nodes < 1:
        raise UsageError(
            f"--failures-per-node-day {failures_per_node_day}, --nodes {nodes}: allowed: above 0, and from 1"
        )
    return 86400.0 / (failures_per_node_day * nodes)


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What to set, why, and the share of time that is lost then (ratio 0..1)."""

    interval_s: float
    every_steps: int
    reason: str
    lost_ratio: float


def advise(
    *, step_s: float, stall_s: float, save_s: float, mttf_s: float, recover_s: float, detect_s: float = 0.0
) -> Advice:
    """The interval to save at. All times are in seconds.

    `save_s` is the time until a checkpoint is safe, `stall_s` the part of it that training waits for, and
    `mttf_s` the mean time between failures of the whole job. `detect_s` is how long a silent error may stay
    unnoticed. 0: every error is noticed at once.

    >>> advise(step_s=1, stall_s=0.0, save_s=0.5, mttf_s=10000, recover_s=30).every_steps
    1
    """
    if min(step_s, mttf_s) <= 0 or min(stall_s, save_s, recover_s, detect_s) < 0:
        raise UsageError("interval: allowed: step_s and mttf_s above 0, the others 0 or more")
    floor = shortest_interval_s(save_s, step_s)
    best = most_available_s(mttf_s, recover_s, stall_s)
    choices = [
        (floor, "no save may begin before the one before it is safe, nor more than one a step"),
        (best, "balances the stall of saving against the work that a failure loses"),
        (detect_s, "a checkpoint must be older than a silent error that is only noticed later"),
    ]
    wanted, reason = max(choices)
    steps = max(1, math.ceil(wanted / step_s - 1e-9))
    interval = steps * step_s
    lost = (stall_s / interval) + (wasted_s(save_s, interval, recover_s)) / mttf_s
    return Advice(interval_s=interval, every_steps=steps, reason=reason, lost_ratio=min(1.0, lost))
