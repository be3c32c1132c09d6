"""What a job must not forget when its hub ends: its nodes, its attempts, and what counts against limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat, starmap
from typing import Protocol

from pulsetrain.recovery.agent_process import AgentProcess


@dataclass(frozen=True, kw_only=True)
class NodeMemory:
    """One node that was evicted, or that may not be promoted. `pid` and `agent_id` are its agent's.

    `evicted` is the reason of the eviction and `evicted_by` who wanted it, "" where it was not evicted.
    `cordon` and `probation_s` are those of the `Node`. `wrong` is what it got wrong when it multiplied at
    `wrong_ns` (UTC), "" where it was right since, or did not multiply.
    """

    pid: int
    evicted: str = ""
    evicted_by: str = ""
    cordon: str = ""
    probation_s: float = 0.0
    agent_id: str = ""
    wrong: str = ""
    wrong_ns: int = 0

    @property
    def agent(self) -> AgentProcess:
        """The process of its agent."""
        return AgentProcess(self.pid, self.agent_id)


@dataclass(frozen=True, kw_only=True)
class Preemption:
    """Why a job is to stop, who wanted it, and its newest step (-1: none).

    `stopped_ns` is 0 until it has stopped. `wait_s` is how long it may wait for a checkpoint before.
    `lose_progress`: it may lose all its steps. `image` names what its processes were dumped into, on
    `image_node`. `restoring`: somebody has resumed it, and they are being restored.
    """

    reason: str
    actor: str
    step: int
    stopped_ns: int
    wait_s: float = 60.0
    image: str = ""
    image_node: str = ""
    lose_progress: bool = False
    restoring: bool = False


@dataclass(frozen=True, kw_only=True)
class RestartMemory:
    """See `Restarts`. Times are UTC. `failed_from` has pairs of step and number, `unrestorable` of rank and
    step. `ignores_own` and `reads_own`: see `ignored` and
    `proven` of `OwnCheckpoints`.
    """

    used: int
    idle: int
    unexplained: int
    by_node_ns: Mapping[str, Sequence[int]]
    failed_from: Sequence[Sequence[int]]
    unrestorable: Sequence[Sequence[int]]
    unexplained_ns: int = 0
    idle_lost: Mapping[str, int] = field(default_factory=dict)
    ignores_own: bool = False
    reads_own: bool = False


@dataclass(frozen=True, kw_only=True)
class WorldMemory:
    """The newest attempt, its nodes by node rank, and the pids and ids of their agents.

    With `first_attempt` this run of the job began, and `run` is its name. `finished` are the node ranks of
    which all ranks ended with status 0. Their nodes may be gone.
    """

    attempt: int
    nodes: Sequence[str]
    pids: Sequence[int]
    agent_ids: Sequence[str] = ()  # of an older hub: none
    first_attempt: int = 0  # of an older hub: it said none
    run: str = ""  # likewise
    finished: Sequence[int] = ()

    def agents(self) -> Iterator[tuple[str, AgentProcess]]:
        """Each node with the process of its agent."""
        ids = chain(self.agent_ids, repeat(""))
        for name, pid, agent_id in zip(self.nodes, self.pids, ids, strict=False):
            yield name, AgentProcess(pid, agent_id)


@dataclass(frozen=True, kw_only=True)
class ReplacementMemory:
    """See `Replacements`. Times are UTC. `open_ns` has pairs of number and time."""

    pending_ns: Sequence[int]
    hour_ns: Sequence[int]
    open_ns: Sequence[Sequence[int]] = ()  # of an older hub: none


@dataclass(frozen=True, kw_only=True)
class SizeMemory:
    """What a person wants: at most `cap` nodes, and ranks that take turns on `devices`. 0: no limit."""

    cap: int
    devices: int


@dataclass(frozen=True, kw_only=True)
class TimeMemory:
    """See `TimeBook`. Times are UTC nanoseconds. A stretch is its use, its begin and its end.

    `old_ns` has the sums of what is not among the stretches.
    """

    began_ns: int
    use: str
    since_ns: int
    old_ns: Mapping[str, int]
    stretches: Sequence[tuple[str, int, int]]


@dataclass(frozen=True, kw_only=True)
class UpdateMemory:
    """See `Updates`. Each value is what one of its fields holds, None for nothing. Times are UTC."""

    number: int
    in_force: Mapping[str, object]
    before: Mapping[str, object] | None = None
    pending: Mapping[str, object] | None = None
    trial: Mapping[str, object] | None = None
    outcome: Mapping[str, object] | None = None


@dataclass(frozen=True, kw_only=True)
class HangMemory:
    """See `HangPatience`. `actor` wants the job to be left alone until `hold_until_ns` (UTC), "" for nobody.

    `restarts` says how often a hang at each place in the code has led to a restart, and `restarted_at` at
    which step and when (UTC) that was last.
    """

    hold_until_ns: int
    actor: str
    restarts: Mapping[str, int]
    restarted_at: Mapping[str, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StopMemory:
    """What the script had saved by itself when the job stopped: `path`, of `step` and `attempt`.

    Two of its saves had `gap` steps between them at least. `reason` is why the job stopped, and `wanted`
    whether somebody may have wanted it to begin anew. `pids` and `agent_ids` are those of all agents that
    were there. `begun` is the attempt that was seen to begin anew, -1 for none.
    """

    path: str
    step: int
    attempt: int
    gap: int
    reason: str = ""
    wanted: bool = True
    pids: Sequence[int] = ()
    agent_ids: Sequence[str] = ()
    begun: int = -1

    def agents(self) -> list[AgentProcess]:
        """The processes of these agents."""
        return list(starmap(AgentProcess, zip(self.pids, self.agent_ids, strict=False)))


@dataclass(frozen=True, kw_only=True)
class EndedRun:
    """A run of a job that is over. `attempt` is its newest, -1 where none is known. `exit_code` is what its
    agents ended with, 1 where that is not known."""

    attempt: int = -1
    exit_code: int = 1


@dataclass(frozen=True, kw_only=True)
class JobMemory:
    """`evictions_ns` are the times (UTC) of the evictions that count towards the budget. `pauses_ns` are the
    longest silences that ended by themselves, by the place in the code."""

    evictions_ns: tuple[int, ...]
    nodes: Mapping[str, NodeMemory]
    preemption: Preemption | None = None
    pauses_ns: Mapping[str, int] = field(default_factory=dict)
    restarts: RestartMemory | None = None
    world: WorldMemory | None = None
    replacements: ReplacementMemory | None = None
    size: SizeMemory | None = None
    time: TimeMemory | None = None
    update: UpdateMemory | None = None
    hangs: HangMemory | None = None
    stop: StopMemory | None = None


class Memory(Protocol):
    """Keeps the memory of every job. Only `stored` waits. It never raises."""

    def recall(self, job: str) -> JobMemory:
        """What is known of a job."""
        ...

    def ended(self, job: str) -> EndedRun:
        """The last run of that name that is over. It costs little, also where much is known of a job."""
        ...

    def evictions(self, job: str, times_ns: Sequence[int]) -> None:
        """The evictions that count are these."""
        ...

    def node(self, job: str, name: str, memory: NodeMemory | None) -> None:
        """Remember this of a node, or with None nothing any more."""
        ...

    def preemption(self, job: str, memory: Preemption | None) -> None:
        """The job is pre-empted, or with None it may run again."""
        ...

    def pauses(self, job: str, longest_ns: Mapping[str, int]) -> None:
        """The longest silences that the job survived are these."""
        ...

    def hangs(self, job: str, memory: HangMemory) -> None:
        """What a person decided on hangs, and where they came again."""
        ...

    def restarts(self, job: str, memory: RestartMemory) -> None:
        """What counts towards giving the job up."""
        ...

    def world(self, job: str, memory: WorldMemory) -> None:
        """An attempt was launched on these nodes."""
        ...

    def replacements(self, job: str, memory: ReplacementMemory) -> None:
        """Nodes were asked for at these times."""
        ...

    def size(self, job: str, memory: SizeMemory) -> None:
        """The job is to be of this size."""
        ...

    def time(self, job: str, memory: TimeMemory) -> None:
        """What the job's time went to."""
        ...

    def update(self, job: str, memory: UpdateMemory | None) -> None:
        """How the program of the job was changed, or with None that it was not."""
        ...

    def stop(self, job: str, memory: StopMemory | None) -> None:
        """The job has stopped, or with None it is known how its script went on."""
        ...

    def forget(self, job: str, exit_code: int) -> None:
        """The job is over. Only its `EndedRun` is known from here on."""
        ...

    async def stored(self) -> None:
        """Wait until all of it is stored, for 2 s at most."""
        ...
