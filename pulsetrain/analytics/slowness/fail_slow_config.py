"""How much slower, and for how long, a rank or job must be to count as fail-slow."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Scale:
    """One window length. Short windows are noisier, so they need a larger change."""

    width: int
    step_floor: float
    step_sigmas: float
    drifts: bool


@dataclass(frozen=True, kw_only=True)
class FailSlowConfig:
    """Window lengths and thresholds."""

    scales: tuple[Scale, ...] = (
        Scale(width=10, step_floor=0.11, step_sigmas=5.0, drifts=False),
        Scale(width=20, step_floor=0.10, step_sigmas=4.5, drifts=True),
        Scale(width=60, step_floor=0.10, step_sigmas=4.5, drifts=True),
    )
    """window lengths in steps, each with the least change (ratio) and the least number of sigmas"""
    drift_floor: float = 0.075
    """least rise over the lower quartile of the history, as a ratio"""
    peers_floor: float = 0.05
    """a rank must also be slower than its peers by this ratio"""
    lasting_steps: int = 8
    """a slowdown that lasts fewer steps does not count"""
    low_share: float = 0.5
    """share of the slowdown that the lower quartile of the steps must show too"""
    history_windows: int = 2000
    """how many past window medians make the baseline, the newest ones"""
    most_suspects: int = 256
    """ranks that are searched closely: those that a quick look over all ranks finds worst"""
