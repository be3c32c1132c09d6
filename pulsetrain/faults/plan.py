"""What happens where: faults as data, written to and read from the environment."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pulsetrain.core.errors import ConfigError

ENVIRONMENT = "PULSETRAIN_FAULTS"

MOMENTARY = (
    "exception", "cuda_error", "exit", "abort", "segfault", "sigkill", "sigterm", "sigstop", "hang",
    "out_of_memory", "kill_child", "stop_child", "desync", "gc_pause",
)  # fmt: skip
LASTING = ("sleep", "busy", "hold_gil", "slow_link", "slow_group", "file_limit")
VALUES = ("nan", "inf", "loss_spike", "bit_flip")
WORK = ("slow", "uneven")
KINDS = (*MOMENTARY, *LASTING, *VALUES, *WORK)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault of one rank. Raises `ConfigError` for what cannot be."""

    kind: str
    """One of `KINDS`."""
    rank: int
    """Global rank that has the fault."""
    step: int
    """First step of the fault, as the script counts steps."""
    until: int = -1
    """Last step of the fault; -1: only `step`."""
    phase: str = ""
    """Point in the step, as the script names it; empty: the first point of the step."""
    attempt: int = 0
    """Attempt of the job that has the fault; -1: every attempt, as with a machine that stays broken."""
    seconds: float = 0.0
    """How long it lasts each time (sleep, busy, hold_gil, gc_pause), or the delay of each send (slow_link) or
    operation (slow_group)."""
    code: int = 1
    """Exit code for `exit`. For `uneven`, ranks with the same number get the same lengths."""
    text: str = ""
    """Message for `exception` and `cuda_error`; empty: a realistic one. For `slow_group`, the description of
    the process group."""
    factor: float = 10.0
    """Factor of `loss_spike` and `slow`. For `uneven`, the standard deviation of the logarithm of lengths."""
    size_bytes: int = 0
    """Limit for `file_limit`: writing a file beyond it fails with "File too large"."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"fault kind {self.kind!r}: allowed {', '.join(sorted(KINDS))}")
        if self.rank < 0 or self.step < 0:
            raise ConfigError(f"fault {self.kind}: rank {self.rank} and step {self.step} must be 0 or more")
        if self.until >= 0 and self.until < self.step:
            raise ConfigError(f"fault {self.kind}: until {self.until} lies before step {self.step}")
        if self.seconds < 0:
            raise ConfigError(f"fault {self.kind}: seconds {self.seconds} must be 0 or more")

    @property
    def last_step(self) -> int:
        """The last step of the fault."""
        return max(self.step, self.until)

    def strikes(self, *, rank: int, step: int, attempt: int) -> bool:
        """Whether this rank has the fault in this step of this attempt, in whichever phase."""
        launched = self.attempt in (-1, attempt)
        return launched and rank == self.rank and self.step <= step <= self.last_step


def dump(faults: Iterable[Fault]) -> str:
    """The faults as the value of `PULSETRAIN_FAULTS`.

    >>> load({ENVIRONMENT: dump([Fault(kind="sleep", rank=3, step=7, seconds=0.1)])})[0].rank
    3
    """
    return json.dumps([dataclasses.asdict(f) for f in faults], separators=(",", ":"))


def load(environ: Mapping[str, str] = os.environ) -> tuple[Fault, ...]:
    """The faults that the environment asks for. Raises `ConfigError` for any other text."""
    text = environ.get(ENVIRONMENT, "")
    if not text:
        return ()
    try:
        rows = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{ENVIRONMENT} = {text[:60]!r}: not JSON ({error})") from error
    if not isinstance(rows, list):
        raise ConfigError(f"{ENVIRONMENT} = {text[:60]!r}: not a list of faults")
    return tuple(_fault(row) for row in rows)


def _fault(row: object) -> Fault:
    names = [f.name for f in dataclasses.fields(Fault)]
    if not isinstance(row, dict) or not {"kind", "rank", "step"} <= row.keys():
        raise ConfigError(f"{ENVIRONMENT}: {str(row)[:60]} is no fault; needed: kind, rank, step")
    unknown = sorted(row.keys() - set(names))
    if unknown:
        raise ConfigError(f"{ENVIRONMENT}: unknown key {unknown[0]!r}; allowed: {', '.join(sorted(names))}")
    return Fault(**row)
