"""Live state to verdicts: what the hub asks twice a second, from heartbeats and exits alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pulsetrain.analytics import calibration
from pulsetrain.analytics.crash import explain
from pulsetrain.analytics.hangs import hang as graph
from pulsetrain.analytics.hangs.evidence import GroupKey, Key, RankEvidence, Wait
from pulsetrain.analytics.verdict import Finding, Healthy, Inconclusive, Verdict
from pulsetrain.protocol.messages import GroupStatus, RankExit, RankStatus, WorldNode
from pulsetrain.records.schema import PHASES

_COMMUNICATION = frozenset(PHASES[PHASES.index("all_reduce") : PHASES.index("gc")])
# Phases of an ordinary step: being stuck in one of these is judged by the step's own time.
_STEP_PHASES = frozenset({"", "idle", "step", "forward", "backward", "optimizer", "gc"}) | _COMMUNICATION


@dataclass(frozen=True, kw_only=True)
class WatchConfig:
    """When silence becomes a hang."""

    stall_s: float = 3.0
    """shortest silence of the whole job that is a hang, in seconds"""
    stall_steps: float = 2.5
    """the same in median steps; the longer of the two counts"""
    stopped_s: float = 2.0
    """silence after which a rank whose process is stopped is at fault, whatever its peers do, in seconds"""
    start_s: float = 60.0
    """limit before the first step of an attempt is done, in seconds"""
    patient_s: float = 60.0
    """limit while a rank loads data, checkpoints, evaluates or is in a phase of the user's own, in seconds"""
    stale_s: float = 2.5
    """age of a report beyond which a rank counts as not heard, in seconds"""

    def __post_init__(self) -> None:
        for name in ("stall_s", "stall_steps", "stopped_s", "start_s", "patient_s", "stale_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} = {getattr(self, name)}: must be above 0")


@dataclass(frozen=True, kw_only=True)
class JobView:
    """Everything the hub knows of one attempt of one job now.

    `ranks` is the newest report of each rank and `seen_ns` when it arrived on the hub's clock (a rank that is
    not in it counts as heard at `now_ns`). `median_step_ns` is 0 while unknown. Ranks are placed by `world`.
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
        """Name of the rank's node; empty where `world` does not say."""
        first = 0
        for place in sorted(self.world, key=lambda p: p.node_rank):
            first += place.nproc
            if rank < first:
                return place.node
        return ""

    def size(self) -> int:
        """Number of ranks the attempt has."""
        return sum(p.nproc for p in self.world) or len(self.ranks)

    def age_ns(self, status: RankStatus) -> int:
        """Time since the rank last made progress, the report's own age included."""
        return status.progress_age_ns + max(0, self.now_ns - self.seen_ns.get(status.rank, self.now_ns))


def crash(view: JobView) -> list[Verdict]:
    """Who ended first and of what, and who died only because of that. Kinds `crash` and `node_lost`."""
    verdicts = explain(
        job=view.job,
        attempt=view.attempt,
        now_ns=view.now_ns,
        exits=view.exits,
        lost_nodes=view.lost_nodes,
        node_of=view.node_of,
        size=view.size(),
    )
    return calibration.apply(verdicts)


def hang(view: JobView, config: WatchConfig | None = None) -> list[Verdict]:
    """Whether the job stands still, and which rank, link or mismatch makes it.

    One finding for each rank at fault (evidence: class, culprits, victims, nodes, ages, groups), or one on
    the group for class network; `Inconclusive` where nobody can be named; `Healthy` while somebody moves.
    """
    config = config or WatchConfig()
    heard = tuple(r for r in view.ranks if _report_age_ns(view, r) <= config.stale_s * 1e9)
    if not view.ranks:
        return [Inconclusive(analyzer="hang", reason="no rank has reported yet", blind=True)]
    failed = [e.rank for e in view.exits if e.code != 0]
    if failed or view.lost_nodes:
        return [Inconclusive(analyzer="hang", reason="a rank or a node is gone: see crash")]
    if len(heard) < len(view.ranks):
        silent = sorted(r.rank for r in view.ranks if r not in heard)
        return [Inconclusive(analyzer="hang", reason=f"no report from ranks {silent}", blind=True)]
    stopped = _stopped(view, heard, config)
    stall_ns = min(view.age_ns(r) for r in heard if r.state not in ("zombie", "gone")) if heard else 0
    limit_ns = limit(view, config)
    if not stopped and stall_ns < limit_ns:
        return [Healthy(analyzer="hang", numbers={"silence_ns": stall_ns, "limit_ns": limit_ns})]
    blamed = graph.blame(_witnesses(view), stalled=stall_ns >= limit_ns)
    return calibration.apply(_verdicts(view, blamed, stall_ns))


def limit(view: JobView, config: WatchConfig) -> int:
    """Silence of the whole job, in nanoseconds, that counts as a hang now."""
    base_ns = int(max(config.stall_s * 1e9, config.stall_steps * view.median_step_ns))
    if not view.first_step_done:
        return max(base_ns, int(config.start_s * 1e9))
    if any(r.last_phase not in _STEP_PHASES for r in view.ranks):
        return max(base_ns, int(config.patient_s * 1e9))
    return base_ns


def _report_age_ns(view: JobView, status: RankStatus) -> int:
    return max(0, view.now_ns - view.seen_ns.get(status.rank, view.now_ns))


def _stopped(view: JobView, heard: tuple[RankStatus, ...], config: WatchConfig) -> list[int]:
    """Ranks whose process is stopped and that have been silent long enough for that to be no accident."""
    limit_ns = config.stopped_s * 1e9
    return [r.rank for r in heard if r.state == "stopped" and view.age_ns(r) >= limit_ns]


def _witnesses(view: JobView) -> list[RankEvidence]:
    ended = {e.rank for e in view.exits}
    keys: dict[Key, Key] = {}  # one object for a group, however many tell of it
    return [_witness(view, r, keys, gone=r.rank in ended) for r in view.ranks]


def _witness(view: JobView, status: RankStatus, keys: dict[Key, Key], *, gone: bool) -> RankEvidence:
    made = [(GroupKey(g.group, g.members), g) for g in status.groups]
    keyed = [(keys.setdefault(key, key), g) for key, g in made]
    return RankEvidence(
        rank=status.rank,
        state="gone" if gone else status.state,
        computing=_computing(status),
        silence_ns=view.age_ns(status),
        enqueued={key: g.enqueued for key, g in keyed},
        completed={key: g.completed for key, g in keyed},
        waits=tuple(_wait(key, g) for key, g in keyed if g.op),
    )


def _computing(status: RankStatus) -> bool:
    """Whether the rank is in a phase of its own work: a recv may be posted ahead, nothing else in flight."""
    own = bool(status.last_phase) and status.last_phase not in _COMMUNICATION
    return own and all(g.peer >= 0 and "recv" in g.op for g in status.groups if g.op)


def _wait(key: Key, group: GroupStatus) -> Wait:
    return Wait(
        group=key,
        seq=group.op_seq,
        op=group.op,
        size=str(group.op_bytes),
        peer=group.peer,
        order=-group.op_age_ns,
    )


def _verdicts(view: JobView, blamed: graph.Blame, stall_ns: int) -> list[Verdict]:
    if blamed.verdict in ("none", "uncertain"):
        reason = f"no progress for {stall_ns / 1e9:.1f} s, but {blamed.reason}"
        return [Inconclusive(analyzer="hang", reason=reason)]
    template = _finding(view, blamed, stall_ns)
    if not blamed.culprits:
        return [template]
    return [_for_rank(template, rank, view.node_of(rank)) for rank in blamed.culprits]


def _for_rank(template: Finding, rank: int, node: str) -> Finding:
    where = f" on {node}" if node else ""
    return replace(
        template,
        subject_type="rank",
        subject=str(rank),
        summary=f"The job hangs at rank {rank}{where}: {template.summary}",
    )


def _finding(view: JobView, blamed: graph.Blame, stall_ns: int) -> Finding:
    """The finding on the stuck group; `_for_rank` turns it into one on a rank."""
    nodes = sorted({node for r in blamed.culprits if (node := view.node_of(r))})
    return Finding(
        ts_ns=view.now_ns,
        job=view.job,
        attempt=view.attempt,
        kind="hang",
        subject_type="group",
        subject=blamed.group[0] if blamed.group else "",
        severity="critical",
        confidence=blamed.confidence,
        summary=blamed.reason if blamed.culprits else f"The job hangs in the network: {blamed.reason}",
        evidence={
            "query": "watch.hang",
            "class": blamed.verdict,
            "culprits": blamed.culprits,
            "victims": blamed.victims,
            "nodes": nodes,
            "silence_ns": {r.rank: view.age_ns(r) for r in view.ranks} if len(view.ranks) <= 64 else {},
            "stall_ns": stall_ns,
            "median_step_ns": view.median_step_ns,
            "groups": [g.__dict__ for g in blamed.groups[:16]],
        },
    )
