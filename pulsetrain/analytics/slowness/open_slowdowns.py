"""Slowdowns of a whole job stay findings until its times are again as they were before.

A look compares the newest steps with the steps before them. Some hundred steps after a job became slower, all
that a look sees are slow steps, and nothing in them is wrong. So the level before is kept. It is kept, too,
of a rank that has no majority of ranks to be compared with (`own_history`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from pulsetrain.analytics.slowness import fail_slow, mfu
from pulsetrain.analytics.slowness.timings import Timings
from pulsetrain.analytics.verdict import Finding, Healthy, Verdict

Floats = NDArray[np.float64]

NEWEST = 20  # steps that tell whether times are as before
BACK_SHARE = 0.5  # of the rise, below which they are
SAME_WORK = 0.05  # by which the FLOPs or tokens of a step may differ
NO_MAJORITY = 2  # ranks of a cohort: one of them is compared with its own past alone
UNKNOWN_NS = 1_800_000_000_000  # for so long a slowdown is kept of which no step tells whether it goes on
KEPT = "kept"  # in the evidence of a slowdown: the level before it
KINDS: Mapping[str, str] = MappingProxyType({"fail_slow": fail_slow.NAME, "mfu_decay": mfu.NAME})
"""Kinds of findings, and the analyzer of each."""


@dataclass(frozen=True, kw_only=True)
class _Level:
    """What a step cost before a slowdown.

    `measure`: the time of a step (`step`), of its compute (`compute`), or of a FLOP (`flops`). `per_token`:
    of the first two, for a token. `limit` is the cost that ends the slowdown. `done` is what a step did when
    that was measured: its FLOPs, else its tokens, for a token where costs are. NaN: not known. Costs of other
    work say nothing. Of a `rank`, -1 for none, it is the compute of a step, in that of the usual other rank.
    """

    measure: str
    per_token: bool
    limit: float
    done: float
    rank: int = -1

    @classmethod
    def told_by(cls, kept: object) -> _Level | None:
        """The level that an earlier hub recorded. None where that is damaged."""
        try:
            match kept:
                case {
                    "measure": str(measure),
                    "per_token": bool(per_token),
                    "limit": limit,
                    "done": done,
                    **more,
                }:
                    done = np.nan if done is None else float(done)
                    limit, rank = float(limit), int(str(more.get("rank", -1)))
                    return cls(measure=measure, per_token=per_token, limit=limit, done=done, rank=rank)
        except (TypeError, ValueError):
            pass
        return None

    def row(self) -> dict[str, object]:
        """The level as JSON."""
        done = None if np.isnan(self.done) else self.done
        row = {"measure": self.measure, "per_token": self.per_token, "limit": self.limit, "done": done}
        return row if self.rank < 0 else {**row, "rank": self.rank}

    def cost(self, of: Timings) -> Floats:
        """What each step costs."""
        if self.rank >= 0:
            return _beside_others(of, self.rank)
        times = _each(of, of.parts["compute"] if self.measure == "compute" else of.numbers["duration_ns"])
        if self.measure == "flops":
            return times / _usual_count(of, "flops")
        return times / _usual_count(of, "tokens") if self.per_token else times

    def work(self, of: Timings) -> float:
        """What a step does. Of a cost for a FLOP, or beside other ranks, it does not matter."""
        if self.measure == "flops" or self.rank >= 0:
            return 1.0
        tokens, flops = _usual_count(of, "tokens"), _usual_count(of, "flops")
        of_steps = flops / tokens if self.per_token else np.where(np.isfinite(flops), flops, tokens)
        return _newest(of_steps, of)


@dataclass(frozen=True, kw_only=True)
class _Open:
    """A slowdown that was seen. `known_ns` is when steps told last that it goes on, 0 for never."""

    finding: Finding
    level: _Level
    known_ns: int = 0

    @property
    def told(self) -> Finding:
        """The finding. Its evidence says what ends it, so that it outlives a hub."""
        return self.with_level(self.finding)

    def with_level(self, finding: Finding) -> Finding:
        """A finding on this slowdown, with what ends it."""
        return replace(finding, evidence={**finding.evidence, KEPT: self.level.row()})

    def still(self, timings: Timings) -> Finding:
        """The finding, where these steps are all that a look sees, and slow."""
        evidence = {**self.told.evidence, "last_step": int(timings.steps[-1])}
        return replace(self.finding, ts_ns=timings.now_ns, evidence=evidence)

    def after(self, timings: Timings) -> _Open | None:
        """The slowdown after these steps. None where they cost as little as before, or are other work.

        What steps do not tell ends nothing for a while: rows of some nodes come late.
        """
        done, cost = self.level.work(timings), _newest(self.level.cost(timings), timings)
        if abs(done - self.level.done) > SAME_WORK * self.level.done or cost < self.level.limit:
            return None
        known_ns = (self.known_ns or timings.now_ns) if np.isnan(cost) else timings.now_ns
        return replace(self, known_ns=known_ns) if timings.now_ns - known_ns <= UNKNOWN_NS else None


class OpenSlowdowns:
    """Those of one attempt of a job. One thread calls it. `earlier` are those that an earlier hub found, the
    newest first, and that were open when it ended."""

    def __init__(self, earlier: Iterable[Finding] = ()) -> None:
        self._open: dict[str, _Open] = {}
        self._ranks: dict[int, _Open] = {}
        for finding in earlier:
            level = _Level.told_by(finding.evidence.get(KEPT))
            if finding.kind not in KINDS or "first_step" not in finding.evidence or level is None:
                continue
            slowdown = _Open(finding=finding, level=level)
            if level.rank >= 0:
                self._ranks.setdefault(level.rank, slowdown)
            else:
                self._open.setdefault(finding.kind, slowdown)
        self._explained: set[int] = set()
        """When ranks became slower that were named for it."""

    def take(self, verdicts: Iterable[Verdict], timings: Timings, asked: Collection[str]) -> list[Verdict]:
        """What the analyzers `asked` said of these steps, with the slowdowns that have not ended.

        A slowdown is added where its analyzer names nobody. A rank that is named may explain it.
        """
        said = list(verdicts)
        for kind, analyzer in KINDS.items():
            if analyzer not in asked:
                continue
            found = [v for v in said if isinstance(v, Finding) and v.kind == kind]
            self._keep(kind, found, timings)
            held = self._open.get(kind)
            if held is not None and not found:
                said = [*_not_healthy(said, analyzer), held.still(timings)]
            elif held is not None:
                said = [_with_level(v, held) if v in found else v for v in said]
        return self._with_ranks(said, timings) if fail_slow.NAME in asked else said

    def _with_ranks(self, said: list[Verdict], timings: Timings) -> list[Verdict]:
        """What is said, with the ranks whose slowdown has not ended. It may say that of some itself."""
        found = {
            int(v.subject): v
            for v in said
            if isinstance(v, Finding) and v.kind == fail_slow.NAME and _has_no_majority(v, timings)
        }
        after = {rank: slowdown.after(timings) for rank, slowdown in self._ranks.items()}
        begun = {rank: _opened(finding, timings) for rank, finding in found.items() if not after.get(rank)}
        self._ranks = {rank: slowdown for rank, slowdown in (after | begun).items() if slowdown is not None}
        levels = {id(finding): self._ranks.get(rank) for rank, finding in found.items()}
        told = [_with(v, levels.get(id(v))) for v in said]
        held = [slowdown.still(timings) for rank, slowdown in self._ranks.items() if rank not in found]
        return [*_not_healthy(told, fail_slow.NAME), *held] if held else told

    def _keep(self, kind: str, found: Sequence[Finding], timings: Timings) -> None:
        """Forget what is over, and note what begins. Of findings on one slowdown the surest is kept."""
        held = self._open.get(kind)
        held = held.after(timings) if held is not None else None
        self._explained |= {_first(f) for f in found if f.subject_type != "job"}
        new = next((f for f in found if f.subject_type == "job"), None)
        if new is not None and held is None:
            held = None if self._explains(new) else _opened(new, timings)
        elif new is not None and held is not None and _same(new, held.finding):
            held = replace(held, finding=max(held.finding, new, key=lambda f: f.confidence))
        self._open = {k: o for k, o in self._open.items() if k != kind} | ({kind: held} if held else {})

    def _explains(self, finding: Finding) -> bool:
        """Whether a rank became slower then. It is named for as long as it is slower than the others."""
        began = _first(finding)
        return finding.kind == fail_slow.NAME and any(abs(at - began) <= NEWEST for at in self._explained)


def _with(said: Verdict, slowdown: _Open | None) -> Verdict:
    return slowdown.with_level(said) if isinstance(said, Finding) and slowdown is not None else said


def _not_healthy(said: Sequence[Verdict], analyzer: str) -> list[Verdict]:
    return [v for v in said if not (isinstance(v, Healthy) and v.analyzer == analyzer)]


def _has_no_majority(finding: Finding, timings: Timings) -> bool:
    """Whether it is on a rank, by its compute, that too few others do the same as."""
    if finding.subject_type != "rank" or finding.evidence.get("measure") != "compute":
        return False
    own = np.flatnonzero(timings.ranks == int(finding.subject))
    return bool(len(own)) and int((timings.classes == timings.classes[own[0]]).sum()) <= NO_MAJORITY


def _same(one: Finding, other: Finding) -> bool:
    """Whether two findings are of one slowdown: they begin at nearly the same step."""
    return abs(_first(one) - _first(other)) <= NEWEST


def _first(finding: Finding) -> int:
    return int(str(finding.evidence["first_step"]))


def _with_level(said: Verdict, held: _Open) -> Verdict:
    """A finding, with what ends it where it is on the slowdown that is held."""
    if not isinstance(said, Finding) or said.subject_type != "job" or not _same(said, held.finding):
        return said
    return replace(held, finding=said).told


def _opened(finding: Finding, timings: Timings) -> _Open | None:
    """The slowdown of a finding. None where the steps do not show it, as a drift that has hardly begun."""
    measure = "flops" if finding.kind == "mfu_decay" else str(finding.evidence.get("measure", "step"))
    rank = int(finding.subject) if finding.subject_type == "rank" else -1
    level = _Level(measure=measure, per_token=_tokens_differ(timings), limit=np.inf, done=np.nan, rank=rank)
    costs, first, rows = level.cost(timings), _first(finding), timings.compared
    before = _usual_cost(costs[rows[timings.steps[rows] < first]])
    during = _usual_cost(costs[rows[timings.steps[rows] >= first]][-NEWEST:])
    if not during > before > 0:
        return None
    limit = before + BACK_SHARE * (during - before)
    level = replace(level, limit=limit, done=level.work(timings))
    return _Open(finding=finding, level=level, known_ns=timings.now_ns)


def _newest(of_steps: Floats, timings: Timings) -> float:
    return _usual_cost(of_steps[timings.compared][-NEWEST:])


def _usual_cost(costs: Floats) -> float:
    """The usual cost. NaN where fewer than half of these steps tell theirs."""
    known = costs[np.isfinite(costs)]
    return float(np.median(known)) if len(known) and 2 * len(known) >= len(costs) else np.nan


def _tokens_differ(timings: Timings) -> bool:
    return not isinstance(timings.varying_tokens(), float)


def _each(of: Timings, times: Floats) -> Floats:
    """The median over ranks of each step. NaN where none is known."""
    known = np.isfinite(times).any(axis=1)
    costs = np.full(len(of.steps), np.nan)
    costs[known] = np.nanmedian(times[known], axis=1)
    return costs


def _beside_others(of: Timings, rank: int) -> Floats:
    """The compute of a rank in each step, in that of the usual other rank. NaN where one is not known."""
    compute, own = of.parts["compute"], of.ranks == rank
    if not own.any():
        return np.full(len(of.steps), np.nan)
    others = np.full(len(of.steps), np.nan)
    known = np.isfinite(compute[:, ~own]).any(axis=1)
    others[known] = np.nanmedian(compute[known][:, ~own], axis=1)
    return np.asarray(compute[:, own][:, 0] / others)


def _usual_count(of: Timings, name: str) -> Floats:
    """What the usual rank counted of each step, of those that did. NaN where none did."""
    counted = of.numbers[name]
    return _each(of, np.where(counted > 0, counted, np.nan))
