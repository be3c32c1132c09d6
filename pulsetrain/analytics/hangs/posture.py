"""How one rank stands over several readings of its stack: in one place, moving, or under a held GIL. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pulsetrain.analytics.hangs.stacks import FrameKeys, key


@dataclass(frozen=True, kw_only=True)
class StackSample:
    """One reading of one rank. `frames` are those of the main thread, outermost first.

    `gil` is the thread that holds the interpreter lock, "" for none, and `gil_frames` are its frames. `place`
    is the innermost frame of the user's own code, "" where it is unknown. `helper` is a thread that the main
    one may wait for (`thread_waits`). `locked`: its innermost frame may be a wait for a lock of Python's own.
    `idle_line`: that line calls and computes nothing. `device_line`: it has a call that waits for a device.
    `cut`: there are more threads than were read. `at_ns` is on any clock that never jumps.
    """

    rank: int
    at_ns: int
    frames: tuple[str, ...]
    gil: str = ""
    gil_frames: tuple[str, ...] = ()
    place: str = ""
    helper: str = ""
    locked: bool = True
    idle_line: bool = False
    device_line: bool = False
    cut: bool = False

    @property
    def where(self) -> FrameKeys:
        """What must not change while a rank stands in one place: every line but that of the innermost frame.

        A loop moves between the lines of its own function.
        """
        return (*self.frames[:-1], *key(self.frames[-1:]))


@dataclass(frozen=True, kw_only=True)
class Posture:
    """What the readings of one rank say together. Times are nanoseconds on the clock of the readings.

    `since_ns` is the first of the newest readings that all have the same stack, and `samples` counts them.
    `leaves` are the innermost frames of these readings, with their lines. `gil_since_ns` and `gil_samples`
    say the same of one thread that holds the GIL in every reading and does not move.
    """

    newest: StackSample
    since_ns: int
    samples: int = 1
    leaves: frozenset[str] = frozenset()
    gil_since_ns: int = 0
    gil_samples: int = 0

    @property
    def same_ns(self) -> int:
        """How long all readings had the same stack."""
        return self.newest.at_ns - self.since_ns

    @property
    def gil_held_ns(self) -> int:
        """How long one thread held the GIL in every reading, 0 for not at all."""
        return self.newest.at_ns - self.gil_since_ns if self.gil_samples else 0

    def then(self, sample: StackSample) -> Posture:
        """Return the posture with one more reading."""
        before = self.newest
        same = sample.where == before.where
        held = bool(sample.gil) and (sample.gil, key(sample.gil_frames)) == (
            before.gil,
            key(before.gil_frames),
        )
        first = begin(sample)
        return replace(
            first,
            leaves=first.leaves | self.leaves if same else first.leaves,
            since_ns=self.since_ns if same else sample.at_ns,
            samples=self.samples + 1 if same else 1,
            gil_since_ns=self.gil_since_ns if held else sample.at_ns,
            gil_samples=self.gil_samples + 1 if held else int(bool(sample.gil)),
        )


def begin(sample: StackSample) -> Posture:
    """Return the posture after the first reading.

    >>> sample = StackSample(rank=0, at_ns=5, frames=("main (a.py:1)",))
    >>> begin(sample).then(StackSample(rank=0, at_ns=9, frames=("main (a.py:2)",))).same_ns
    4
    """
    return Posture(
        newest=sample,
        since_ns=sample.at_ns,
        leaves=frozenset(sample.frames[-1:]),
        gil_since_ns=sample.at_ns,
        gil_samples=int(bool(sample.gil)),
    )


@dataclass
class Postures:
    """The postures of the ranks of one attempt that are read now."""

    by_rank: dict[int, Posture] = field(default_factory=dict)

    def note(self, sample: StackSample) -> None:
        """Take one reading. Readings of a rank come in order of time."""
        known = self.by_rank.get(sample.rank)
        self.by_rank[sample.rank] = known.then(sample) if known else begin(sample)

    def forget(self) -> None:
        """The job moved: what was read says nothing about the next silence."""
        self.by_rank = {}
