"""From live state to verdicts: what the hub asks several times a second, of heartbeats and exits alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pulsetrain.analytics import calibration
from pulsetrain.analytics.crash import Attempt, explain
from pulsetrain.analytics.hangs.evidence import GroupKey, HashedGroupKey, RankEvidence, Wait
from pulsetrain.analytics.hangs.hang import FROZEN, HangDiagnosis, diagnose
from pulsetrain.analytics.verdict import Finding, Healthy, Inconclusive, Verdict
from pulsetrain.protocol.messages import GroupStatus, RankExit, RankStatus, WorldNode
from pulsetrain.records.schema import PHASES

_COMMUNICATION = frozenset(PHASES[PHASES.index("all_reduce") : PHASES.index("gc")])
# Phases of an ordinary step. A rank that is stuck in one of them is judged by the time of a step.
_STEP_PHASES = frozenset({"", "idle", "step", "forward", "backward", "optimizer", "gc"}) | _COMMUNICATION
_MAX_SILENCES = 64  # ranks whose silences are listed in the evidence; of a larger job none are
_MAX_GROUPS = 16


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

    def __post_init__(self) -> None:
        for name in ("stall_s", "stall_steps", "stopped_s", "start_s", "patient_s", "stale_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} = {getattr(self, name)}: must be above 0")


@dataclass(frozen=True, kw_only=True)
class JobView:
    """Everything that the hub knows now of one attempt of one job.

    `ranks` has the newest report of each rank. `seen_ns` says when each arrived, on the hub's clock. A rank
    that is not in `seen_ns` counts as reported at `now_ns`. `median_step_ns` is 0 while it is unknown.
    `world` says which ranks are on which node.
    """

    job: str
    attempt: int
    now_ns: int
    ranks: tuple[RankStatus, ...] = ()
    exits: tuple[RankExit, ...] = ()
    lost_nodes: tuple[str, ...] = ()
    median_step_ns: int = 0
    started_ns: int = 0
    first_step_done: bool = False
    world: tuple[WorldNode, ...] = ()
    seen_ns: Mapping[int, int] = field(default_factory=dict)

    def node_of(self, rank: int) -> str:
        """Return the name of the rank's node, empty where `world` does not have the rank."""
        first_of_next = 0
        for node in sorted(self.world, key=lambda n: n.node_rank):
            first_of_next += node.nproc
            if rank < first_of_next:
                return node.node
        return ""

    def size(self) -> int:
        """Return how many ranks the attempt has."""
        return sum(node.nproc for node in self.world) or len(self.ranks)

    def age_ns(self, status: RankStatus) -> int:
        """Return the time since the rank last made progress. The age of its report counts too."""
        return status.progress_age_ns + self.report_age_ns(status)

    def report_age_ns(self, status: RankStatus) -> int:
        """Return the time since the rank's report arrived."""
        return max(0, self.now_ns - self.seen_ns.get(status.rank, self.now_ns))


def crash(view: JobView) -> list[Verdict]:
    """Return which exit was the cause and which were its consequences. Kinds `crash` and `node_lost`.

    >>> exits = [
    ...     RankExit(node="a", ts_ns=1, job="j", attempt=0, rank=5, pid=1, code=-9, last_lines=()),
    ...     RankExit(node="b", ts_ns=2, job="j", attempt=0, rank=0, pid=1, code=-15, last_lines=()),
    ... ]
    >>> (finding,) = crash(JobView(job="j", attempt=0, now_ns=3, exits=tuple(exits)))
    >>> finding.subject, finding.evidence["victims"]
    ('5', [0])
    """
    attempt = Attempt(
        job=view.job, attempt=view.attempt, now_ns=view.now_ns, size=view.size(), node_of=view.node_of
    )
    return calibration.apply(explain(attempt, view.exits, view.lost_nodes))


def hang(view: JobView, config: WatchConfig | None = None) -> list[Verdict]:
    """Return whether the job stands still, and the rank, link or mismatch that causes it.

    There is one finding for each rank at fault, or one on the group where the network is at fault. Its
    evidence has class, culprits, victims, nodes, silences and groups. The verdict is `Inconclusive` where
    nobody can be named, and `Healthy` while some rank moves.

    >>> group = GroupStatus(group="tp", members=(0, 1), enqueued=8, completed=7, op="all_reduce", op_seq=8)
    >>> common = {"local_rank": 0, "pid": 1, "last_step": 5, "phase_age_ns": 0, "progress": 9}
    >>> waits = RankStatus(rank=0, state="sleeping", last_phase="all_reduce", groups=(group,),
    ...                    progress_age_ns=5_000_000_000, **common)
    >>> stopped = RankStatus(rank=1, state="stopped", last_phase="forward", groups=(),
    ...                      progress_age_ns=5_000_000_000, **common)
    >>> view = JobView(job="j", attempt=0, now_ns=0, ranks=(waits, stopped), first_step_done=True)
    >>> [finding.subject for finding in hang(view)]
    ['1']
    """
    config = config or WatchConfig()
    if not view.ranks:
        return [Inconclusive(analyzer="hang", reason="no rank has reported yet", blind=True)]
    if view.lost_nodes or any(e.code != 0 for e in view.exits):
        return [Inconclusive(analyzer="hang", reason="a rank or a node is gone: see crash")]
    if silent := sorted(r.rank for r in view.ranks if view.report_age_ns(r) > config.stale_s * 1e9):
        return [Inconclusive(analyzer="hang", reason=f"no report from ranks {silent}", blind=True)]
    stall_ns = _stall_ns(view)
    limit_ns = hang_limit_ns(view, config)
    if stall_ns < limit_ns and not _has_stopped_rank(view, config):
        return [Healthy(analyzer="hang", numbers={"silence_ns": stall_ns, "limit_ns": limit_ns})]
    diagnosis = diagnose(_evidence(view), stalled=stall_ns >= limit_ns)
    return calibration.apply(_verdicts(view, diagnosis, stall_ns))


def hang_limit_ns(view: JobView, config: WatchConfig) -> int:
    """Return the silence of the whole job that counts as a hang now, in nanoseconds."""
    base_ns = int(max(config.stall_s * 1e9, config.stall_steps * view.median_step_ns))
    if not view.first_step_done:
        return max(base_ns, int(config.start_s * 1e9))
    if any(r.last_phase not in _STEP_PHASES for r in view.ranks):
        return max(base_ns, int(config.patient_s * 1e9))
    return base_ns


def _stall_ns(view: JobView) -> int:
    """Return the shortest silence of a rank that can move, or of any rank where none can."""
    movable = [r for r in view.ranks if r.state not in ("zombie", "gone")]
    return min(view.age_ns(r) for r in movable or view.ranks)


def _has_stopped_rank(view: JobView, config: WatchConfig) -> bool:
    """Whether a process has been stopped for so long that it is no accident."""
    limit_ns = config.stopped_s * 1e9
    return any(r.state == "stopped" and view.age_ns(r) >= limit_ns for r in view.ranks)


def _evidence(view: JobView) -> list[RankEvidence]:
    ended = {e.rank for e in view.exits}
    keys: dict[GroupKey, HashedGroupKey] = {}  # one object for each group, shared by all its members
    return [_rank_evidence(view, status, keys, ended=status.rank in ended) for status in view.ranks]


def _rank_evidence(
    view: JobView, status: RankStatus, keys: dict[GroupKey, HashedGroupKey], *, ended: bool
) -> RankEvidence:
    own_keys = [HashedGroupKey(g.group, g.members) for g in status.groups]
    groups = [(keys.setdefault(key, key), g) for key, g in zip(own_keys, status.groups, strict=True)]
    return RankEvidence(
        rank=status.rank,
        state="gone" if ended else status.state,
        computing=_computing(status),
        silence_ns=view.age_ns(status),
        enqueued={key: g.enqueued for key, g in groups},
        completed={key: g.completed for key, g in groups},
        waits=tuple(_wait(key, g) for key, g in groups if g.op),
    )


def _computing(status: RankStatus) -> bool:
    """Whether the rank works on its own. A recv may be posted ahead, and nothing else is in flight."""
    own = bool(status.last_phase) and status.last_phase not in _COMMUNICATION
    return own and all(g.peer >= 0 and "recv" in g.op for g in status.groups if g.op)


def _wait(key: GroupKey, group: GroupStatus) -> Wait:
    return Wait(
        group=key,
        seq=group.op_seq,
        op=group.op,
        size=str(group.op_bytes),
        peer=group.peer,
        order=-group.op_age_ns,
    )


def _verdicts(view: JobView, diagnosis: HangDiagnosis, stall_ns: int) -> list[Verdict]:
    if diagnosis.verdict in ("none", "uncertain"):
        reason = f"no progress for {stall_ns / 1e9:.1f} s, but {diagnosis.reason}"
        return [Inconclusive(analyzer="hang", reason=reason)]
    template = _finding(view, diagnosis, stall_ns)
    if not diagnosis.culprits:
        return [template]
    return [_for_rank(template, rank, view.node_of(rank)) for rank in diagnosis.culprits]


def _for_rank(template: Finding, rank: int, node: str) -> Finding:
    where = f" on {node}" if node else ""
    return replace(
        template,
        subject_type="rank",
        subject=str(rank),
        summary=f"The job hangs at rank {rank}{where}: {template.summary}",
    )


def _is_certain(view: JobView, diagnosis: HangDiagnosis) -> bool:
    """Whether the hang cannot end by itself: operations do not match, or every rank at fault cannot move.

    A rank at fault that is alive may still save, evaluate, compile, download or be under a debugger.
    """
    if diagnosis.verdict == "desync":
        return True
    states = {r.rank: r.state for r in view.ranks}
    return bool(diagnosis.culprits) and all(states.get(r) in FROZEN for r in diagnosis.culprits)


def _finding(view: JobView, diagnosis: HangDiagnosis, stall_ns: int) -> Finding:
    """Return the finding on the stuck group. `_for_rank` turns it into one on a rank."""
    network = not diagnosis.culprits
    silences = {r.rank: view.age_ns(r) for r in view.ranks} if len(view.ranks) <= _MAX_SILENCES else {}
    return Finding(
        ts_ns=view.now_ns,
        job=view.job,
        attempt=view.attempt,
        kind="hang",
        subject_type="group",
        subject=diagnosis.group[0] if diagnosis.group else "",
        severity="critical",
        confidence=diagnosis.confidence,
        summary=f"The job hangs in the network: {diagnosis.reason}" if network else diagnosis.reason,
        evidence={
            "query": "watch.hang",
            "certain": _is_certain(view, diagnosis),
            "class": diagnosis.verdict,
            "culprits": diagnosis.culprits,
            "victims": diagnosis.victims,
            "nodes": sorted({node for r in diagnosis.culprits if (node := view.node_of(r))}),
            "silence_ns": silences,
            "stall_ns": stall_ns,
            "median_step_ns": view.median_step_ns,
            "groups": [group.answer() for group in diagnosis.groups[:_MAX_GROUPS]],
        },
    )
