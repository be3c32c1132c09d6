"""What agents and the hub say to each other over the control connection (one WebSocket for each agent).

Every message is one JSON object ``{"type": ..., ...fields}``. Only `encode` writes them, only `decode` reads
them. Times are UTC nanoseconds, ages and durations are nanoseconds, ranks are global. An agent sends reports.
The hub sends commands: each has an `id`, and the agent answers it with exactly one `Reply`.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pulsetrain.core.errors import CorruptData
from pulsetrain.core.json import JsonObject
from pulsetrain.core.supervisor import LoopStatus

ProcessState = Literal["running", "sleeping", "disk", "stopped", "zombie", "gone"]
LISTED_MEMBERS = 16  # of a group. Of a larger one that is evenly spaced, first, distance and number are sent
MOST_MEMBERS = 1 << 20
Tier = Literal["memory", "peer", "storage"]


@dataclass(frozen=True, kw_only=True)
class GroupStatus:
    """Where one rank stands in one process group. `op` is the oldest operation in flight, "" for none.

    `timeout_s`: after which torch ends an operation by itself, 0 if unknown.
    """

    group: str
    members: tuple[int, ...]
    enqueued: int
    completed: int
    op: str = ""
    op_seq: int = -1
    op_bytes: int = 0
    op_age_ns: int = 0
    peer: int = -1  # global rank of the other side of a send or recv; -1: a collective
    timeout_s: int = 0


@dataclass(frozen=True, kw_only=True)
class OwnCheckpoint:
    """A checkpoint that the training script itself wrote or read, as one rank saw it.

    `step` is the last step that it contains, -1 if unknown. `bytes` is what its files hold on disk. `path` is
    the newest file, or the folder. `file_bytes` and `file_mtime_ns` tell it even after it was renamed.
    """

    step: int
    bytes: int
    path: str
    written_ns: int
    duration_ns: int = 0
    files: int = 1
    file_bytes: int = 0
    file_mtime_ns: int = 0


@dataclass(frozen=True, kw_only=True)
class RankStatus:
    """The last thing a rank did, read from its ring by the agent (also when it is stopped or dead).

    `progress` counts everything the rank ever recorded in this attempt. `progress_age_ns` is the time since
    it last rose. `resumed_step` is the step that the attempt goes on from, -1 if it began with its first.
    `instrumentation` is what the rank says of its own instrumentation, a JSON object. "": nothing new.
    `saved` and `loaded` hold the newest checkpoint that the script itself wrote and read, if there is one.
    """

    rank: int
    local_rank: int
    pid: int
    state: ProcessState
    last_step: int
    last_phase: str
    phase_age_ns: int
    progress: int
    progress_age_ns: int
    groups: tuple[GroupStatus, ...] = ()
    dropped: int = 0
    resumed_step: int = -1
    saved: tuple[OwnCheckpoint, ...] = ()
    loaded: tuple[OwnCheckpoint, ...] = ()
    instrumentation: str = ""


@dataclass(frozen=True, kw_only=True)
class RankActivity:
    """How busy the processes of a silent rank are. Rates are those of about the last second.

    `cpu_ratio` counts cores of the rank's own process, `helper_cpu_ratio` those of its children (loaders,
    compilers). `io_bytes_s` is what all of them read and wrote, `faults_s` the rank's page faults. `still_ns`
    is the time since any of these was above the noise. `waits_in` is what its main thread waits in: "sleep",
    "poll", "read", "lock", "child", "other", "" for none or unknown. `traced`: a debugger is attached.
    """

    rank: int
    cpu_ratio: float
    helper_cpu_ratio: float
    io_bytes_s: float
    still_ns: int
    faults_s: float = 0.0
    waits_in: str = ""
    traced: bool = False


@dataclass(frozen=True, kw_only=True)
class Held:
    """A checkpoint of one rank that this node could restore now."""

    rank: int
    step: int
    tier: Tier


@dataclass(frozen=True, kw_only=True)
class Hello:
    """First message of an agent, also after each reconnect. `attempt` is -1 while it runs no ranks."""

    node: str
    address: str
    job: str
    pid: int
    nproc_per_node: int
    nnodes: int
    max_restarts: int
    peer_port: int
    attempt: int = -1
    node_rank: int = -1
    ranks: tuple[int, ...] = ()
    standby: bool = False
    version: str = ""


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """Sent every second, and at once when something changed."""

    node: str
    seq: int
    ts_ns: int
    job: str
    attempt: int
    ranks: tuple[RankStatus, ...] = ()
    held: tuple[Held, ...] = ()
    gauges: Mapping[str, float] = field(default_factory=dict)  # spool_bytes, dropped_rows, cpu_ratio, ...
    loops: tuple[LoopStatus, ...] = ()  # the agent's own loops; none from an older agent
    activity: tuple[RankActivity, ...] = ()  # of silent ranks alone


@dataclass(frozen=True, kw_only=True)
class RankExit:
    """A rank ended. `code` is the exit code, or minus the signal's number. `last_lines` end its stderr."""

    node: str
    ts_ns: int
    job: str
    attempt: int
    rank: int
    pid: int
    code: int
    last_lines: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FirstStep:
    """All of a node's ranks have completed their first step of this attempt.

    `stages_ns` are spawn, init, load and step of the node's slowest rank. `resumed_step` and `resumed_path`
    say from which step its ranks go on, and from which file of the script's own. -1 and "": from none.
    """

    node: str
    ts_ns: int
    attempt: int
    step: int
    stages_ns: Mapping[str, int] = field(default_factory=dict)
    resumed_step: int = -1
    resumed_path: str = ""


@dataclass(frozen=True, kw_only=True)
class Leaving:
    """The agent ends on request, not because of a fault. Its ranks end with it.

    `signal` is the name of the signal that ended it, "" for none. It is sent before the first rank is ended.
    """

    node: str
    reason: str
    signal: str = ""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """The one answer to a command. `error` is one line, "" when it was done."""

    id: int
    node: str
    error: str = ""
    data: JsonObject = field(default_factory=dict)


def ranks_of_node(node_rank: int, nproc: int) -> range:
    """Global ranks of one node. Every node of a job runs the same number of ranks, `nproc`."""
    return range(node_rank * nproc, (node_rank + 1) * nproc)


@dataclass(frozen=True, kw_only=True)
class WorldNode:
    """One node of an attempt's world."""

    node: str
    node_rank: int
    address: str
    peer_port: int
    nproc: int

    @property
    def ranks(self) -> range:
        """Global ranks that run on this node."""
        return ranks_of_node(self.node_rank, self.nproc)


@dataclass(frozen=True, kw_only=True)
class HostStore:
    """Start (or keep) the rendezvous store on this node. `data` of the reply is {"port": int}."""

    id: int
    job: str


@dataclass(frozen=True, kw_only=True)
class Start:
    """Launch this node's ranks. The store prefix is `attempt`. `restore_step` is -1 for a fresh start.

    The agent first brings each of its ranks' checkpoints of `restore_step` into that rank's arena, from
    `sources[rank]`: "memory", "storage", or "peer:NODE". `data` of the reply is {"load_ns": {rank: ns}}.
    `own_checkpoints` are files that the script wrote in earlier attempts, newest first.
    """

    id: int
    job: str
    attempt: int
    node_rank: int
    world: tuple[WorldNode, ...]
    store_address: str
    store_port: int
    restore_step: int = -1
    sources: Mapping[str, str] = field(default_factory=dict)  # keys are ranks, as JSON has them
    own_checkpoints: tuple[OwnCheckpoint, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Stop:
    """End this node's ranks: SIGTERM and SIGCONT, SIGKILL after `grace_s`. Replied once none is left."""

    id: int
    reason: str
    grace_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class SelfCheck:
    """Run the short self-check on this node. `data` of the reply is the suite's report."""

    id: int
    seconds: float = 1.0


@dataclass(frozen=True, kw_only=True)
class PairCheck:
    """Run the all-gather of one round with these peers. `members` are node names, in rank order.

    `data` of the reply is {"ok": bool, "seconds": float}. A timeout is a failed check, not an error.
    """

    id: int
    members: tuple[str, ...]
    store_address: str
    store_port: int
    prefix: str
    timeout_s: float = 5.0


@dataclass(frozen=True, kw_only=True)
class DumpStacks:
    """Read where the Python code of this node's ranks stands. The ranks are not disturbed.

    `data` of the reply is {"stacks": [{"thread", "frames", "ranks"}], "blind": {rank: why not}, "details":
    {rank: {"gil", "place"}}}, frames outermost first. `gil` is the thread that holds the interpreter lock,
    `place` the innermost frame of the user's own code. `first_only`: one rank is enough, to see whether it
    can be done. `ranks`: read these alone, all where it is empty.
    """

    id: int
    timeout_s: float = 3.0
    first_only: bool = False
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Leave:
    """Stop everything and end: the node was evicted, or the job is over."""

    id: int
    reason: str
    exit_code: int = 0


Report = Hello | Heartbeat | RankExit | FirstStep | Leaving | Reply
Command = HostStore | Start | Stop | SelfCheck | PairCheck | DumpStacks | Leave
Message = Report | Command

_TYPES: Mapping[str, type[Message]] = {
    cls.__name__: cls for cls in typing.get_args(Report) + typing.get_args(Command)
}


def encode(message: Message) -> str:
    """The message as one line of JSON."""
    fields = {"type": type(message).__name__, **vars(message)}
    return json.dumps(fields, separators=(",", ":"), default=_fields)


def decode(text: str | bytes) -> Message:
    """The message in `text`. Unknown fields of a newer peer are ignored. Raises `CorruptData` in one line."""
    try:
        fields = json.loads(text)
        return typing.cast("Message", _build_fields(_TYPES[fields.pop("type")], fields))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptData(f"not a control message: {text[:80]!r} ({error})") from error


def _fields(value: object) -> JsonObject:
    """The fields of a dataclass inside a message. Raises `TypeError` for anything else."""
    if isinstance(value, GroupStatus):
        span = _span(value.members)
        return {**vars(value), "members": (), "span": span} if span else vars(value)
    if dataclasses.is_dataclass(value):
        return vars(value)
    raise TypeError(f"{type(value).__name__} in a message")


@functools.lru_cache(maxsize=64)
def _span(members: tuple[int, ...]) -> tuple[int, int, int] | None:
    """First member, distance and number of many members that are evenly spaced, as most groups are."""
    if len(members) <= LISTED_MEMBERS:
        return None
    first, stride = members[0], members[1] - members[0]
    even = stride > 0 and members == tuple(range(first, first + stride * len(members), stride))
    return (first, stride, len(members)) if even else None


@functools.lru_cache(maxsize=64)
def _members(first: int, stride: int, count: int) -> tuple[int, ...]:
    if not (stride > 0 and 0 < count <= MOST_MEMBERS):
        raise CorruptData(f"{count} members, {stride} apart")
    return tuple(range(first, first + stride * count, stride))


@functools.cache
def _field_types(cls: type) -> dict[str, object]:
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


def _build(annotation: object, value: object) -> object:
    """`value` (parsed JSON) as the annotated type: dataclasses and tuples are rebuilt, the rest is kept."""
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return _build_fields(annotation, typing.cast("JsonObject", value))
    origin = typing.get_origin(annotation)
    if origin is tuple:
        (item, _) = typing.get_args(annotation)
        if item is int:
            return tuple(typing.cast("list[int]", value))
        return tuple(_build(item, v) for v in typing.cast("list[object]", value))
    if origin in (typing.Union, types.UnionType):
        raise CorruptData(f"union in a message type: {annotation}")
    return value


def _build_fields(cls: type, fields: JsonObject) -> object:
    known = _field_types(cls)
    if cls is GroupStatus and fields.get("span"):
        fields = {**fields, "members": _members(*fields["span"])}
    return cls(**{k: _build(known[k], v) for k, v in fields.items() if k in known})
