"""What the hub knows now of one attempt of one job, and when it counts as a hang."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

from pulsetrain.analytics.hangs.posture import Posture
from pulsetrain.protocol.late_rows import column
from pulsetrain.protocol.messages import ProcessState, RankActivity, RankExit, RankStatus, WorldNode
from pulsetrain.records.schema import PHASES

COMMUNICATION = frozenset(PHASES[PHASES.index("all_reduce") : PHASES.index("gc")])
# Phases of an ordinary step. A rank that is stuck in one of them is judged by the time of a step.
_STEP_PHASES = frozenset({"", "idle", "step", "forward", "backward", "optimizer", "gc"}) | COMMUNICATION


def slow_phase(status: RankStatus) -> str:
    """Return the rank's phase if it may take long, "" for one of an ordinary step."""
    return "" if status.last_phase in _STEP_PHASES else status.last_phase


@dataclass(frozen=True, kw_only=True)
class WatchConfig:
    """How long a silence must last to be a hang. Raises `ValueError` for a value that is not above 0."""

    stall_s: float = 3.0
    """shortest silence of the whole job that is a hang"""
    stall_steps: float = 2.5
    """the same in median steps. The longer of the two counts"""
    stopped_s: float = 2.0
    """silence after which a stopped process is at fault, even while its peers move"""
    start_s: float = 60.0
    """limit before the first step of an attempt is done"""
    patient_s: float = 60.0
    """limit while a rank loads data, checkpoints, evaluates or is in a user-defined phase"""
    stale_s: float = 2.5
    """age of a report, beyond which a rank counts as not reported"""
    held_gil_s: float = 15.0
    """time for which a thread must hold the interpreter lock and do nothing to be a certain hang"""
    loop_s: float = 40.0
    """time for which a rank must loop in one or two lines of Python to be a certain hang"""
    spin_s: float = 300.0
    """time for which a rank may compute outside Python, called from one line, before that is a hang"""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise ValueError(f"{name} = {value}: must be above 0")


@dataclass(frozen=True, kw_only=True)
class JobView:
    """Everything that the hub knows now of one attempt of one job.

    `ranks` has the newest report of each rank. `seen_ns` says when each arrived, on the hub's clock. A rank
    that is not in `seen_ns` counts as reported at `now_ns`. `median_step_ns` is 0 while it is unknown.
    `world` says which ranks are on which node. `activity` and `postures` are known of silent ranks that were
    looked into. `usual_ns` is the longest silence that ended by itself, by place. `has_gpus`: some node has
    GPUs.
    """

    job: str
    attempt: int
    now_ns: int
    ranks: Sequence[RankStatus] = ()
    exits: tuple[RankExit, ...] = ()
    lost_nodes: tuple[str, ...] = ()
    median_step_ns: int = 0
    started_ns: int = 0
    first_step_done: bool = False
    world: tuple[WorldNode, ...] = ()
    seen_ns: Mapping[int, int] = field(default_factory=dict)
    activity: Mapping[int, RankActivity] = field(default_factory=dict)
    postures: Mapping[int, Posture] = field(default_factory=dict)
    usual_ns: Mapping[str, int] = field(default_factory=dict)
    has_gpus: bool = False

    def node_of(self, rank: int) -> str:
        """Return the name of the rank's node, empty where `world` does not have the rank."""
        at = bisect_right(self._ends_of_nodes, rank)
        return self._nodes[at].node if at < len(self._nodes) else ""

    @cached_property
    def _nodes(self) -> list[WorldNode]:
        return sorted(self.world, key=lambda n: n.node_rank)

    @cached_property
    def _ends_of_nodes(self) -> list[int]:
        """The rank behind each node's last one."""
        return list(accumulate(node.nproc for node in self._nodes))

    def size(self) -> int:
        """Return how many ranks the attempt has."""
        return sum(node.nproc for node in self.world) or len(self.ranks)

    def age_ns(self, status: RankStatus) -> int:
        """Return the time since the rank last made progress. The age of its report counts too."""
        return status.progress_age_ns + self.report_age_ns(status)

    @cached_property
    def report_ages_ns(self) -> list[int]:
        """The age of the report of each of `ranks`, in their order."""
        now_ns, seen_ns = self.now_ns, self.seen_ns
        return [max(0, now_ns - seen_ns.get(rank, now_ns)) for rank in column(self.ranks, "rank")]

    @cached_property
    def ages_ns(self) -> list[int]:
        """The time since each of `ranks` last made progress, in their order."""
        ages_ns = zip(column(self.ranks, "progress_age_ns"), self.report_ages_ns, strict=True)
        return [progress_ns + report_ns for progress_ns, report_ns in ages_ns]

    @cached_property
    def states(self) -> Sequence[ProcessState]:
        """The state of the process of each of `ranks`, in their order."""
        return column(self.ranks, "state")

    def in_slow_phase(self) -> bool:
        """Whether a rank is in a phase that may take long."""
        return not _STEP_PHASES.issuperset(column(self.ranks, "last_phase"))

    def report_age_ns(self, status: RankStatus) -> int:
        """Return the time since the rank's report arrived."""
        return max(0, self.now_ns - self.seen_ns.get(status.rank, self.now_ns))
