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

    `variant` says how the script is run: ``untouched`` or ``instrumented``. `pinned`: each rank to a core.
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


def episode(draw: random.Random, script: Script, ways: Sequence[str]) -> Episode:
    """Return one episode of one rank."""
    rank, way = draw.randrange(script.ranks), draw.choice(list(ways))
    return Episode(struck=(rank,), way=way, factor=round(draw.uniform(*FACTORS), 2), lead=draw.randrange(6))


def sessions(
    shared: Script, own_core: Script, variant: str, *, trials: int, clean: int, seed: int, ways: Sequence[str]
) -> list[Session]:
    """Return the sessions of one script with so many episodes, and at least so many clean windows.

    In every other session each rank is pinned to a core of its own, as `own_core` says how to start it. Only
    there a competitor slows down one rank by a known factor. In the others ranks share cores as they like.
    """
    counts = [EPISODES_A_SESSION] * (trials // EPISODES_A_SESSION)
    counts += [trials % EPISODES_A_SESSION] if trials % EPISODES_A_SESSION else []
    more = max(0, clean - trials)
    counts += [] if counts or not more else [0]
    result = []
    for number, count in enumerate(counts):
        draw = random.Random(f"{seed}/{shared.name}/{variant}/{number}")
        pinned = number % 2 == 0
        script = own_core if pinned else shared
        allowed = [way for way in ways if pinned or way != "competitor"]
        result.append(
            Session(
                number=number,
                script=script,
                variant=variant,
                pinned=pinned,
                episodes=tuple(episode(draw, script, allowed) for _ in range(count)),
                clean=more // len(counts) + (number < more % len(counts)),
            )
        )
    return result
