"""From a diagnosis of who is at fault to findings: what each of them does, and whether that is a hang."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from pulsetrain.analytics.hangs import broken_links, condition
from pulsetrain.analytics.hangs.broken_links import BrokenLinks
from pulsetrain.analytics.hangs.condition import Condition
from pulsetrain.analytics.hangs.hang import HangDiagnosis
from pulsetrain.analytics.hangs.job_view import JobView, WatchConfig, slow_phase
from pulsetrain.analytics.hangs.sinks import StuckGroup
from pulsetrain.analytics.verdict import Finding, Inconclusive, SubjectType, Verdict
from pulsetrain.protocol.messages import RankStatus

OF_BROKEN_LINKS = ("waits", "still", "unknown", "network")  # conditions of a rank that waits for a network
PROVEN = ("frozen", "mismatch")  # conditions that are named wherever the job stands
_MAX_SILENCES = 64  # ranks whose silences are listed in the evidence; of a larger job none are
_MAX_GROUPS = 16
_MAY_PAUSE = 0.5  # of the confidence is left in a hang that may be a pause
_OF_LINKS = 0.8  # stated confidence in a link that carries nothing, as in a network where every member waits
_MAX_LINKS = 64  # that are listed in the evidence
_ON_THE_HOST = ("working", "waits", "slow_phase", "debugger")  # what a rank does that no device holds up
MOST_NAMED = 16
"""Ranks that get a finding of their own, those that cannot move first."""
MOST_LISTED = 512  # as many as the dashboard shows one by one
"""Ranks of one kind, and nodes, that the evidence of a finding lists. Where there are more it counts them."""
_MOST_OF_GROUP = 64  # ranks of one kind that it lists of a stuck group
MOST_JUDGED = 16  # members of a group on devices whose stacks are read
_DEVICE_TIMEOUT_S, _HOST_TIMEOUT_S = 600, 1800  # torch's own, of NCCL and of gloo
_USUAL = 1.25  # a silence shorter than so many times the longest that ended at the same place is no hang


@dataclass(frozen=True, kw_only=True)
class Stall:
    """A job that stands still, and who is held for it."""

    view: JobView
    config: WatchConfig
    diagnosis: HangDiagnosis
    stall_ns: int

    def verdicts(self) -> list[Verdict]:
        """Return a finding for each rank at fault that does not work, or why there is none."""
        diagnosis = self.diagnosis
        silence = f"no progress for {self.stall_ns / 1e9:.1f} s, but"
        if self.broken.pairs and (found := self._of_links()):
            return [found]
        if diagnosis.verdict in ("none", "uncertain"):
            return [Inconclusive(analyzer="hang", reason=f"{silence} {diagnosis.reason}")]
        if not diagnosis.culprits:
            stuck = self._network()
            if self._is_hang(stuck):
                return [self._finding(stuck)]
            return [Inconclusive(analyzer="hang", reason=f"{silence} {stuck.why}")]
        conditions = {rank: self._condition(rank) for rank in diagnosis.culprits}
        hangs = [(rank, what) for rank, what in conditions.items() if self._is_hang(what)]
        if hangs:
            if len(hangs) > MOST_NAMED:
                hangs = sorted(hangs, key=lambda hang: not self._is_certain(hang[1]))[:MOST_NAMED]
            return [self._of_rank(rank, what) for rank, what in hangs]
        excuses = ", ".join(f"rank {r} {what.why}" for r, what in list(conditions.items())[:MOST_NAMED])
        more = f", and {len(conditions) - MOST_NAMED} more ranks" if len(conditions) > MOST_NAMED else ""
        return [Inconclusive(analyzer="hang", reason=f"{silence} {excuses}{more}")]

    @cached_property
    def broken(self) -> BrokenLinks:
        """Links that carry nothing."""
        return broken_links.find(self.view)

    @cached_property
    def _statuses(self) -> dict[int, RankStatus]:
        return {status.rank: status for status in self.view.ranks}

    @cached_property
    def _culprits(self) -> frozenset[int]:
        return frozenset(self.diagnosis.culprits)

    def _of_links(self) -> Finding | None:
        """Return the finding on links that carry nothing, None where the ranks at fault do something else.

        A rank behind such a link may have finished less than its peers. So it looks as if they waited for it.
        """
        culprits = self.diagnosis.culprits
        does = [self._condition(rank) for rank in culprits]
        if any(rank not in self.broken.ranks for rank in culprits):
            return None
        if any(what.kind not in OF_BROKEN_LINKS for what in does):
            return None
        stuck = self._network()
        return self._finding(stuck) if self._is_hang(stuck) else None

    def place(self) -> str:
        """Return where the job spends this silence: the first rank's place in its code, else its phase."""
        if not self.diagnosis.culprits:
            return f"group {self.diagnosis.group[0]}" if self.diagnosis.group else ""
        first = self.diagnosis.culprits[0]
        posture = self.view.postures.get(first)
        if posture is not None and posture.newest.place:
            return posture.newest.place
        status = self._statuses.get(first)
        return f"phase {status.last_phase}" if status is not None and status.last_phase else ""

    def _condition(self, rank: int) -> Condition:
        """Return what a rank at fault does."""
        found = self._judge(rank)
        if found.kind in ("frozen", "debugger") or self.diagnosis.verdict != "desync":
            return found
        if self.diagnosis.proven:
            return Condition(kind="mismatch", why="is in an operation that its peers are not in")
        return self._network()

    def _judge(self, rank: int, *, spins_elsewhere: bool = False) -> Condition:
        """Return what a rank does by its process alone.

        `spins_elsewhere`: threads of its communication library turn beside a main thread that stands.
        """
        status = self._statuses.get(rank)
        if status is None:
            return Condition(kind="unknown", why="left no report")
        activity, posture = self.view.activity.get(rank), self.view.postures.get(rank)
        if spins_elsewhere and activity is not None and condition.stands(posture):
            activity = replace(activity, cpu_ratio=min(activity.cpu_ratio, 1.0), faults_s=0.0)
        slow = slow_phase(status) if self.view.first_step_done else "its start"
        found = condition.judge(status.state, slow, activity, posture)
        if self._is_awaited(status):
            usual = condition.judge(status.state, slow_phase(status), activity, posture)
            found = usual if usual.kind == "held_gil" else found
        return replace(found, kind="spin") if found.kind == "device" and not self.view.has_gpus else found

    def _is_awaited(self, status: RankStatus) -> bool:
        """Whether peers wait for the rank in a collective, after others that it has done: it has started."""
        of_rank = self.diagnosis.verdict == "rank" and status.rank in self._culprits
        return of_rank and any(group.completed > 0 for group in status.groups)

    def _network(self) -> Condition:
        """Return what ranks do that all wait: a processor that spins for the device says nothing."""
        members = self.diagnosis.group[1] if self.diagnosis.group else ()
        flows = [a for r in members if (a := self.view.activity.get(r)) and condition.moves_bytes(a)]
        if flows:
            rate = sum(a.io_bytes_s for a in flows) / 1e6
            return Condition(kind="working", why=f"its members move {rate:.1f} MB/s")
        slow = [phase for r in self.view.ranks if r.rank in members and (phase := slow_phase(r))]
        if slow and not self.broken.pairs:
            return Condition(kind="slow_phase", why=f"is in {slow[0]}")
        if not self.broken.pairs and (found := self._beside_device()):
            return found
        why = self.broken.why if self.broken.pairs else "every member waits"
        return Condition(kind="network", why=why, lasts_ns=self.stall_ns)

    def _beside_device(self) -> Condition | None:
        """Return what a member does that does not wait for the device, None where all may wait for it.

        Operations that ended on a device are shown as in flight until the rank looks. Ranks that compute or
        wait for something else on the host have not looked.
        """
        for rank in device_members(self.view, self.diagnosis):
            found = self._judge(rank, spins_elsewhere=True)
            if found.kind in _ON_THE_HOST:
                return replace(found, why=f"rank {rank} {found.why}")
        return None

    def _is_hang(self, found: Condition) -> bool:
        if found.kind in PROVEN:
            return True
        if found.kind in ("working", "debugger"):
            return False
        spin_s = self.config.spin_s
        limits_s = {"spin": spin_s, "device": min(spin_s, self.config.patient_s)}
        if found.lasts_ns < limits_s.get(found.kind, 0.0) * 1e9:
            return False
        return self.stall_ns >= _USUAL * self.view.usual_ns.get(self.place(), 0)

    def _is_certain(self, found: Condition) -> bool:
        """Whether the hang cannot end by itself."""
        limits_s = {"held_gil": self.config.held_gil_s, "loop": self.config.loop_s}
        if found.kind in limits_s:
            if found.kind == "held_gil" and not self.view.first_step_done:
                return False
            return found.lasts_ns >= limits_s[found.kind] * 1e9
        return found.kind in ("frozen", "mismatch")

    def _of_rank(self, rank: int, found: Condition) -> Finding:
        template, node = self._finding(found), self.view.node_of(rank)
        where = f" on {node}" if node else ""
        does = "" if found.kind in ("frozen", "mismatch", "unknown") else f"; it {found.why}"
        how = "stands, perhaps for a pause," if self._may_pause(found) else "hangs"
        return replace(
            template,
            subject_type="rank",
            subject=str(rank),
            summary=f"The job {how} at rank {rank}{where}: {template.summary}{does}",
        )

    def _may_pause(self, found: Condition) -> bool:
        """Whether a healthy rank may do this, for as long as the job stands."""
        return found.kind in condition.MAY_PAUSE and self.stall_ns < self.config.spin_s * 1e9

    def _confidence(self, found: Condition, links: BrokenLinks) -> float:
        if links.pairs:
            return _OF_LINKS
        return self.diagnosis.confidence * (_MAY_PAUSE if self._may_pause(found) else 1.0)

    def _finding(self, found: Condition) -> Finding:
        """Return the finding on the stuck group. `_of_rank` turns it into one on a rank."""
        view, diagnosis = self.view, self.diagnosis
        links = self.broken if found.kind == "network" else BrokenLinks()
        network = bool(links.pairs) or (not diagnosis.culprits and found.kind == "network")
        reason = links.why if links.pairs else diagnosis.reason
        subject_type: SubjectType = "group"
        subject = diagnosis.group[0] if diagnosis.group else ""
        if links.subject is not None:
            subject_type, subject = links.subject
        return Finding(
            ts_ns=view.now_ns,
            job=view.job,
            attempt=view.attempt,
            kind="hang",
            subject_type=subject_type,
            subject=subject,
            severity="warning" if self._may_pause(found) else "critical",
            confidence=self._confidence(found, links),
            summary=f"The job hangs in the network: {reason}" if network else reason,
            evidence={**self._evidence, **self._evidence_of(found), **_evidence_of_links(links)},
        )

    def _evidence_of(self, found: Condition) -> dict[str, object]:
        """Return what decides when the job may be stopped for it."""
        place, config = self.place(), self.config
        starting = found.kind == "held_gil" and not self.view.first_step_done
        sooner_s = config.spin_s if found.kind == "device" else config.start_s if starting else 0.0
        return {
            "starting": starting,
            "certain": self._is_certain(found),
            "condition": found.kind,
            "condition_why": found.why,
            "condition_ns": found.lasts_ns,
            "looked_at_ns": int(sooner_s * 1e9),
            "place": place,
            "usual_ns": self.view.usual_ns.get(place, 0),
            **self._timeout,
        }

    @cached_property
    def _timeout(self) -> dict[str, object]:
        """After which torch ends the operation that the job stands in, 0 if that is not known.

        With `timeout_chosen`: whether the script has set it. Operations of other groups may be in flight for
        as long as they like.
        """
        stuck = self.diagnosis.group[0] if self.diagnosis.group else ""
        groups = [g for status in self.view.ranks for g in status.groups if g.op and g.timeout_s]
        of_stuck = [g for g in groups if g.group == stuck]
        longest = max(of_stuck or groups, key=lambda g: g.timeout_s, default=None)
        if longest is None:
            return {"timeout_ns": 0, "timeout_chosen": False}
        usual_s = _DEVICE_TIMEOUT_S if longest.on_device else _HOST_TIMEOUT_S
        return {"timeout_ns": longest.timeout_s * 10**9, "timeout_chosen": longest.timeout_s != usual_s}

    @cached_property
    def _evidence(self) -> dict[str, object]:
        """What is the same in every finding."""
        view, diagnosis = self.view, self.diagnosis
        few = len(view.ranks) <= _MAX_SILENCES
        return {
            "query": "watch.hang",
            "class": diagnosis.verdict,
            **_bounded("culprits", diagnosis.culprits),
            **_bounded("victims", diagnosis.victims),
            **_bounded("nodes", sorted({node for r in diagnosis.culprits if (node := view.node_of(r))})),
            "silence_ns": {r.rank: view.age_ns(r) for r in view.ranks} if few else {},
            "stall_ns": self.stall_ns,
            "median_step_ns": view.median_step_ns,
            "groups": [_group(group) for group in diagnosis.groups[:_MAX_GROUPS]],
        }


def _bounded(name: str, all_of_them: Sequence[object], most: int = MOST_LISTED) -> dict[str, object]:
    """Return the first of them under `name`, and under `name`_in_all how many there are where not all fit."""
    if len(all_of_them) <= most:
        return {name: all_of_them}
    return {name: all_of_them[:most], f"{name}_in_all": len(all_of_them)}


def _group(group: StuckGroup) -> dict[str, object]:
    """Return a stuck group for the evidence, its ranks bounded."""
    answer: dict[str, object] = {**group.answer()}
    for name in ("members", "waiting", "missing", "mismatched"):
        ranks = answer.pop(name)
        answer |= _bounded(name, ranks, _MOST_OF_GROUP) if isinstance(ranks, Sequence) else {}
    return answer


def _evidence_of_links(links: BrokenLinks) -> dict[str, object]:
    """Return what links that carry nothing change: the network is at fault, and no rank."""
    if not links.pairs:
        return {}
    pairs = [list(pair) for pair in links.pairs[:_MAX_LINKS]]
    nobody = {"culprits": [], "culprits_in_all": 0}
    return {
        "class": "network",
        **nobody,
        "nodes": links.nodes,
        "nodes_in_all": len(links.nodes),
        "links": pairs,
    }


def device_members(view: JobView, diagnosis: HangDiagnosis) -> tuple[int, ...]:
    """Return members of the group that all wait in, where its operations end on devices: the first ones.

    All of them may be in one operation, or in different ones that may have ended.
    """
    one_to_blame = diagnosis.culprits and (diagnosis.verdict != "desync" or diagnosis.proven)
    if one_to_blame or not diagnosis.group:
        return ()
    name, members = diagnosis.group[0], diagnosis.group[1][:MOST_JUDGED]
    waiting = {r.rank for r in view.ranks for g in r.groups if g.group == name and g.op and g.on_device}
    return tuple(rank for rank in members if rank in waiting)
