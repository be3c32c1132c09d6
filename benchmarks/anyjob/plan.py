"""Which ranks are made slower when, and how: deterministic by seed. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from anyjob.launch import Script

FACTORS = (1.3, 2.0)
EPISODES_A_SESSION = 5
STEPS = 30
"""of an episode, and of a clean window"""


@dataclass(frozen=True, kw_only=True)
class Episode:
    """One slow-down: these ranks, in this way, by this factor, after `lead` further clean steps."""

    struck: tuple[int, ...]
    way: str
    factor: float
    lead: int


@dataclass(frozen=True, kw_only=True)
class Session:
    """One launch of a script: its episodes, each after a clean window, and clean windows after them.

    `variant` says how the script is run: ``untouched`` or ``instrumented``.
    """

    number: int
    script: Script
    variant: str
    pinned: bool
    episodes: tuple[Episode, ...]
    clean: int = 0

    @property
    def key(self) -> str:
        """What makes it the same session in another run."""
        return f"{self.script.name}/{self.variant}/{'pinned' if self.pinned else 'free'}/{self.number}"


def episode(draw: random.Random, script: Script, ways: Sequence[str], *, cores: int) -> Episode:
    """Return one episode. A competitor strikes all ranks of its core, and they are pinned in blocks."""
    rank, way = draw.randrange(script.ranks), draw.choice(list(ways))
    on_core = -(-script.ranks // cores)
    first = rank - rank % on_core
    struck = tuple(range(first, min(first + on_core, script.ranks))) if way == "competitor" else (rank,)
    return Episode(struck=struck, way=way, factor=round(draw.uniform(*FACTORS), 2), lead=draw.randrange(6))


def sessions(
    script: Script, variant: str, *, trials: int, clean: int, seed: int, ways: Sequence[str], cores: int
) -> list[Session]:
    """Return the sessions of one script with so many episodes, and at least so many clean windows.

    Every other session is pinned. A competitor needs a pinned one.
    """
    counts = [EPISODES_A_SESSION] * (trials // EPISODES_A_SESSION)
    counts += [trials % EPISODES_A_SESSION] if trials % EPISODES_A_SESSION else []
    more = max(0, clean - trials)
    counts += [] if counts or not more else [0]
    result = []
    for number, count in enumerate(counts):
        draw = random.Random(f"{seed}/{script.name}/{variant}/{number}")
        pinned = number % 2 == 0
        allowed = [way for way in ways if pinned or way != "competitor"]
        result.append(
            Session(
                number=number,
                script=script,
                variant=variant,
                pinned=pinned,
                episodes=tuple(episode(draw, script, allowed, cores=cores) for _ in range(count)),
                clean=more // len(counts) + (number < more % len(counts)),
            )
        )
    return result
