"""How sure the straggler analyzer must be before it names a rank or node."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class StragglerConfig:
    """Windows and thresholds. Ratios are excess compute time: 0.2 is 20 % slower."""

    windows: tuple[int, ...] = (10, 20, 30, 50, 200)
    """lengths of the windows, in steps"""
    short: int = 20
    """a window with fewer steps than this needs a larger slowdown, see `short_floor`"""
    short_floor: float = 0.2
    """least slowdown that a short window can show, as a ratio"""
    lasting: int = 5
    """stretches of `short` steps in which a rank without a cohort must be slower than it was, before a
    slowdown below `short_floor` is more than information"""
    steps_needed: int = 16
    """with fewer usable steps the verdict is inconclusive"""
    false_alarms: float = 5e-4
    """expected false alarms of all tests of one look together. The hub looks again and again, mostly at the
    same steps"""
    floor_ratio: float = 0.015
    """slowdowns below this ratio are never reported"""
    noise_share: float = 0.3
    """slowdowns below this share of the noise of one step are never reported"""
    noisy_share: float = 3.0
    """`noise_share` on an oversubscribed host, where scheduling favours some ranks by chance. It holds for a
    window of `short` steps and falls with the square root of the window's length."""
    noisy_floor: float = 0.25
    """slowdown that is never explained by chance of scheduling, as a ratio"""
    still_share: float = 1 / 3
    """a rank is slow now where the newest steps of a window show at least this share of its excess in the
    whole of it. A long window remembers who was slow before"""
    alike: float = 0.5
    """in a slow node, each rank has at least this share of the excess of the node's slowest rank"""
    noisy_alone: float = 1.5
    """on an oversubscribed host, one rank needs this many times the margin that a node of several needs:
    chance rarely slows two ranks at once"""
    warning_ratio: float = 0.05
    """slowdown from which a finding is a warning, as a ratio"""
    held_windows: tuple[tuple[int, float], ...] = ((6, 0.8), (10, 0.6), (20, 0.4))
    """newest steps in which it is looked for ranks that something stops, and the share that must stand out"""
    held_rounds_s: float = 5.0
    """where rounds of collectives stand for steps, the least time in which it is looked for such ranks"""
    held_rounds: float = 0.6
    """and the least share of the rounds that must stand out"""
    held_step: float = 0.1
    """time off its processor beyond the others', over the usual compute, from which a step stands out"""
    held_ratio: float = 0.12
    """least mean time off its processor beyond the others', over the usual compute"""
    queue_windows: tuple[tuple[int, float], ...] = ((10, 0.25), (20, 0.3))
    """newest steps in which it is looked for ranks that came to queue for a processor, and by how much even
    the quick ones must queue longer than before, over the usual compute"""
    queue_past: int = 60
    """steps before, with which they are compared"""
    starved_steps: int = 30
    """newest steps in which it is looked for ranks that are starved of their processor where all queue"""
    starved_ratio: float = 0.3
    """least mean time in a run queue beyond the others', over the usual compute"""
    starved_doubt: float = 0.1
    """least such time of a rank that may be starved: nobody is healthy beside it"""
    starved_gap: float = 0.05
    """how far a rank's short queues lie above the others' long ones, over the usual compute"""
    starved_floor: float = 0.03
    """where ranks wait for processors for a third of their compute and more, the least slowdown of the whole
    of it, waits included"""
    starved_margin: float = 6.0
    """standard errors that this excess must exceed"""
    critical_ratio: float = 0.3
    """slowdown from which a finding is critical, as a ratio"""
