"""Where a rank is: its status page and its groups' cells, decoded."""

from __future__ import annotations

from dataclasses import dataclass

from pulsetrain.collectors.checkpoint_cell import CheckpointCell
from pulsetrain.collectors.layout import WAITING
from pulsetrain.records.schema import CATEGORIES


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenPhase:
    """A phase (`waiting`: a wait for an operation) that had not ended. `start_ns` is on the ring's clock.

    `group` is the process group of the operation that is waited for, "" for a phase.
    """

    name: str
    category: str
    start_ns: int
    waiting: bool
    group: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupCell:
    """One process group as its rank last saw it. `op` is "" if nothing is in flight.

    `timeout_ns`: after which torch ends an operation, 0 if unknown. `on_device`: operations end on a device,
    and their end is only seen when the rank looks.
    """

    name: str
    members: tuple[int, ...]
    enqueued: int
    completed: int
    op: str
    op_seq: int
    op_bytes: int
    op_start_ns: int
    op_peer: int
    timeout_ns: int = 0
    on_device: bool = False

    @property
    def gone(self) -> bool:
        """Whether the cell is empty: its group was destroyed."""
        return not self.name and not self.members


@dataclass(frozen=True, kw_only=True, slots=True)
class StatusPage:
    """Where the rank is. `last_ns`: when it last recorded anything. `stack`: from outermost to innermost.

    `resumed_step`: the step that this attempt goes on from, -1 for none. `saved` and `loaded`: the newest
    checkpoint that the script itself wrote and read.
    """

    pid: int
    step: int
    last_step: int
    step_start_ns: int
    last_ns: int
    utc_offset_ns: int
    dropped: int
    errors: int
    stack: tuple[OpenPhase, ...]
    groups: tuple[GroupCell, ...]
    resumed_step: int = -1
    saved: CheckpointCell | None = None
    loaded: CheckpointCell | None = None


def open_phase(head: int, start: int, names: list[str]) -> OpenPhase:
    """Decode one entry of the stack."""
    category = min(head >> 8 & 0xFF, len(CATEGORIES) - 1)
    waiting = bool(head & WAITING)
    return OpenPhase(
        name=name_of(names, head >> 16 & 0xFFFF),
        category=CATEGORIES[category],
        start_ns=start,
        waiting=waiting,
        group=name_of(names, (head & ~WAITING) >> 48 & 0xFFFF) if waiting else "",
    )


def name_of(names: list[str], index: int) -> str:
    """Return the name, "" for an index that is out of range."""
    return names[index] if 0 <= index < len(names) else ""
