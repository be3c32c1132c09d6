"""One rank of one attempt, its environment, and the program that it runs."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from signal import SIGABRT
from string import Template

from pulsetrain.agent.output import last_lines
from pulsetrain.agent.processes.error_file import error_file, error_lines
from pulsetrain.agent.processes.kept_ranks import Seat
from pulsetrain.agent.processes.zygote_protocol import Mode
from pulsetrain.collectors.machine.host import process_state
from pulsetrain.collectors.machine.tail import Tail
from pulsetrain.collectors.rank import known_files
from pulsetrain.collectors.reading.device_words import DeviceWords
from pulsetrain.collectors.reading.drain import Drain
from pulsetrain.collectors.reading.position import RankPosition
from pulsetrain.elastic.unit_sizes import REPLICA_DEGREES, unit_sizes
from pulsetrain.protocol.messages import ProgramUpdate, RankExit, RankStatus, Start, ranks_of_node
from pulsetrain.records.columns import Columns

LAST_LINES = 20
TIMED_OUT = re.compile("watchdog caught collective operation timeout", re.IGNORECASE)
"""torch ends a rank that waits for a peer with this, two C++ stacks, and the stacks of all threads"""


@dataclass(frozen=True, kw_only=True)
class Program:
    """What every rank runs. `argv[0]` is a script's path, a module's name or a program."""

    argv: tuple[str, ...]
    mode: Mode = "script"
    cwd: Path = field(default_factory=Path.cwd)
    role: str = "default"

    @property
    def name(self) -> str:
        """What a job of it is called: a script's name without its ending, and a module's whole name."""
        if self.mode == "module":
            return self.argv[0]
        return Path(self.argv[0]).stem or (self.cwd / self.argv[0]).resolve().name

    def updated(self, update: ProgramUpdate) -> Program:
        """The same after an update."""
        return replace(self, argv=update.argv or self.argv)

    def words(self, local_rank: int) -> tuple[str, ...]:
        """Its `argv` for one rank. As for torchrun, `${local_rank}` in an argument is that, and $$ is $."""
        program, *arguments = self.argv
        filled = (Template(word).safe_substitute(local_rank=local_rank) for word in arguments)
        return (program, *filled)


@dataclass(frozen=True, kw_only=True)
class NodeIdentity:
    """Who this node is to its job. 0 for `min_nnodes`: as many as `nnodes`.

    A unit may go on with `node_unit_min` of its nodes. 0: with all of them only.

    The ranks take turns on so many `devices`, unless the hub wants another number. 0: each has one.
    """

    job: str
    node: str
    address: str
    nproc_per_node: int
    nnodes: int = 1
    min_nnodes: int = 0
    node_unit: int = 1
    node_unit_min: int = 0
    max_restarts: int = 3
    standby: bool = False
    switch: str = ""
    devices: int = 0
    tier: str = "standard"
    may_begin_anew: bool = False


def torchrun_environment(rank: int, world_size: int, nproc: int, store: tuple[str, int]) -> dict[str, str]:
    """torchrun's variables that say which rank this is and where all meet. Each node has `nproc` ranks."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % nproc),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(nproc),
        "GROUP_RANK": str(rank // nproc),
        "GROUP_WORLD_SIZE": str(world_size // nproc),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": store[0],
        "MASTER_PORT": str(store[1]),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }


def rank_environment(
    start: Start, identity: NodeIdentity, local_rank: int, role: str = "default"
) -> dict[str, str]:
    """torchrun's variables for one rank of an attempt, and Pulsetrain's own."""
    nproc = identity.nproc_per_node
    rank, world_size = ranks_of_node(start.node_rank, nproc)[local_rank], start.node_count * nproc
    return {
        **torchrun_environment(rank, world_size, nproc, (start.store_address, start.store_port)),
        "ROLE_NAME": role,
        "TORCHELASTIC_RUN_ID": start.job,
        "TORCHELASTIC_RESTART_COUNT": str(start.attempt - start.first_attempt),
        "TORCHELASTIC_MAX_RESTARTS": str(identity.max_restarts),
        "PULSETRAIN_JOB": start.job,
        "PULSETRAIN_NODE": identity.node,
        "PULSETRAIN_ATTEMPT": str(start.attempt),
        "PULSETRAIN_RESTORE_STEP": str(start.restore_step),
        "PULSETRAIN_ADDRESS": identity.address,
        known_files.OWN_CHECKPOINTS: known_files.encode(start.own_checkpoints),
        **_replica_degrees(start, identity),
    }


def _replica_degrees(start: Start, identity: NodeIdentity) -> dict[str, str]:
    """How many ranks each replica has, where a unit may go on without some of its nodes."""
    if not identity.node_unit_min:
        return {}
    units = unit_sizes(start.node_count, identity.node_unit, identity.node_unit_min)
    return {REPLICA_DEGREES: ",".join(str(nodes * identity.nproc_per_node) for nodes in units)}


@dataclass(kw_only=True)
class Rank:
    """One rank of one attempt.

    `code` is None while the process lives. `stopping` is true once the agent itself ends the rank. `seat` is
    its process. `kept`: the process was a rank of an earlier attempt. `resuming`: it was told to go on as
    this one, and has not said yet that it does.
    """

    rank: int
    local_rank: int
    attempt: int
    drain: Drain
    tails: tuple[Tail, ...]
    ring_fd: int
    out: Path
    err: Path
    seat: Seat | None = None
    pid: int = -1
    code: int | None = None
    stopping: bool = False
    kept: bool = False
    resuming: bool = False
    dumped: bool = False
    ended: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    tailing: threading.Lock = field(default_factory=threading.Lock)  # reads a disk, which may take long

    def status(self) -> RankStatus:
        """The rank's status page, with the state of its process from /proc.

        Ages follow the rank's own clock, so that a step of the wall clock does not change them.
        """
        state = "gone" if self.code is not None else process_state(self.pid, Path("/"))
        if self.dumped and state != "gone":
            state = "sleeping"  # whoever dumps it has stopped it
        with self.lock:
            return self.drain.status(self.pid, state, self.drain.utc_ns)

    @property
    def profile_prefix(self) -> str:
        """Where its profiles are written, without number and suffix."""
        return str(self.out.with_suffix(".profile"))

    @property
    def error_file(self) -> Path:
        """Where torch's `record` writes how it failed."""
        return error_file(self.err)

    @property
    def device(self) -> DeviceWords:
        """Which device it takes turns on."""
        return self.drain.device

    @property
    def coordinates(self) -> Mapping[str, int] | None:
        """Its coordinates by axis, None until it has set them."""
        return self.drain.coordinates

    def ask_for_profile(self, number: int, first_step: int, steps: int) -> None:
        """Ask it to profile `steps` steps from `first_step` on."""
        with self.lock:
            self.drain.ask_for_profile(number, first_step, steps)

    def call_off_profile(self) -> None:
        """Tell it to end the profile that it was asked for last, without a trace."""
        with self.lock:
            self.drain.call_off_profile()

    def profile_number(self) -> int:
        """Number of the profile that it was asked for last, 0 for none."""
        with self.lock:
            return self.drain.profile_number

    def profiled(self) -> int:
        """Number of its last profile, negative where it failed."""
        with self.lock:
            return self.drain.profiled

    def hold(self, number: int, past: int, until_ns: int, saved_step: int = -1) -> None:
        """Ask it to stand still after a step. See `RingReader.hold`."""
        with self.lock:
            self.drain.hold(number, past, until_ns, saved_step)

    @property
    def stands(self) -> bool:
        """Whether it stands still."""
        with self.lock:
            return self.drain.stands

    @property
    def standing_number(self) -> tuple[int, int]:
        """The number of the hold that it was asked for, and the arrivals that it may pass."""
        with self.lock:
            return self.drain.asked_hold

    def position(self) -> RankPosition:
        """How many operations it has entered, and whether it stands still."""
        with self.lock:
            return self.drain.position()

    def batches(self, now_ns: int) -> list[Columns]:
        """What the rank recorded and printed since the last call."""
        ended = self.code is not None
        with self.tailing:
            printed = [tail.poll(now_ns, final=ended) for tail in self.tails]
        with self.lock:
            recorded = self.drain.batches(self.drain.utc_ns, final=ended)
        return [*recorded, *(batch for batch in printed if batch is not None)]

    def report(self, identity: NodeIdentity, now_ns: int) -> RankExit:
        """How the rank ended. Call it only once `code` is set."""
        assert self.code is not None
        lines = last_lines(self.err, LAST_LINES, TIMED_OUT if self.code == -SIGABRT else None)
        return RankExit(
            node=identity.node,
            ts_ns=now_ns,
            job=identity.job,
            attempt=self.attempt,
            rank=self.rank,
            pid=self.pid,
            code=self.code,
            last_lines=lines or error_lines(self.error_file, LAST_LINES),
        )

    def end(self, code: int) -> None:
        """The process has ended."""
        self.code = code
        self.ended.set()
