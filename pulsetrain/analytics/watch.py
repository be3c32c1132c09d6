"""From live state to verdicts: what the hub asks several times a second, of heartbeats and exits alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pulsetrain.analytics import calibration
from pulsetrain.analytics.crash import Attempt, explain
from pulsetrain.analytics.hangs import condition, device_waits, still_groups
from pulsetrain.analytics.hangs.evidence import GroupKey, HashedGroupKey, RankEvidence, Wait
from pulsetrain.analytics.hangs.hang import HangDiagnosis, diagnose
from pulsetrain.analytics.hangs.job_view import COMMUNICATION, JobView, WatchConfig
from pulsetrain.analytics.hangs.stall import PROVEN, Stall, device_members
from pulsetrain.analytics.machines.log_rules import classify
from pulsetrain.analytics.verdict import Finding, Healthy, Inconclusive, Verdict
from pulsetrain.protocol.late_rows import column
from pulsetrain.protocol.messages import GroupStatus, RankStatus
from pulsetrain.protocol.transfer_peer import NO_PEER

__all__ = ["HangLook", "JobView", "WatchConfig", "crash", "hang", "hang_limit_ns", "look"]

_MOST_LISTED = 16  # ranks in a reason
HARDLY = 0.1  # the share of infrastructure up to which the machine is hardly at fault
_EARLY = 0.5  # share of the silence that is a hang at which the ranks that would be at fault are looked into


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
        job=view.job,
        attempt=view.attempt,
        now_ns=view.now_ns,
        size=view.size(),
        node_of=view.node_of,
        nodes=frozenset(member.node for member in view.world),
        waiting=frozenset(rank.rank for rank in view.ranks if any(group.op for group in rank.groups)),
    )
    verdicts = [_with_blame(v) for v in explain(attempt, view.exits, view.lost_nodes)]
    return calibration.apply(verdicts, covered=not view.has_gpus)


def _with_blame(verdict: Verdict) -> Verdict:
    """A crash with the shares of infrastructure, framework and user code, from what the rank printed last.

    Where the machine is hardly the cause, nobody is advised to evict it.
    """
    if not isinstance(verdict, Finding) or verdict.kind != "crash" or not verdict.evidence["exit"]:
        return verdict
    likely = classify(verdict.evidence["last_lines"], verdict.evidence["code"])
    shares = {name: round(share, 3) for name, share in likely.shares.items()}
    evidence = {**verdict.evidence, "blame": shares}
    if shares["infrastructure"] <= HARDLY:
        where = f"{verdict.subject_type} {verdict.subject}"
        evidence["suggested_action"] = (
            f"Mend what the last lines of {where} say. The machine is hardly at fault."
        )
    return replace(verdict, evidence=evidence)


@dataclass(frozen=True, kw_only=True)
class HangLook:
    """What one look says. `stall_ns` is the silence of the whole job, and `place` where it is spent.

    `stall_ns` is None where nothing can be said. `suspects` are ranks that would be at fault, and of which
    it is not known whether they work.
    """

    verdicts: tuple[Verdict, ...]
    stall_ns: int | None
    suspects: tuple[int, ...] = ()
    place: str = ""


def hang(view: JobView, config: WatchConfig | None = None) -> list[Verdict]:
    """Return whether the job stands still, and the rank, link or mismatch that causes it.

    There is one finding for each rank at fault, or one on the group where the network is at fault. Its
    evidence has class, culprits, victims, nodes, silences and groups, and what the rank does (`condition`).
    The verdict is `Inconclusive` where nobody can be named or the rank works, and where only ranks move that
    those that wait do not wait for. It is `Healthy` while other ranks move.

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
    return list(look(view, config).verdicts)


def look(view: JobView, config: WatchConfig | None = None) -> HangLook:
    """Return what `hang` says, with what the next look needs to know."""
    config = config or WatchConfig()
    blind = _blind(view, config)
    if blind is not None:
        return HangLook(verdicts=(blind,), stall_ns=None)
    stall_ns, base_ns, limit_ns = _stall_ns(view), _base_ns(view, config), hang_limit_ns(view, config)
    healthy = (_of_some(view, limit_ns) if stall_ns < limit_ns else None) or Healthy(
        analyzer="hang", numbers={"silence_ns": stall_ns, "limit_ns": limit_ns}
    )
    stopped = _has_stopped_rank(view, config)
    mismatch = stall_ns >= config.stopped_s * 1e9 and _has_mismatch(view)
    if stall_ns < _EARLY * base_ns and not (stopped or mismatch):
        return HangLook(verdicts=(healthy,), stall_ns=stall_ns)
    evidence = _evidence(view)
    waiting = {status.rank for status in view.ranks if status.last_phase == device_waits.PHASE}
    diagnosis = device_waits.without_waiting(diagnose(evidence), waiting)
    if mismatch and diagnosis.proven:
        base_ns = limit_ns = min(base_ns, limit_ns, stall_ns)
    if stall_ns < base_ns:
        early = HangLook(verdicts=(healthy,), stall_ns=stall_ns, suspects=_suspects(view, diagnosis))
        if not stopped:
            return early
        diagnosis = device_waits.without_waiting(diagnose(evidence, stalled=False), waiting)
    stall = Stall(view=view, config=config, diagnosis=diagnosis, stall_ns=stall_ns)
    verdicts = stall.verdicts()
    if stall_ns < limit_ns:
        named = [v for v in verdicts if isinstance(v, Finding)]
        verdicts = [v for v in named if v.evidence["condition"] in PROVEN or v.evidence["starting"]]
    return HangLook(
        verdicts=tuple(calibration.apply(verdicts, covered=not view.has_gpus)) or (healthy,),
        stall_ns=stall_ns,
        suspects=_suspects(view, diagnosis),
        place=stall.place(),
    )


def _of_some(view: JobView, limit_ns: int) -> Inconclusive | None:
    """Return why it is not known whether some ranks stand still for good while others move."""
    still = still_groups.find(view, limit_ns)
    if still is None:
        return None
    who, seconds = _listed(still.ranks), still.silence_ns / 1e9
    reason = (
        f"{who} wait in group {still.group} or for those that do, and none moved for {seconds:.1f} s. "
        "The ranks that move are not waited for"
    )
    return Inconclusive(analyzer="hang", reason=reason)


def _blind(view: JobView, config: WatchConfig) -> Inconclusive | None:
    """Return why nothing can be said, None where something can."""
    if not view.ranks:
        return Inconclusive(analyzer="hang", reason="no rank has reported yet", blind=True)
    if view.lost_nodes or any(e.code != 0 for e in view.exits):
        return Inconclusive(analyzer="hang", reason="a rank or a node is gone: see crash")
    limit_ns = config.stale_s * 1e9
    pairs = zip(column(view.ranks, "rank"), view.report_ages_ns, strict=True)
    if silent := sorted([rank for rank, age_ns in pairs if age_ns > limit_ns]):
        return Inconclusive(analyzer="hang", reason=f"no report from {_listed(silent)}", blind=True)
    return None


def _listed(ranks: Sequence[int]) -> str:
    """Return ranks as words: all of them, or of very many the first."""
    if len(ranks) <= _MOST_LISTED:
        return f"ranks {list(ranks)}"
    return f"{len(ranks)} ranks, first {list(ranks[:_MOST_LISTED])}"


def _suspects(view: JobView, diagnosis: HangDiagnosis) -> tuple[int, ...]:
    """Return the ranks whose stacks tell whether they work: not those that move bytes or are stopped."""
    states = {r.rank: r.state for r in view.ranks}
    moving = {
        rank for rank, activity in view.activity.items() if condition.moves_bytes(activity) or activity.traced
    }
    suspects = dict.fromkeys((*diagnosis.culprits, *device_members(view, diagnosis)))
    return tuple(r for r in suspects if r not in moving and states.get(r) not in condition.FROZEN)


def _base_ns(view: JobView, config: WatchConfig) -> int:
    """Return the silence that is a hang in an ordinary step, in nanoseconds."""
    return int(max(config.stall_s * 1e9, config.stall_steps * view.median_step_ns))


def hang_limit_ns(view: JobView, config: WatchConfig) -> int:
    """Return the silence of the whole job that counts as a hang now, in nanoseconds."""
    base_ns = _base_ns(view, config)
    if not view.first_step_done:
        return max(base_ns, int(config.start_s * 1e9))
    if view.in_slow_phase():
        return max(base_ns, int(config.patient_s * 1e9))
    return base_ns


def _stall_ns(view: JobView) -> int:
    """Return the shortest silence of a rank that can move, or of any rank where none can."""
    pairs = zip(view.states, view.ages_ns, strict=True)
    movable = [age_ns for state, age_ns in pairs if state not in ("zombie", "gone")]
    return min(movable or view.ages_ns)


def _has_stopped_rank(view: JobView, config: WatchConfig) -> bool:
    """Whether a process has been stopped for so long that it is no accident.

    One whose activity is not known yet may have been seen between two turns. It is given twice the time.
    """
    if "stopped" not in view.states:
        return False
    limits_ns = {True: config.stopped_s * 1e9, False: 2 * config.stopped_s * 1e9}
    return any(
        r.state == "stopped"
        and age_ns >= limits_ns[r.rank in view.activity]
        and not condition.is_continued(view.activity.get(r.rank))
        for r, age_ns in zip(view.ranks, view.ages_ns, strict=True)
    )


def _has_mismatch(view: JobView) -> bool:
    """Whether members of a group are in different operations at the same sequence number.

    Not where operations end on devices. What is shown in flight there may have ended.
    """
    operations: dict[tuple[str, tuple[int, ...], int], tuple[str, int]] = {}
    for status in view.ranks:
        for group in status.groups:
            if group.op and group.peer == NO_PEER and not group.on_device:
                mine = (group.op, group.op_bytes)
                if operations.setdefault((group.group, group.members, group.op_seq), mine) != mine:
                    return True
    return False


def _evidence(view: JobView) -> list[RankEvidence]:
    ended = {e.rank for e in view.exits}
    keys = _GroupKeys()
    pairs = zip(view.ranks, view.ages_ns, strict=True)
    return [_rank_evidence(s, age_ns, keys, ended=s.rank in ended) for s, age_ns in pairs]


class _GroupKeys:
    """One key for each group, shared by all its members: to sort thousands of ranks takes long."""

    def __init__(self) -> None:
        self._by_members: dict[tuple[str, tuple[int, ...]], HashedGroupKey] = {}
        self._shared: dict[GroupKey, HashedGroupKey] = {}
        self._members: dict[HashedGroupKey, frozenset[int]] = {}

    def of(self, group: GroupStatus) -> HashedGroupKey:
        """The key of a group. Members in another order are the same group."""
        named = (group.group, group.members)
        key = self._by_members.get(named)
        if key is None:
            made = HashedGroupKey(group.group, group.members)
            key = self._by_members[named] = self._shared.setdefault(made, made)
            self._members[key] = frozenset(group.members)
        return key

    def of_rank(self, status: RankStatus) -> list[tuple[HashedGroupKey, GroupStatus]]:
        """A rank's groups with their keys. One that does not list the rank has other numbers than the job."""
        keyed = ((self.of(group), group) for group in status.groups)
        return [(key, group) for key, group in keyed if status.rank in self._members[key]]


def _rank_evidence(status: RankStatus, age_ns: int, keys: _GroupKeys, *, ended: bool) -> RankEvidence:
    groups = keys.of_rank(status)
    return RankEvidence(
        rank=status.rank,
        state="gone" if ended else status.state,
        computing=_computing(status),
        blocked=bool(status.waits_in) or status.last_phase in COMMUNICATION,
        waits_in=status.waits_in,
        silence_ns=age_ns,
        enqueued={key: g.enqueued for key, g in groups},
        completed={key: g.completed for key, g in groups},
        waits=tuple(_wait(key, g) for key, g in groups if g.op and len(g.members) != 1),  # not for itself
    )


def _computing(status: RankStatus) -> bool:
    """Whether the rank works on its own. A recv may be posted ahead, and nothing else is in flight."""
    own = bool(status.last_phase) and status.last_phase not in COMMUNICATION
    return own and all(g.peer != NO_PEER and "recv" in g.op for g in status.groups if g.op)


def _wait(key: GroupKey, group: GroupStatus) -> Wait:
    return Wait(
        group=key,
        seq=group.op_seq,
        op=group.op,
        size=str(group.op_bytes),
        peer=group.peer,
        order=-group.op_age_ns,
        may_have_ended=group.on_device,
    )
