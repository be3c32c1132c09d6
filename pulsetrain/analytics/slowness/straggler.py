"""Ranks and nodes that compute slower than others with the same work, step after step.

Compared is the time a rank computes, net of communication, so that a barrier does not equalise everyone. A
rank's cohort are the ranks of its pipeline stage; the reference is the cohort's lower median, which is sound
even where half of it is slow. A rank is slow where its excess is beyond what noise makes of all tests
together under a budget of false alarms, and beyond a floor that rises with the noise of a step. On an
oversubscribed host its quick steps must also be slower than the others' slow ones: who is unlucky there for a
while still has quick ones. In cohorts of one or two there is no majority: there a rank is compared with its
own past, and with how the others' changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pulsetrain.analytics.slowness import robust
from pulsetrain.analytics.slowness.cohort import Columns, Excess, Floats, measure, queued, work_of
from pulsetrain.analytics.slowness.timings import Timings
from pulsetrain.analytics.verdict import Finding, Healthy, Inconclusive, Severity, SubjectType, Verdict


@dataclass(frozen=True, kw_only=True)
class StragglerConfig:
    """How sure is sure."""

    windows: tuple[int, ...] = (10, 20, 30, 50, 200)
    """lengths of the windows looked at, in steps"""
    short: int = 20
    """shorter windows than that are for what is plain: they have a floor of their own"""
    short_floor: float = 0.2
    """slowness that a short window must show, as a ratio"""
    steps_needed: int = 16
    """usable steps below which nothing is said"""
    false_alarms: float = 5e-4
    """false alarms that all tests of one look may raise together"""
    floor_ratio: float = 0.015
    """slowness that is nobody's business, as a ratio"""
    noise_share: float = 0.3
    """share of the noise of one step that counts as nobody's business too"""
    noisy_share: float = 3.0
    """the same on an oversubscribed host, which favours some ranks by chance of scheduling, for the shortest
    window; it falls with the root of the window's length"""
    noisy_floor: float = 0.25
    """slowness that is never put down to that chance, as a ratio"""
    alike: float = 0.5
    """share of its slowest rank's excess that every rank of a slow node has"""
    noisy_alone: float = 1.5
    """there, how many times surer one rank must be than a node of several: luck seldom strikes two"""
    warning_ratio: float = 0.05
    """slowness from which a finding is a warning, as a ratio"""
    critical_ratio: float = 0.3
    """slowness from which it is critical, as a ratio"""


@dataclass(frozen=True, kw_only=True)
class _Suspect:
    """A rank or node found slow in one window."""

    subject_type: SubjectType
    subject: str
    columns: Columns
    excess: float
    margin: float  # the excess in standard errors
    rows: NDArray[np.int64]
    error: float
    noise: float
    inverted: bool
    minority: bool
    by_history: bool = False


def find(t: Timings, *, scan: bool = False, config: StragglerConfig | None = None) -> list[Verdict]:
    """Findings of kind `straggler`, one a slow rank, or one a node where all its ranks are slow.

    Without `scan` only windows that end at the last step count (what is slow now); with it, windows all over
    the steps. `Healthy` says how many ranks were compared; `Inconclusive` where none could be.
    """
    config = config or StragglerConfig()
    rows = np.flatnonzero(t.usable)
    work = work_of(t, rows)
    if not np.isfinite(work.whole).any():
        return [Inconclusive(analyzer="straggler", reason="no compute spans in these steps", blind=True)]
    if len(rows) < config.steps_needed:
        reason = f"{len(rows)} usable steps; {config.steps_needed} are needed"
        return [Inconclusive(analyzer="straggler", reason=reason)]
    waits = queued(t)
    spans = list(_windows(rows, config.windows, scan=scan))
    z = robust.quantile_of(config.false_alarms, len(spans) * len(t.ranks))
    suspects: list[_Suspect] = []
    compared: set[int] = set()
    for window in spans:
        table = [e for e in (measure(work, columns, window) for columns in t.cohorts) if e is not None]
        compared |= {int(c) for e in table for c in e.columns}
        suspects += _judge(t, table, z, config)
    alone = np.array(sorted(set(range(len(t.ranks))) - compared), np.int64)
    changed = _by_history(work.whole, alone, rows, t, z, config)
    found = [_finding(t, work.whole, s, config, waits) for s in _strongest(suspects + changed)]
    if found:
        return list(found)
    if not compared and len(rows) < 2 * config.short:
        reason = "cohorts of one or two ranks, and too few steps to compare them with their own past"
        return [Inconclusive(analyzer="straggler", reason=reason)]
    return [Healthy(analyzer="straggler", numbers={"ranks": len(t.ranks), "steps": len(rows)})]


def _windows(rows: NDArray[np.int64], lengths: tuple[int, ...], *, scan: bool) -> Iterator[NDArray[np.int64]]:
    """Windows of usable rows: of each length the last one, or with `scan` one every half length."""
    seen: set[tuple[int, int]] = set()
    for length in lengths:
        size = min(length, len(rows))
        ends = range(size, len(rows) + 1, max(1, size // 2)) if scan else ()
        for end in (*ends, len(rows)):
            if (end, size) not in seen:
                seen.add((end, size))
                yield rows[end - size : end]


def _judge(t: Timings, table: list[Excess], z: float, config: StragglerConfig) -> list[_Suspect]:
    """Slow nodes, then slow ranks that no slow node explains."""
    if not table:
        return []
    columns = np.concatenate([e.columns for e in table])
    excess = np.concatenate([e.excess for e in table])
    recent = np.concatenate([e.recent for e in table])
    error = np.concatenate([e.error for e in table])
    floor = np.concatenate([np.full(len(e.columns), _floor(e, config)) for e in table])
    clear = np.concatenate(
        [np.ones(len(e.columns), np.bool_) if e.apart is None else e.apart > 0 for e in table]
    )
    elevated = (excess > floor) & (recent > floor / 2) & clear
    alone = np.concatenate([np.full(len(e.columns), _alone(e, config)) for e in table])
    slow = elevated & (excess > alone * z * error)
    likely = elevated & (excess > z / 2 * error)
    if not elevated.any():
        return []
    rows = table[0].rows
    noise = float(np.median([e.noise for e in table]))
    suspects: list[_Suspect] = []
    explained = np.zeros(len(columns), np.bool_)
    for node in np.unique(t.nodes[columns[likely]]):
        mates = t.nodes[columns] == node
        count = int(mates.sum())
        if not node or count < 2 or not likely[mates].all():
            continue
        if excess[mates].min() < config.alike * excess[mates].max():
            continue
        shared = count**0.5 if any(e.noisy for e in table) else count  # on a busy host luck is shared too
        joint_error = float(np.sqrt((error[mates] ** 2).mean() / shared) * 1.2)
        margin = float(excess[mates].mean()) / max(joint_error, 1e-12)
        if margin > z:
            suspects.append(
                _suspect(
                    t, "node", str(node), columns[mates], excess[mates], margin, rows, joint_error, noise
                )
            )
            explained |= mates
    for i in np.flatnonzero(slow & ~explained):
        margin = float(excess[i] / max(error[i], 1e-12))
        rank = str(t.ranks[columns[i]])
        suspects.append(
            _suspect(
                t, "rank", rank, columns[i : i + 1], excess[i : i + 1], margin, rows, float(error[i]), noise
            )
        )
    return suspects


def _alone(e: Excess, config: StragglerConfig) -> float:
    """How many times surer one rank must be than a node: a few steps of a busy host never make it so."""
    if not e.noisy:
        return 1.0
    return config.noisy_alone if len(e.rows) >= config.short else np.inf


def _floor(e: Excess, config: StragglerConfig) -> float:
    """The excess (log) that is nobody's business in this window. Chance lasts: a short one has more of it."""
    if not e.noisy:
        return _quiet_floor(e.noise, len(e.rows), config)
    luck = config.noisy_share * e.noise * float(np.sqrt(config.short / len(e.rows)))
    return max(_plain(len(e.rows), config), min(luck, float(np.log1p(config.noisy_floor))))


def _quiet_floor(noise: float, steps: int, config: StragglerConfig) -> float:
    return max(_plain(steps, config), config.noise_share * noise * max(1.0, config.short / steps))


def _plain(steps: int, config: StragglerConfig) -> float:
    return float(np.log1p(config.short_floor if steps < config.short else config.floor_ratio))


def _suspect(
    t: Timings,
    subject_type: SubjectType,
    subject: str,
    columns: Columns,
    excess: Floats,
    margin: float,
    rows: NDArray[np.int64],
    error: float,
    noise: float,
) -> _Suspect:
    cohort = np.isin(t.stages, t.stages[columns])
    return _Suspect(
        subject_type=subject_type,
        subject=subject,
        columns=columns,
        excess=float(excess.mean()),
        margin=margin,
        rows=rows,
        error=error,
        noise=noise,
        inverted=_waits_least(t, columns, rows),
        minority=len(columns) * 2 < int(cohort.sum()),
    )


def _waits_least(t: Timings, columns: Columns, rows: NDArray[np.int64]) -> bool:
    """Whether the suspects wait no longer than the median of their cohort: who is late need not wait."""
    wait = t.parts["wait"][rows]
    told = np.isfinite(wait)
    means = np.where(told, wait, 0.0).sum(axis=0) / np.maximum(1, told.sum(axis=0))
    others = np.setdiff1d(np.flatnonzero(np.isin(t.stages, t.stages[columns])), columns)
    others = others[told[:, others].any(axis=0)]
    if not len(others) or not told[:, columns].any():
        return False
    return bool(means[columns].mean() <= np.median(means[others]))


def _by_history(
    work: Floats,
    columns: Columns,
    rows: NDArray[np.int64],
    t: Timings,
    z: float,
    config: StragglerConfig,
) -> list[_Suspect]:
    """Ranks without a cohort that became slower than in their own past while the job as a whole did not."""
    size = config.short
    if not len(columns) or len(rows) < 2 * size:
        return []
    recent, past = work[rows[-size:]], work[rows[:-size]]
    complete = _all_told(recent) & _all_told(past)
    if complete.sum() < 2:
        return []
    blocks = len(past) // size
    levels = np.stack(
        [robust.trimmed_mean(past[len(past) - (b + 1) * size : len(past) - b * size]) for b in range(blocks)]
    )
    rise = robust.trimmed_mean(recent) - np.quantile(levels, 0.25, axis=0, method="higher")
    change = rise - robust.lower_median(rise[complete])
    own = recent - robust.trimmed_mean(recent)
    error = robust.standard_error(own[:, complete]) if complete.any() else np.zeros(0)
    errors = np.full(len(rise), np.inf)
    errors[complete] = error * np.sqrt(2)
    noise = float(robust.sigma(own[:, complete]))
    floor = _quiet_floor(noise, size, config)
    return [
        replace(
            _suspect(
                t,
                "rank",
                str(t.ranks[c]),
                np.array([c]),
                change[c : c + 1],
                float(change[c] / max(errors[c], 1e-12)),
                rows[-size:],
                float(errors[c]),
                noise,
            ),
            by_history=True,
        )
        for c in columns
        if complete[c] and change[c] > max(z * errors[c], floor)
    ]


def _all_told(values: Floats) -> NDArray[np.bool_]:
    """Columns in which nothing is missing."""
    return np.asarray(np.isfinite(values).all(axis=0), np.bool_)


def _strongest(suspects: list[_Suspect]) -> list[_Suspect]:
    """One suspect a subject, the surest; of a node and its ranks, whichever is surer."""
    best: dict[tuple[str, str], _Suspect] = {}
    for suspect in suspects:
        key = (suspect.subject_type, suspect.subject)
        if key not in best or suspect.margin > best[key].margin:
            best[key] = suspect
    kept: list[_Suspect] = []
    taken: set[int] = set()
    for suspect in sorted(best.values(), key=lambda s: (-s.margin, s.subject_type, s.subject)):
        if not taken & set(suspect.columns.tolist()):
            kept.append(suspect)
            taken |= set(suspect.columns.tolist())
    return sorted(kept, key=lambda s: (-s.excess, s.subject))


def _finding(t: Timings, work: Floats, s: _Suspect, config: StragglerConfig, waits: float) -> Finding:
    """`waits` is what all ranks' compute is net of: less than that is information, however sure."""
    ratio = float(np.expm1(s.excess))
    since, until = _episode(t, work, s)
    where = (
        "" if s.subject_type == "node" else f" on {node}" if (node := t.node_of(int(s.columns[0]))) else ""
    )
    whose = "its own past" if s.by_history else "its cohort"
    severity: Severity = (
        "info"
        if ratio < waits
        else "critical"
        if ratio >= config.critical_ratio
        else "warning"
        if ratio >= config.warning_ratio
        else "info"
    )
    return t.finding(
        "straggler",
        s.subject_type,
        s.subject,
        severity=severity,
        confidence=_confidence(s),
        summary=f"{s.subject_type.capitalize()} {s.subject}{where} computes {ratio:.0%} slower than {whose} "
        f"since step {since}.",
        evidence={
            "query": "analysis.step_parts",
            "ratio": round(1 + ratio, 4),
            "ranks": [int(t.ranks[c]) for c in s.columns],
            "nodes": sorted({t.node_of(int(c)) for c in s.columns}),
            "stages": sorted({int(t.stages[c]) for c in s.columns}),
            "first_step": since,
            "last_step": until,
            "window_steps": len(s.rows),
            "standard_error": round(s.error, 5),
            "margin_in_errors": round(min(s.margin, 1e6), 2),
            "noise_of_a_step": round(s.noise, 4),
            "waits_for_a_processor": round(waits, 4),
            "waits_least": s.inverted,
            "compared_with": "own history" if s.by_history else "pipeline stage",
        },
    )


def _episode(t: Timings, work: Floats, s: _Suspect) -> tuple[int, int]:
    """First and last step of the slowness around the suspect's window."""
    cohort = np.flatnonzero(np.isin(t.stages, t.stages[s.columns]))
    others = np.setdiff1d(cohort, s.columns)
    series = np.zeros(len(work))
    whole = _all_told(work[:, s.columns].T) & np.isfinite(work[:, others]).any(axis=1)
    if len(others):
        usual = np.nanmedian(work[np.ix_(whole, others)], axis=1)
        series[whole] = work[np.ix_(whole, s.columns)].mean(axis=1) - usual
    end = int(s.rows[-1]) + 1
    first = robust.onset(series[:end], s.excess)
    last = len(series) - 1 - robust.onset(series[::-1][: len(series) - first], s.excess)
    return int(t.steps[first]), int(t.steps[max(first, last)])


def _confidence(s: _Suspect) -> float:
    """Rises with the margin; lower without wait inversion, without a majority, and against the own past."""
    sure = 1 - 0.25 * float(np.exp(-max(0.0, s.margin - 4) / 4))
    sure *= 0.98 if s.inverted else 0.88
    sure *= 1.0 if s.minority or s.by_history else 0.97
    return round(sure * (0.85 if s.by_history else 1.0), 3)
