"""Plans with published measurements."""

from __future__ import annotations

from pulsetrain.simulate.recovery_plan import RecoveryPlan


def gemini(per_day: float, machines: int = 16) -> RecoveryPlan:
    """Gemini's own measurements: detect 15 s, serialise 162 s, warm up 240 s, an iteration of 62 s."""
    return RecoveryPlan(
        machines=machines,
        failures_per_machine_day=per_day / machines,
        memory_interval_s=62,
        memory_save_s=62,
        detect_s=15,
        peer_fetch_s=162,
        warm_up_s=240,
        storage_fetch_s=481,
        days=60,
    )


def high_frequency(per_day: float) -> RecoveryPlan:
    """Storage alone, as often as 20 Gbit/s allow: 9.4 GB x 128 in 481 s, after 81 s of serialising."""
    down_s = 15 + 481 + 240
    running = per_day / (1 - per_day * down_s / 86400)  # so that so many hit a job that runs
    return RecoveryPlan(
        memory=False,
        failures_per_machine_day=running / 16,
        storage_interval_s=562,
        storage_stall_s=81,
        storage_save_s=562,
        storage_fetch_s=481,
        detect_s=15,
        warm_up_s=240,
        days=60,
    )
