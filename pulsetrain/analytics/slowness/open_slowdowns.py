"""Slowdowns of a whole job stay findings until its times are again as they were before.

A look compares the newest steps with the steps before them. Some hundred steps after a job became slower, all
that a look sees are slow steps, and nothing in them is wrong. So the level before is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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
UNKNOWN_NS = 1_800_000_000_000  # for so long a slowdown is kept of which no step tells whether it goes on
KINDS: Mapping[str, str] = MappingProxyType({"fail_slow": fail_slow.NAME, "mfu_decay": mfu.NAME})
"""Kinds of findings on jobs, and the analyzer of each."""


@dataclass(frozen=True, kw_only=True)
class _Open:
    """A slowdown that was seen. `cost` gives what a step costs, and `limit` is the level that ends it.

    `work` gives what a step does, and `done` is what one did when that was measured. Costs of other work say
    nothing. `known_ns` is when steps told last that it goes on.
    """

    finding: Finding
    cost: Callable[[Timings], Floats]
    limit: float
    work: Callable[[Timings], float]
    done: float
    known_ns: int

    def after(self, timings: Timings) -> _Open | None:
        """The slowdown after these steps. None where they cost as little as before, or are other work.

        What steps do not tell ends nothing for a while: rows of some nodes come late.
        """
        done, cost = self.work(timings), _newest(self.cost(timings), timings)
        if abs(done - self.done) > SAME_WORK * self.done or cost < self.limit:
            return None
        known_ns = self.known_ns if np.isnan(cost) else timings.now_ns
        return replace(self, known_ns=known_ns) if timings.now_ns - known_ns <= UNKNOWN_NS else None


class OpenSlowdowns:
    """Those of one attempt of a job. One thread calls it."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}
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
                said = [v for v in said if not (isinstance(v, Healthy) and v.analyzer == analyzer)]
                evidence = {**held.finding.evidence, "last_step": int(timings.steps[-1])}
                said.append(replace(held.finding, ts_ns=timings.now_ns, evidence=evidence))
        return said

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


def _same(one: Finding, other: Finding) -> bool:
    """Whether two findings are of one slowdown: they begin at nearly the same step."""
    return abs(_first(one) - _first(other)) <= NEWEST


def _first(finding: Finding) -> int:
    return int(str(finding.evidence["first_step"]))


def _opened(finding: Finding, timings: Timings) -> _Open | None:
    """The slowdown of a finding. None where the steps do not show it, as a drift that has hardly begun."""
    cost = _cost_of(finding, timings)
    costs, first = cost(timings), _first(finding)
    rows = timings.compared
    before = _level(costs[rows[timings.steps[rows] < first]])
    during = _level(costs[rows[timings.steps[rows] >= first]][-NEWEST:])
    if not during > before > 0:
        return None
    limit, work = before + BACK_SHARE * (during - before), _work_of(finding, timings)
    return _Open(
        finding=finding, cost=cost, limit=limit, work=work, done=work(timings), known_ns=timings.now_ns
    )


def _newest(of_steps: Floats, timings: Timings) -> float:
    return _level(of_steps[timings.compared][-NEWEST:])


def _level(costs: Floats) -> float:
    """The usual cost. NaN where fewer than half of these steps tell theirs."""
    known = costs[np.isfinite(costs)]
    return float(np.median(known)) if len(known) and 2 * len(known) >= len(costs) else np.nan


def _cost_of(finding: Finding, timings: Timings) -> Callable[[Timings], Floats]:
    """What the finding measured of each step: its time, for a FLOP, or for a token where tokens differ."""
    if finding.kind == "mfu_decay":
        return lambda of: _each(of, of.numbers["duration_ns"]) / _usual_count(of, "flops")
    compute, per_token = finding.evidence.get("measure") == "compute", _tokens_differ(timings)

    def cost(of: Timings) -> Floats:
        times = _each(of, of.parts["compute"] if compute else of.numbers["duration_ns"])
        return times / _usual_count(of, "tokens") if per_token else times

    return cost


def _work_of(finding: Finding, timings: Timings) -> Callable[[Timings], float]:
    """What a step does: its FLOPs, else its tokens. NaN: not known. Of a cost for a FLOP it does not matter.

    Where tokens differ between steps the cost is for a token, and what matters is the FLOPs for one.
    """
    if finding.kind == "mfu_decay":
        return lambda _: 1.0
    per_token = _tokens_differ(timings)

    def work(of: Timings) -> float:
        tokens, flops = _usual_count(of, "tokens"), _usual_count(of, "flops")
        of_steps = flops / tokens if per_token else np.where(np.isfinite(flops), flops, tokens)
        return _newest(of_steps, of)

    return work


def _tokens_differ(timings: Timings) -> bool:
    return not isinstance(timings.varying_tokens(), float)


def _each(of: Timings, times: Floats) -> Floats:
    """The median over ranks of each step. NaN where none is known."""
    known = np.isfinite(times).any(axis=1)
    costs = np.full(len(of.steps), np.nan)
    costs[known] = np.nanmedian(times[known], axis=1)
    return costs


def _usual_count(of: Timings, name: str) -> Floats:
    """What the usual rank counted of each step, of those that did. NaN where none did."""
    counted = of.numbers[name]
    return _each(of, np.where(counted > 0, counted, np.nan))
