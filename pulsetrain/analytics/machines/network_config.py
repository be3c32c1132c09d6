"""What counts as trouble of a port."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """Limits of `network`, with the source where there is one."""

    drop_ratio: float = 0.5
    """a step's traffic below this share of its usual traffic is a drop"""
    drop_windows: int = 3
    """windows in a row that must have dropped"""
    spread_windows: int = 6
    """so many newest windows are asked whether traffic fluctuates"""
    spread_share: float = 0.25
    """windows whose standard deviation is above this share of the usual traffic fluctuate"""
    spread_factor: float = 3.0
    """and above so many times what three of four windows differed by before"""
    stop_s: float = 10.0
    """a port that carried traffic and then none for this long has stopped"""
    pause_factor: float = 3.0
    """and for so many times its longest pause before"""
    least_bytes_per_s: float = 1e6
    """a port that carried less before is not the job's"""
    down_s: float = 30.0
    """a port that has not been active for this long is down"""
    flaps: int = 3
    """a link that went down this often in the range flaps (gpud 4a8de33)"""
    errors_per_minute: float = 1.0
    """link errors from which a cable is suspect"""
    outlier_ratio: float = 5.0
    """a port stands out with this many times the fleet's median of congestion or retransmission per byte"""
    outlier_sigmas: float = 6.0
    """and with this many robust sigmas above it"""
    least_events: float = 100.0
    """smaller increases are too few to compare"""
