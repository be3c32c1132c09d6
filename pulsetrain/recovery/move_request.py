"""What a person asks for about a whole job: stop it, let it go on, take it off a node, change its devices."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from pulsetrain.core.errors import UsageError

What = Literal["preempt", "resume", "migrate", "resize", "update"]
WHATS: tuple[str, ...] = get_args(What)
ASKED = tuple(what for what in WHATS if what != "update")
"""Those that a person asks for. The hub itself stops a job for an update."""
WAIT_S = 60.0  # for a checkpoint, where nobody says how long
LONGEST_S = 86400.0


@dataclass(frozen=True, kw_only=True)
class MoveRequest:
    """`node` is the one that a job is taken off. `wait_s` is how long a newer checkpoint is waited for.

    `lose_progress`: also where the job may begin anew. `devices` are those that a job is to use. `nodes`
    are those that it is resumed on, () for those that it has. Raises `UsageError` for other values.
    """

    what: str
    reason: str
    actor: str
    node: str = ""
    wait_s: float = WAIT_S
    lose_progress: bool = False
    devices: int = 0
    nodes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.what not in WHATS:
            raise UsageError(f"what = {self.what!r}: allowed: {', '.join(ASKED)}")
        if (self.what == "migrate") != bool(self.node):
            raise UsageError(f"node = {self.node!r}: {self.what} {_TAKES[bool(self.node)]}")
        if (self.what == "resize") != (self.devices > 0) or self.devices < 0:
            allowed = "1 or more" if self.what == "resize" else f"{self.what} takes no devices"
            raise UsageError(f"devices = {self.devices}: {allowed}")
        if self.nodes and self.what != "resume":
            raise UsageError(f"nodes = {', '.join(self.nodes)}: {self.what} takes no nodes")
        if "" in self.nodes or len(set(self.nodes)) < len(self.nodes):
            raise UsageError(f"nodes = {', '.join(self.nodes)!r}: allowed: the name of each node once")
        if not 0 <= self.wait_s <= LONGEST_S:
            raise UsageError(f"wait_s = {self.wait_s}: allowed: 0 to {LONGEST_S:.0f}")


_TAKES = {True: "takes no node", False: "needs the node to take the job off"}


@dataclass(kw_only=True)
class Hold:
    """One barrier. `number` tells it from others. Times are monotonic seconds.

    `state`: asked until all ranks stand, or missed where they did not come to. `steps`: how many ends of
    steps the last rank came to. `why_not` says what a missed hold waited for. From 0 on, `saved_step` is the
    step that the script itself must have saved. Then one rank that stands is enough. `standing` are those
    that stood when they were looked at last.
    """

    number: int
    began_s: float
    limit_s: float
    attempt: int
    saved_step: int = -1
    state: Literal["asked", "stands", "missed", "over"] = "asked"
    steps: int = 0
    stood_s: float = 0.0
    renewed_s: float = 0.0
    standing: frozenset[int] = frozenset()
    why_not: str = ""

    def row(self) -> dict[str, object]:
        """The hold as an event shows it."""
        took_s = max(0.0, self.stood_s - self.began_s) if self.stood_s else None
        return {
            "acquired": bool(self.stood_s),
            "steps": self.steps,
            "took_s": took_s,
            "why_not": self.why_not,
        }


@dataclass(kw_only=True)
class Image:
    """The processes of a job as they stood after `step`, on `node`. `name` is "" until they are dumped.

    `state`: asked until they are dumped, or missed where they could not be. `bytes` is what was dumped,
    `stored_bytes` what its node keeps, with each page once, and `new_bytes` what the last image had not.
    """

    node: str
    attempt: int
    name: str = ""
    step: int = -1
    state: Literal["asked", "taken", "missed"] = "asked"
    dump_ns: int = 0
    bytes: int = 0
    stored_bytes: int = 0
    new_bytes: int = 0
    why_not: str = ""

    def row(self) -> dict[str, object]:
        """The image as an event shows it."""
        return {
            "node": self.node,
            "taken": self.state == "taken",
            "bytes": self.bytes,
            "stored_bytes": self.stored_bytes,
            "new_bytes": self.new_bytes,
            "why_not": self.why_not,
        }


@dataclass(kw_only=True)
class Move:
    """A pre-emption, a migration or a stop for an update, until the job has stopped or is resumed.

    It waits for a checkpoint of step `newer_than` or later. `asked_in` is the attempt whose ranks were asked
    to save, `acted_in` the one that was stopped, None for none yet. `from_step` is the newest step then.
    `hold` is the barrier at which the ranks are ended, and `held_ns` how long it took until they were.
    `saved_s` is when the script was first seen to have saved by itself.
    `image` is what its processes were dumped into. `restoring`: somebody was about to restore them, and it is
    not known whether they run. `found`: their node has said that they do, or that it restores them.
    `not_stopped` are nodes whose ranks would not end.
    """

    request: MoveRequest
    asked_ns: int
    asked_s: float
    newer_than: int
    asked_in: int | None = None
    acted_in: int | None = None
    saved_ns: int = 0
    hold: Hold | None = None
    image: Image | None = None
    restoring: bool = False
    found: Literal["no", "yes", "taken_over"] = "no"
    held_ns: int = 0
    saved_s: float = 0.0
    from_step: int = -1
    not_stopped: list[str] = field(default_factory=list)

    def row(self) -> dict[str, object]:
        """The move as the API shows it."""
        request = self.request
        return {
            "what": request.what,
            "node": request.node,
            "reason": request.reason,
            "actor": request.actor,
            "asked_ns": self.asked_ns,
            "until_ns": self.asked_ns + int(request.wait_s * 1e9),
            "newer_than": self.newer_than,
            "acts": self.acted_in is not None,
        }
