"""What a job's traffic is like, learned from counters once a second: its period, its usual rate, its pauses.

A port's newest traffic is compared with the learned signature. It is steady, or it dropped, fluctuates or
stopped. Only shares of the port's own past count, so a fast and a slow link are judged alike. Source of the
idea: MegaScale (arXiv 2402.15627) section 4: RDMA traffic of a training job is periodic, a change of it
alarms, and a stop starts recovery.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
State = Literal["learning", "steady", "drop", "fluctuation", "stop"]


QUIET_SHARE = 0.02


@dataclass(frozen=True, kw_only=True)
class SignatureConfig:
    """What counts as a change. Times in seconds."""

    least_s: float = 40.0
    """so much of the past is needed to know what is usual"""
    window_s: float = 5.0
    """traffic is compared in windows of as many periods as last this long, so that steps do not show"""
    recent: int = 3
    """the newest windows, which a drop must last"""
    restless: int = 6
    """the newest windows, which are asked for a fluctuation"""
    quiet_share: float = QUIET_SHARE
    """below this share of the usual rate a second is quiet: the system's own talk goes on"""
    stop_s: float = 10.0
    """quiet for so long is a stop, and for 3 times the longest pause that was seen before"""
    pause_factor: float = 3.0
    drop_share: float = 0.5
    """all newest windows below this share of the usual one are a drop"""
    spread_share: float = 0.25
    """newest windows that differ by more than this share of the usual one fluctuate"""
    spread_factor: float = 3.0
    """and by so many times what three of four windows differed before"""
    correlation: float = 0.3
    """from which a repetition counts as a period"""


@dataclass(frozen=True, kw_only=True)
class Signature:
    """What is usual. `period_s` is None where nothing repeats itself, or faster than once in 2 s."""

    period_s: float | None
    bytes_per_s: float
    spread: float
    longest_quiet_s: float


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """How a port's traffic is now. `ratio` is of the newest windows to the usual one, `quiet_s` since when
    nothing moves. `signature` is None while it is learned."""

    state: State
    ratio: float = 1.0
    quiet_s: float = 0.0
    signature: Signature | None = None


def judge(times_s: Floats, moved_bytes: Floats, config: SignatureConfig | None = None) -> Traffic:
    """Say how traffic is now. `moved_bytes` is cumulative, one entry for each of the rising `times_s`.

    A counter that falls began again at 0. With less than `least_s` before the newest windows: learning.

    >>> seconds = np.arange(120.0)
    >>> judge(seconds, np.cumsum(np.where(seconds < 100, 1e9, 0))).state
    'stop'
    """
    config = config or SignatureConfig()
    rates = _each_second(times_s, moved_bytes)
    if rates.size < config.least_s:
        return Traffic(state="learning")
    quiet_s = _quiet_at_end(rates, config)
    known = rates[: rates.size - int(quiet_s)] if quiet_s >= 2 else rates
    signature, windows, recent = _learn(known, config)
    if signature is None:
        return Traffic(state="learning")
    if quiet_s >= max(
        config.stop_s,
        config.pause_factor * signature.longest_quiet_s,
        2 * (signature.period_s or 0.0),
    ):
        return Traffic(state="stop", ratio=0.0, quiet_s=quiet_s, signature=signature)
    ratio = float(np.median(recent[-config.recent :])) / float(np.median(windows))
    state = _change(signature, windows, recent, config)
    return Traffic(state=state, ratio=round(ratio, 4), quiet_s=quiet_s, signature=signature)


def _each_second(times_s: Floats, moved_bytes: Floats) -> Floats:
    """Bytes moved in each whole second."""
    if times_s.size < 3:
        return np.empty(0)
    steps = np.diff(moved_bytes)
    total = np.concatenate(([0.0], np.cumsum(np.where(steps >= 0, steps, moved_bytes[1:]))))
    grid = np.arange(times_s[0], times_s[-1] + 1e-9, 1.0)
    return np.asarray(np.diff(np.interp(grid, times_s, total)), np.float64)


def _usual(rates: Floats) -> float:
    """The rate of a second in which something moves."""
    moving = rates[rates > 0.1 * rates.max(initial=0.0)]
    return float(np.median(moving)) if moving.size else 0.0


def _quiet_at_end(rates: Floats, config: SignatureConfig) -> float:
    loud = np.flatnonzero(rates > config.quiet_share * _usual(rates))
    return float(rates.size - 1 - loud[-1]) if loud.size else float(rates.size)


def _learn(rates: Floats, config: SignatureConfig) -> tuple[Signature | None, Floats, Floats]:
    """The signature of all but the newest windows, and both as sums."""
    period = _period(rates[: rates.size * 3 // 4], config)
    unit = period or 1.0
    width = max(1, round(np.ceil(config.window_s / unit) * unit))
    count = rates.size // width
    sums = rates[rates.size - count * width :].reshape(count, width).sum(axis=1)
    past, recent = sums[: -config.restless], sums[-config.restless :]
    usual = float(np.median(past)) if past.size else 0.0
    if past.size * width < config.least_s / 2 or usual <= 0:
        return None, past, recent
    spread = 1.4826 * float(np.median(np.abs(past - usual))) / usual
    before = rates[: past.size * width]
    signature = Signature(
        period_s=period,
        bytes_per_s=usual / width,
        spread=spread,
        longest_quiet_s=_longest_quiet(before, config),
    )
    return signature, past, recent


def _period(rates: Floats, config: SignatureConfig) -> float | None:
    """After how many seconds the traffic repeats itself, by its autocorrelation."""
    if rates.size < 12:
        return None
    centred = rates - rates.mean()
    power = float(centred @ centred)
    longest = rates.size // 3
    if longest < 4 or power <= 1e-9 * float(rates @ rates):
        return None
    lags = [float(centred[lag:] @ centred[: rates.size - lag]) / power for lag in range(longest)]
    for lag in range(2, longest - 1):
        if lags[lag] >= config.correlation and lags[lag - 1] <= lags[lag] >= lags[lag + 1]:
            return float(lag)
    return None


def _longest_quiet(rates: Floats, config: SignatureConfig) -> float:
    """The longest pause. What was before the job's first traffic is none."""
    still = rates <= config.quiet_share * _usual(rates)
    quiet = still[int(np.argmin(still)) :].astype(np.int8)
    edges = np.flatnonzero(np.diff(np.concatenate(([0], quiet, [0]))))
    return float((edges[1::2] - edges[::2]).max(initial=0))


def _change(signature: Signature, past: Floats, recent: Floats, config: SignatureConfig) -> State:
    usual, newest = float(np.median(past)), recent[-config.recent :]
    if (newest < config.drop_share * usual).all() and 1 - newest.max() / usual > 4 * signature.spread:
        return "drop"
    limit = max(config.spread_share, config.spread_factor * typical_change(past))
    return "fluctuation" if recent.std() / usual > limit and crossings(recent) >= 2 else "steady"


def typical_change(windows: Floats) -> float:
    """By what share of their median three of four windows differ from it at most."""
    usual = float(np.median(windows))
    return float(np.quantile(np.abs(windows - usual), 0.75)) / usual if usual > 0 else 0.0


def crossings(windows: Floats) -> int:
    """How often windows cross the middle between their smallest and their largest. A drop crosses it once.

    >>> crossings(np.array([9.0, 9.0, 1.0, 1.0])), crossings(np.array([1.0, 9.0, 2.0, 8.0]))
    (1, 3)
    """
    above = windows > (windows.min() + windows.max()) / 2
    return int(np.sum(above[1:] != above[:-1]))
