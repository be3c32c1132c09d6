"""What agents and the hub say to each other over the control connection (one WebSocket for each agent).

Every message is one JSON object ``{"type": ..., ...fields}``. Only `encode` writes them, only `decode` reads
them. Times are UTC nanoseconds, ages and durations are nanoseconds, ranks are global. An agent sends reports.
The hub sends commands: each has an `id`, and the agent answers it with exactly one `Reply`. Where another hub
may lead in its place, the agent asks it first (`Confirm`, `Confirmed`). A field that is a `Sequence` holds
many objects, which are made when somebody looks at them (`late_rows`).
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import json
import math
import types
import typing
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pulsetrain.core.errors import CorruptData
from pulsetrain.core.json import JsonObject, refuse_half_pairs
from pulsetrain.core.supervisor import LoopStatus
from pulsetrain.protocol import packing
from pulsetrain.protocol.field_types import refuse_other
from pulsetrain.protocol.late_rows import LateRows, make_one
from pulsetrain.protocol.transfer_peer import NO_PEER

ProcessState = Literal["running", "sleeping", "disk", "stopped", "zombie", "gone"]
COMPRESSED_BYTES = 1 << 15  # of a world, from which on it is sent compressed
MOST_INFLATED_BYTES = 1 << 26
LISTED_MEMBERS = 16  # of a group. Of a larger one that is evenly spaced, first, distance and number are sent
MOST_MEMBERS = 1 << 20
_LARGEST_RANK = 1 << 31
Tier = Literal["memory", "peer", "storage"]


class Members(tuple[int, ...]):
    """The ranks of a large group. A plain tuple computes its hash at each look-up, over all its ranks."""

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        return super().__hash__()


@dataclass(frozen=True, kw_only=True)
class GroupStatus:
    """Where one rank stands in one process group. `op` is the oldest operation in flight, "" for none.

    `timeout_s`: after which torch ends an operation by itself, 0 if unknown. `on_device`: its operations end
    on a device. The rank sees that only when it looks, so one that has ended may still be shown.
    """

    group: str
    members: tuple[int, ...]
    enqueued: int
    completed: int
    op: str = ""
    op_seq: int = -1
    op_bytes: int = 0
    op_age_ns: int = 0
    peer: int = NO_PEER  # global rank of the other side of a transfer, or ANY_SOURCE
    timeout_s: int = 0
    on_device: bool = False


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
    `waits_in` is the process group of the operation that the main thread waits for, "" if unknown or none.
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
    groups: Sequence[GroupStatus] = ()
    dropped: int = 0
    resumed_step: int = -1
    saved: Sequence[OwnCheckpoint] = ()
    loaded: Sequence[OwnCheckpoint] = ()
    instrumentation: str = ""
    waits_in: str = ""


@dataclass(frozen=True, kw_only=True)
class StuckConnection:
    """A TCP connection between two addresses on which the same bytes were resent so many times in a row."""

    local: str
    remote: str
    resends: int


@dataclass(frozen=True, kw_only=True)
class RankActivity:
    """How busy the processes of a silent rank are. Rates are those of about the last second.

    `cpu_ratio` counts cores of the rank's own process, `helper_cpu_ratio` those of its children (loaders,
    compilers). `io_bytes_s` is what all of them read and wrote, `faults_s` the rank's page faults. `still_ns`
    is the time since any of these was above the noise. `waits_in` is what its main thread waits in: "sleep",
    "poll", "read", "lock", "child", "other", "" for none or unknown. `traced`: a debugger is attached.
    `stuck` are connections over which nothing comes back.
    """

    rank: int
    cpu_ratio: float
    helper_cpu_ratio: float
    io_bytes_s: float
    still_ns: int
    faults_s: float = 0.0
    waits_in: str = ""
    traced: bool = False
    stuck: tuple[StuckConnection, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Held:
    """A checkpoint of one rank that this node could restore now.

    `world` is the number of ranks that saved the step, 0 if unknown. -1: it is a copy of what another rank
    saved. `attempt` saved it. With `replicated`, every rank saved the same state, so that any rank can use
    it. Ranks of one world with the same `shard` saved the same parts of the same tensors. 0: it is not known
    which part of the whole state it is. `history` is how often the script had gone back before in `attempt`.
    """

    rank: int
    step: int
    tier: Tier
    world: int = 0
    attempt: int = -1
    replicated: bool = False
    shard: int = 0
    history: int = 0


@dataclass(frozen=True, kw_only=True)
class GpuIdentity:
    """Who a GPU is. `numa` is the memory node near it. -1 and "": the driver does not know it."""

    uuid: str
    pci: str = ""
    model: str = ""
    serial: str = ""
    numa: int = -1
    nvlink_domain: str = ""


@dataclass(frozen=True, kw_only=True)
class HardwareSign:
    """A sign that something is wrong with a machine, as its agent sees it. The hub decides what it means.

    `kind` is "xid", "sxid", a rule of kernel_rules.toml or a row of hardware_signs.toml. `device` is a GPU's
    UUID, a PCI address for codes of the kernel's log, a port or a disk, "" for the machine itself. `code` is
    the Xid's or SXid's. What happened has a `count` and the newest `times_ns`. A state lasts from `first_ns`
    to `last_ns` and has a `value`. `text` is the line of the kernel's log, if there is one, or the numbers of
    the NVLinks that errors are of. `shared`: it may be of a GPU that another job uses.
    """

    kind: str
    device: str = ""
    code: int = 0
    value: float = 0.0
    first_ns: int = 0
    last_ns: int = 0
    count: int = 1
    times_ns: tuple[int, ...] = ()
    text: str = ""
    shared: bool = False


@dataclass(frozen=True, kw_only=True)
class Hello:
    """First message of an agent, also after each reconnect. `attempt` is -1 while it runs no ranks.

    The job runs on `min_nnodes` to `nnodes` nodes, in multiples of `node_unit`. 0 for `min_nnodes`: on
    `nnodes`. A unit may go on with `node_unit_min` nodes, 0: only with all. `world_nodes` is the number of
    nodes of the attempt, 0 if unknown. `dump_lacks` is what the host lacks to dump processes, "" for nothing.
    `host` names the machine, "" if unknown. `tier` is what a pool promises the job. `takes_world_part`: a
    launch may tell it a part of the world. `restoring` is the attempt whose ranks it brings back from their
    image, -1 for none. `node_rank` and `world_nodes` are then those of that attempt. On `devices` its ranks
    take turns where the hub wants nothing else, 0: each has one. `replays` says what it trains where training
    is replayed: "own" for the project's own, "command" for what it was given, "" for nothing. `gpu_count` is
    how many GPUs its ranks may use, also where NVML, which alone tells `gpus`, is not there. `agent_id` is a
    random word of the agent's process, "" from an older agent. In a container every agent has `pid` 1. It
    sends a heartbeat at least every `heartbeat_ns`, 0: unknown, which was a second by default. With
    `may_begin_anew` restarts are wanted also where the script does not go on from its own checkpoints.
    `takes_run`: a launch may tell it the `run`.
    """

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
    switch: str = ""  # access switch (ToR), "" where that is not known
    min_nnodes: int = 0
    node_unit: int = 1
    node_unit_min: int = 0
    world_nodes: int = 0
    gpus: tuple[GpuIdentity, ...] = ()
    dump_lacks: str = "unknown"
    host: str = ""
    tier: str = "standard"
    takes_world_part: bool = False
    restoring: int = -1
    devices: int = 0
    replays: Literal["", "own", "command"] = ""
    gpu_count: int = 0
    agent_id: str = ""
    heartbeat_ns: int = 0
    may_begin_anew: bool = False
    takes_run: bool = False


NOT_READ = -2
"""in the place of an attempt: storage was not read yet"""


UNCONFIRMED = "nothing done: the hub did not show that it leads"
"""Error of a reply to a command that the agent did not carry out for that reason. It may be asked again."""


LOAD_CPU_S = "load_cpu_s"
"""Gauge of a heartbeat: processor time that the agent has used to load checkpoints, since it began."""


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """Sent each `heartbeat_ns` and when something changed. That and `restoring` are as in the `Hello`.

    `stored_attempt` is the newest attempt of which storage had files when the agent began. -1: of none.
    `gpus` replace those of the `Hello`, where the driver has answered since. (): they are as it said.
    """

    node: str
    seq: int
    ts_ns: int
    job: str
    attempt: int
    ranks: Sequence[RankStatus] = ()
    held: Sequence[Held] = ()
    gauges: Mapping[str, float] = field(default_factory=dict)  # spool_bytes, dropped_rows, cpu_ratio, ...
    loops: Sequence[LoopStatus] = ()  # the agent's own loops; none from an older agent
    activity: Sequence[RankActivity] = ()  # of silent ranks alone
    hardware: Sequence[HardwareSign] = ()  # of a machine with trouble alone
    restoring: int = -1
    stored_attempt: int = -1
    gpus: tuple[GpuIdentity, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RankExit:
    """A rank ended. `code` is the exit code, or minus the signal's number. `last_lines` end its stderr.

    `not_reshardable`: why it could not take its part of what a world of another size has saved.
    """

    node: str
    ts_ns: int
    job: str
    attempt: int
    rank: int
    pid: int
    code: int
    last_lines: tuple[str, ...] = ()
    not_reshardable: str = ""


@dataclass(frozen=True, kw_only=True)
class FirstStep:
    """All of a node's ranks have completed their first step of this attempt.

    `stages_ns` are spawn, init, load and step of the node's slowest rank. `resumed_step` and `resumed_path`
    say from which step its ranks go on, and from which file of the script's own. -1 and "": from none.
    With -1 a path is that of another file that was read, which may be a checkpoint too.
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
class Confirm:
    """Of several hubs one leads: does this one still, that has sent the command `id`?"""

    id: int
    node: str


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


class World(tuple[WorldNode, ...]):
    """The nodes of an attempt. Every agent is told all of them, so their text is made once."""

    @functools.cached_property
    def text(self) -> str:
        """The nodes as JSON, compressed where they are many."""
        text = _dumps(packing.pack(_packed(WorldNode), self) if len(self) > 1 else self)
        if len(text) < COMPRESSED_BYTES:
            return text
        return _dumps({"zlib": base64.b64encode(zlib.compress(text.encode())).decode()})


@dataclass(frozen=True, kw_only=True)
class Ping:
    """Answer at once: somebody else says that it is this node."""

    id: int


@dataclass(frozen=True, kw_only=True)
class HostStore:
    """Start (or keep) the rendezvous store on this node. `data` of the reply is {"port": int}."""

    id: int
    job: str


@dataclass(frozen=True, kw_only=True)
class ProgramUpdate:
    """What is changed of what ranks run. `number` tells it from others, 0 for nothing.

    `argv` takes the place of the script (or module, or program) and its arguments, unless it is empty.
    `environment` is added to that of the ranks. It may hold secrets, so it is in no `repr`.
    """

    number: int = 0
    argv: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, kw_only=True)
class Start:
    """Launch this node's ranks. The store prefix is `attempt`. `restore_step` is -1 for a fresh start.

    The agent first brings each of its ranks' checkpoints of `restore_step` into that rank's arena, from
    `sources[rank]`: "memory", "storage", or "peer:NODE". `data` of the reply is {"load_ns": {rank: ns}}.
    `own_checkpoints` are files that the script wrote in earlier attempts, newest first. Agents of the job
    know each other by `peer_key`. "" from an older hub: by their token. `replica_attempt`: a rank takes what
    any rank has saved in that attempt. -1: it takes its own, which `saved_attempt` has saved (-1: any) in its
    `saved_history` (see `Held`. -1: any, as from an older hub). The ranks take turns on so many
    `devices`, 0: on as many as the agent was started with. `check_store`: connect to the store first. Where
    that fails, launch nothing. `data` of the reply is {"store_unreachable": why}.

    With `shards` a rank takes the parts that it needs of what `saved_world` ranks have saved. `shards` says
    where the part of a saved rank is: "storage", or "peer:NODE". Saved ranks with the same number in `copies`
    have saved the same. `holders` are nodes outside the world that have some, or that a source names.

    `world_nodes` above 0: `world` is a part of so many nodes. Where that is not enough, launch nothing.
    `data` of the reply is {"needs_world": true}.

    With `image` the ranks are not launched: those of that image are restored, which stood at `restore_step`.
    Where that fails, `data` of the reply is {"image_kept": whether it can be tried again}.

    `first_attempt` is the one with which this run of the job began. 0 from an older hub. `run` names that run
    (hexadecimal digits). "" from an older hub, or beside an older agent: `peer_key` tells runs apart.

    `program` is what an update has changed. `data` of the reply is then {"program": its number}. Where the
    program is not there, nothing is launched, and `data` of the reply is {"program_refused": why}.
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
    peer_key: str = ""
    replica_attempt: int = -1
    devices: int = 0
    check_store: bool = False
    saved_attempt: int = -1
    saved_world: int = 0
    shards: Mapping[str, str] = field(default_factory=dict)  # keys are ranks, as JSON has them
    copies: Mapping[str, int] = field(default_factory=dict)
    holders: tuple[WorldNode, ...] = ()
    world_nodes: int = 0
    image: str = ""
    program: ProgramUpdate = field(default_factory=ProgramUpdate)
    first_attempt: int = 0
    run: str = ""
    saved_history: int = -1

    @property
    def node_count(self) -> int:
        """Number of nodes of the whole world."""
        return self.world_nodes or len(self.world)


@dataclass(frozen=True, kw_only=True)
class Stop:
    """End this node's ranks: SIGTERM and SIGCONT, SIGKILL after `grace_s`. Replied once none is left.

    With `keep`, processes stay whose scripts can go on in them and give up their attempt within `wake_s`. The
    ranks of `fresh` are at fault and start anew. `image` is what they were dumped as, "" for nothing. Where
    the node has it no more and its ranks run on, it refuses with `ranks_run` in its reply.
    """

    id: int
    reason: str
    grace_s: float = 0.0
    keep: bool = False
    wake_s: float = 3.0
    fresh: tuple[int, ...] = ()
    image: str = ""


@dataclass(frozen=True, kw_only=True)
class SaveFrom:
    """Save every step from `step` on, also where the script saves fewer. -1: as the script says again.

    It ends when the ranks start anew, and holds for ranks that use a `Checkpointer`.
    """

    id: int
    step: int


@dataclass(frozen=True, kw_only=True)
class ShareDevices:
    """Let this node's ranks take turns on so many devices, from their next waits on. 0: on one each.

    `data` of the reply is {"devices": {rank: device}, "late": [rank]}. Late are ranks that do not follow yet
    after `timeout_s`. With `dry_run` nothing changes.
    """

    id: int
    devices: int
    timeout_s: float = 5.0
    dry_run: bool = False


@dataclass(frozen=True, kw_only=True)
class HoldRanks:
    """Have the ranks of `attempt` stand still after a step, and say where they are. `number` 0: let them run.

    A rank stands at its first arrival after `past[rank]`, by default 0, and for `lease_s` at most, unless the
    command comes again. `number` is new for each barrier. Replied once a rank comes to stand that did not, or
    after `wait_s`. `data` of the reply is {"ranks": {rank: position}}, as `elastic.positions` reads it.
    From 0 on, `saved_step` has a rank stand once its script has saved that step or a later one by itself.
    """

    id: int
    attempt: int
    number: int
    past: Mapping[str, int] = field(default_factory=dict)  # keys are ranks, as JSON has them
    lease_s: float = 10.0
    wait_s: float = 0.1
    saved_step: int = -1


@dataclass(frozen=True, kw_only=True)
class DumpRanks:
    """Dump the ranks of `attempt`, which stand still, into the image `name`, and leave them stopped.

    `data` of the reply is {"bytes", "stored_bytes", "new_bytes", "dump_ns", "processes"}. Where it fails, the
    ranks stand on as before. So do they where it takes longer than `limit_s`, for which the hub waits. 0: it
    does not say.
    """

    id: int
    attempt: int
    name: str
    limit_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class SelfCheck:
    """Run the short self-check on this node. `data` of the reply is the report of `diagnostics.selfcheck`.

    With `whole_node` all GPUs of the node send to each other, for which they have `group_timeout_s`, and
    its network ports do, where that can be measured. {"not_ready": reason}: the node cannot check itself yet,
    and is to be asked again.
    """

    id: int
    seconds: float = 1.0
    whole_node: bool = False
    group_timeout_s: float = 30.0


@dataclass(frozen=True, kw_only=True)
class PairCheck:
    """Run the all-gather of one round with these peers. `members` are node names, in rank order.

    `data` of the reply holds the fields of `diagnostics.all_gather.GatherReport`. A timeout is a failed
    check, not an error. Each member gathers `payload_bytes`. With `reduce` the members do all-reduces, too.
    """

    id: int
    members: tuple[str, ...]
    store_address: str
    store_port: int
    prefix: str
    timeout_s: float = 5.0
    payload_bytes: int = 1 << 20
    reduce: bool = False


@dataclass(frozen=True, kw_only=True)
class LinkSink:
    """Take what other nodes send to this one for `seconds`, and throw it away. 0: end that now.

    `data` of the reply is {"port": int, "memory_ports": {memory node: int}}, 0 where it ended. What is sent
    to one of the latter ends in that memory node of the machine, which is not the one next to its port.
    "speed_bits_per_s" is the rate of the node's own port, 0 for none that counts (`diagnostics.port_speed`).
    "machine" is what kind of machine it is (`diagnostics.machine_kind`). "others" are interfaces with
    hardware besides that port. "rails" has {"address": str, "port": int, "speed_bits_per_s": float} of those
    on which it listens.
    "rdma" has {"port": int, "ports": {name: {"active": bool, "memories": [memory node], "speed_bits_per_s":
    float}}, "why_not": str}: the TCP port where a sender asks for a server, the RDMA ports, and why there are
    none.
    """

    id: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class LinkSend:
    """Send to the sink of another node for `seconds`, at most `bits_per_s`, 0 for no limit.

    With `rdma_port` the transfer goes by RDMA between the ports of this name, such as mlx5_0/1, to a `memory`
    node of the receiver, "" for the one next to the port. `port` is then where a server is asked for.
    With `rail` it goes by TCP out of the interface of this name, from that one's own address.
    `data` of the reply holds the fields of `diagnostics.transfers.TransferReport`.
    """

    id: int
    address: str
    port: int
    seconds: float
    bits_per_s: float = 0.0
    rdma_port: str = ""
    memory: str = ""
    rail: str = ""


@dataclass(frozen=True, kw_only=True)
class ArithmeticCheck:
    """Repeat products with a known answer for `seconds`, on processors and GPUs.

    `data` of the reply is the report of `diagnostics.arithmetic`.
    """

    id: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class ReplayCheck:
    """Train for a while with these peers, and tell whether that failed. `members` are nodes, in rank order.

    Each node has as many ranks as in the job. With `command` they run what the agent was given for it, else
    the project's own training (`diagnostics.replay`) for `seconds`. `number` tells replays of a job apart.
    `data` of the reply is {"ok": bool, "error": str, "late": bool, "seconds": float, "log": str}. `late`:
    ranks still ran after `timeout_s`. `log` is the folder of their output. Where the replay says nothing of
    this machine, there is "not_judged": why. `timeout_s` 0: end the replay that runs, and reply {}.
    """

    id: int
    members: tuple[str, ...] = ()
    store_address: str = ""
    store_port: int = 0
    number: int = 0
    seconds: float = 20.0
    timeout_s: float = 0.0
    command: bool = False


@dataclass(frozen=True, kw_only=True)
class DumpStacks:
    """Read where the Python code of this node's ranks stands. The ranks are not disturbed.

    `data` of the reply is {"stacks": [{"thread", "frames", "ranks"}], "blind": {rank: why not}, "details":
    {rank: {"gil", "gil_frames", "place", "idle_line", "device_line", "cut"}}}, frames outermost first. `gil`
    is the thread that holds the interpreter lock, and `gil_frames` are its frames. `place` is the innermost
    frame of the user's own code. `idle_line`: the main thread's line calls and computes nothing.
    `device_line`: it has a call that waits for a device, as `item`. `cut`: there are more threads than were
    read. `first_only`: one rank is enough, to see whether it can be done. `ranks`: read these alone, all
    where it is empty.
    """

    id: int
    timeout_s: float = 3.0
    first_only: bool = False
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ReadRas:
    """Ask the NCCL RAS of this node's ranks what every rank of the job has begun. One node is enough.

    `data` of the reply is {"report": what `analytics.hangs.ras_lag.pack` makes}, or {"why_not": one line}.
    """

    id: int
    limit_s: float = 9.0


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Profile the same steps of some ranks with torch.profiler, all of the node's where `ranks` is empty.

    `data` of the reply is {"profiles": {rank: trace}, "failed": {rank: why}}, a trace being Chrome's JSON,
    gzipped, in base64.
    """

    id: int
    first_step: int
    steps: int
    timeout_s: float
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Leave:
    """Stop everything and end: the node was evicted, or the job is over.

    `persist`: the job did not finish, so what is in memory is worth keeping in storage.
    """

    id: int
    reason: str
    exit_code: int = 0
    persist: bool = False


@dataclass(frozen=True, kw_only=True)
class Confirmed:
    """The answer to a `Confirm`. The hub leads for `leads_s` from when it was asked. 0: it may not."""

    id: int
    leads_s: float


HEARTBEAT = '{"type":"Heartbeat",'
"""How the text of a heartbeat begins."""
CONFIRM = '{"type":"Confirm",'
CONFIRM_HEADER = "Pulsetrain-Confirm"
"""Of the hub's answer to a new connection: it may lose the lead, so its commands have to be confirmed."""

Report = Hello | Heartbeat | RankExit | FirstStep | Leaving | Reply | Confirm
Checks = SelfCheck | PairCheck | LinkSink | LinkSend | ArithmeticCheck | ReplayCheck
Moves = SaveFrom | ShareDevices | HoldRanks | DumpRanks
Command = Ping | HostStore | Start | Stop | Moves | Checks | DumpStacks | ReadRas | Profile | Leave
Message = Report | Command | Confirmed

_MALFORMED = (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError, zlib.error)
_TYPES: Mapping[str, type] = {cls.__name__: cls for cls in typing.get_args(Message)}


def encode(message: Message) -> str:
    """The message as one line of JSON."""
    cls: type = type(message)
    fields = {"type": cls.__name__, **vars(message)}
    world = fields.pop("world", None)
    for name, kind in _packed_fields(cls).items():
        if len(fields.get(name, ())) > 1:
            fields[name] = packing.pack(kind, fields[name])
    text = _dumps(fields)
    if world is None:
        return text
    return f'{text[:-1]},"world":{(world if isinstance(world, World) else World(world)).text}}}'


def _dumps(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), default=_fields)


def decode(text: str | bytes) -> Message:
    """The message in `text`. Unknown fields of a newer peer are ignored. Raises `CorruptData` in one line."""
    try:
        fields = _parsed(text)
        return typing.cast("Message", _reader_of(_TYPES[fields.pop("type")])(fields))
    except _MALFORMED as error:
        raise CorruptData(f"not a control message: {text[:80]!r} ({error})") from error


def _parsed(text: str | bytes) -> typing.Any:
    """What JSON says. Raises `ValueError` for half a surrogate pair as well, which nobody could store."""
    value = json.loads(text)
    said = text if isinstance(text, str) else text.decode()
    if "\\u" in said and "\\ud" in said.lower():  # few texts have any escape
        refuse_half_pairs(value)
    return value


def _fields(value: object) -> typing.Any:
    """What a dataclass or a sequence inside a message holds. Raises `TypeError` for anything else."""
    if isinstance(value, GroupStatus):
        span = _span(value.members)
        return {**vars(value), "members": (), "span": span} if span else vars(value)
    if isinstance(value, LateRows):
        return list(value)
    if dataclasses.is_dataclass(value):
        return vars(value)
    raise TypeError(f"{type(value).__name__} in a message")


@functools.cache
def _packed_fields(cls: type) -> dict[str, packing.Packed]:
    """The fields of a class that hold many objects of one kind."""
    return {name: _packed(item) for name, item in _item_types(cls).items()}


@functools.cache
def _packed(cls: type) -> packing.Packed:
    hints = typing.get_type_hints(cls)
    lists = [name for name, hint in hints.items() if hint == tuple[int, ...]]
    return packing.Packed(
        cls,
        _packed_fields(cls),
        {name: _written_members for name in lists},
        {name: _read_members for name in lists},
    )


def _item_types(cls: type) -> dict[str, type]:
    """The dataclass of each field that is a tuple or sequence of dataclasses."""
    found = {}
    for name, hint in typing.get_type_hints(cls).items():
        many = typing.get_origin(hint) in (tuple, Sequence)
        item = next(iter(typing.get_args(hint)), None) if many else None
        if isinstance(item, type) and dataclasses.is_dataclass(item):
            found[name] = item
    return found


def _written_members(members: tuple[int, ...]) -> object:
    """Few ranks as a list. Many that are evenly spaced as {"span": [first, distance, number]}."""
    span = _span(members)
    return {"span": span} if span else members


def _read_members(written: object) -> tuple[int, ...]:
    if isinstance(written, dict):
        return _members(*written["span"])
    return _read_list(written)


def _read_list(written: object) -> tuple[typing.Any, ...]:
    if not isinstance(written, list):
        raise TypeError(f"{written!r:.80} is no list")
    return tuple(written)


@functools.lru_cache(maxsize=64)
def _span(members: tuple[int, ...]) -> tuple[int, int, int] | None:
    """First member, distance and number of many members that are evenly spaced, as most groups are."""
    if len(members) <= LISTED_MEMBERS:
        return None
    first, stride = members[0], members[1] - members[0]
    even = stride > 0 and members == tuple(range(first, first + stride * len(members), stride))
    return (first, stride, len(members)) if even else None


@functools.lru_cache(maxsize=512)
def _members(first: int, stride: int, count: int) -> Members:
    """The same object for the same group, however many ranks report of it."""
    if not all(type(number) is int and abs(number) < _LARGEST_RANK for number in (first, stride, count)):
        raise TypeError(f"members {first!r:.40}, {stride!r:.40}, {count!r:.40}")
    if not (stride > 0 and 0 < count <= MOST_MEMBERS):
        raise CorruptData(f"{count} members, {stride} apart")
    return Members(range(first, first + stride * count, stride))


_Reader = Callable[[typing.Any], typing.Any]


@functools.cache
def _reader_of(cls: type) -> _Reader:
    """A function that makes a `cls` of its parsed JSON object."""
    fields = dataclasses.fields(cls)
    names = [f.name for f in fields]
    nested = _nested(cls)
    defaults = {f.name: f.default for f in fields if f.default is not dataclasses.MISSING}
    factories = {f.name: f.default_factory for f in fields if f.default_factory is not dataclasses.MISSING}

    def read(given: JsonObject) -> object:
        known = {name: given[name] for name in names if name in given}
        if cls is GroupStatus and given.get("span"):
            known["members"] = given
        for name, convert in nested:
            if name in known:
                known[name] = convert(known[name])
        refuse_other(cls, known)
        if len(known) < len(names):
            spare = {**defaults, **{name: factory() for name, factory in factories.items()}}
            known = {name: known[name] if name in known else spare[name] for name in names}
        return make_one(cls, known)

    return read


def _nested(cls: type) -> list[tuple[str, _Reader]]:
    """The fields whose JSON is not their value yet, each with the function that makes it."""
    hints = typing.get_type_hints(cls)
    readers = ((f.name, _reader(hints[f.name])) for f in dataclasses.fields(cls))
    return [(name, reader) for name, reader in readers if reader is not None]


def _reader(annotation: object) -> _Reader | None:
    """What makes a value of the annotated type from parsed JSON, None where that is the value already."""
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return _reader_of(annotation)
    origin = typing.get_origin(annotation)
    if origin is tuple:
        (item, _) = typing.get_args(annotation)
        if item is int:
            return _read_members
        if isinstance(item, type) and dataclasses.is_dataclass(item):
            many = _many_reader(item)
            return lambda written: tuple(many(written))
        return _read_list
    if origin is Sequence:
        return _many_reader(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        raise TypeError(f"union in a message type: {annotation}")
    return _read_gauges if annotation == Mapping[str, float] else None


def _read_gauges(written: object) -> object:
    """Without those that are no number. JSON cannot show them, and one of them must not cost a heartbeat."""
    if not isinstance(written, dict):
        return written
    return {
        name: value for name, value in written.items() if not isinstance(value, float) or math.isfinite(value)
    }


def _many_reader(item: type) -> _Reader:
    """Reads many objects: as columns, whose objects are made late, or as a list of objects."""
    kind, read = _packed(item), _reader_of(item)

    def many(written: typing.Any) -> Sequence[object]:
        if not isinstance(written, dict):
            return tuple([read(each) for each in written])
        if "zlib" in written:
            return many(_parsed(_inflated(written["zlib"])))
        return packing.unpack(kind, written)

    return many


def _inflated(text: str) -> bytes:
    """What a compressed part of a message holds. Raises `ValueError` where that is too much."""
    inflater = zlib.decompressobj()
    data = inflater.decompress(base64.b64decode(text, validate=True), MOST_INFLATED_BYTES)
    if inflater.unconsumed_tail or not inflater.eof:
        raise ValueError(f"a part of more than {MOST_INFLATED_BYTES} bytes")
    return data
