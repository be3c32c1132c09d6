"""Ranks and nodes that compute slower than others with the same work, step after step.

Compute time is net of communication, because a barrier makes step times alike. The cohort of a rank are the
ranks of its pipeline stage on the same GPU model that communicate as it does (`work_groups`). The reference
is the cohort's lower median, which holds even where half of the cohort is slow. A rank is slow where its
excess over the reference exceeds two limits: what noise explains, so that all tests together raise few false
alarms, and a floor that rises with the noise of a step.

On an oversubscribed host a rank's quick steps must also be slower than the others' slow steps, because a rank
that is unlucky for a while still has quick ones. In cohorts of one or two ranks there is no majority. There a
rank is compared with its own past (`own_history`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from pulsetrain.analytics.slowness import by_design, robust
from pulsetrain.analytics.slowness.arrivals import Arrival, LoadArrivals, no_arrivals
from pulsetrain.analytics.slowness.cohort import (
    NO_COMPUTE,
    RECENT,
    STARVED_RATIO,
    Floats,
    Rows,
    Work,
    measure,
    processor_wait_ratio,
    work_of,
)
from pulsetrain.analytics.slowness.held_up import OFF, STARVED, find_held_up, may_be_starved
from pulsetrain.analytics.slowness.own_history import Changes, comparable, find_changed, has_all
from pulsetrain.analytics.slowness.straggler_config import StragglerConfig
from pulsetrain.analytics.slowness.suspects import (
    RankTable,
    Suspect,
    find_suspects,
    hidden_by_noise,
    strongest,
    table_of,
)
from pulsetrain.analytics.slowness.timings import REPORTING_RATIO, Timings
from pulsetrain.analytics.slowness.witnesses import agrees, late_without_reason, weigh
from pulsetrain.analytics.verdict import Finding, Healthy, Inconclusive, Severity, Verdict

NAME = "straggler"
AGREEMENT = 0.3  # of the doubt that is left, which a second witness takes away
SURE_ERRORS = 10  # least margin of a rank that is compared with its own past, to be more than information
DOUBT, LITTLE_DOUBT = 0.25, 0.1  # at a margin of 4 errors. Little: chance never stops a rank again and again
_CAUSES = {
    OFF: "is stopped or sleeps again and again while it computes, which costs {ratio:.0%} of its cohort's "
    "compute time",
    STARVED: "is starved of its processor, which costs {ratio:.0%} of its cohort's compute time",
}


def find(
    timings: Timings,
    *,
    scan: bool = False,
    config: StragglerConfig | None = None,
    arrivals: LoadArrivals = no_arrivals,
    inferred: Callable[[], bool] = lambda: False,
) -> list[Verdict]:
    """Findings of kind `straggler`: one for each slow rank, or one for a node where all its ranks are slow.

    Without `scan` only windows that end at the last step count, which is what is slow now. With `scan`
    windows cover all steps. `arrivals` loads what the second witness needs. `inferred` says whether FLOPs are
    those of one early step. `Healthy` tells how many ranks
    there are, and how many of them were compared with their own past `alone`: one of those that was slow from
    its first step does not show. `arrivals_compared` tells whether the order of arrival was held against it.
    `Inconclusive`: a rank was compared with nobody, other work may explain who takes longer, or the witnesses
    disagree.

    >>> from pulsetrain.analytics.slowness.timings import from_matrices
    >>> compute = np.full((40, 8), 1e8)
    >>> compute[:, 3] *= 1.2
    >>> [finding] = find(from_matrices({"compute": compute}))
    >>> finding.summary
    'Rank 3 computes 20% slower than its cohort since step 0.'
    """
    config = config or StragglerConfig()
    rows = timings.compared
    work = work_of(timings, rows)
    if not np.isfinite(work.whole).any():
        reasons = (timings.unknown or NO_COMPUTE, late_without_reason(timings, arrivals()))
        return [Inconclusive(analyzer=NAME, reason="; ".join(filter(None, reasons)), blind=True)]
    if len(rows) < config.steps_needed:
        reason = timings.unusable or f"{len(rows)} usable steps; {config.steps_needed} are needed"
        return [Inconclusive(analyzer=NAME, reason=reason, blind=bool(timings.unusable))]
    suspects, changes, compared, hidden = _suspects(timings, work, rows, config, scan=scan)
    waits = processor_wait_ratio(timings)
    halves = by_design.slower_halves(timings, work.whole[rows], config.warning_ratio) if suspects else {}
    strong = [(s, by_design.doubt(timings, s, inferred) or _of_half(s, halves)) for s in strongest(suspects)]
    likely = [s for s, doubt in strong if _matters(s, waits, config) and not doubt]
    weighed = weigh(timings, likely, arrivals)
    if weighed.suspects:
        return [_finding(timings, work.whole, s, waits, config, arrival) for s, arrival in weighed.suspects]
    if weighed.doubt or suspects:
        chance = f"ranks wait for processors for {waits:.0%} of their compute: chance decides"
        reason = weighed.doubt or next((doubt for _, doubt in strong if doubt), chance)
        return [Inconclusive(analyzer=NAME, reason=reason)]
    reason = (
        hidden
        or changes.doubt
        or may_be_starved(timings, config)
        or by_design.unequal_halves(timings, work.whole[rows], config.warning_ratio)
        or by_design.own_roles(timings, work.whole[rows], _alone(timings, compared), config.warning_ratio)
        or _not_known(timings, work.whole, rows)
        or _left_out(timings, work.whole, compared | set(changes.compared.tolist()), config)
    )
    if reason:
        return [Inconclusive(analyzer=NAME, reason=reason)]
    ranks = len(timings.ranks)
    numbers = {
        "ranks": ranks,
        "steps": len(rows),
        "alone": ranks - len(compared),
        "arrivals_compared": weighed.arrivals,
        **({"models": np.unique(timings.models).tolist()} if len(timings.models) else {}),
    }
    return [Healthy(analyzer=NAME, numbers=numbers)]


def _of_half(suspect: Suspect, halves: Mapping[int, str]) -> str:
    """Why a suspect whose cohort has a slower half may be as sound as the others. "" for none."""
    told = {halves.get(column, "") for column in suspect.columns.tolist()}
    return "" if suspect.cause or suspect.by_history or "" in told else min(told)


def _not_known(timings: Timings, work: Floats, rows: Rows) -> str:
    """Which ranks took part in the newest steps and told no compute time. "" for none."""
    newest = rows[-RECENT:]
    there = np.isfinite(timings.numbers["duration_ns"][newest]).mean(axis=0) > 1 / 2
    known = np.isfinite(work[newest]).any(axis=0)
    missing = timings.ranks[there & ~known].tolist()
    return f"the compute time of {by_design.listed(missing)} is not known" if missing else ""


def _left_out(timings: Timings, work: Floats, compared: set[int], config: StragglerConfig) -> str:
    """Which ranks report and were compared neither with others nor with their past. "" for none."""
    newest = timings.compared[-config.windows[0] :]
    known = np.isfinite(work[newest]).mean(axis=0) > REPORTING_RATIO
    left = [column for column in np.flatnonzero(known).tolist() if column not in compared]
    if not left:
        return ""
    if len(timings.ranks) == 1:
        return "the job has one rank, and there is nobody to compare it with"
    who = by_design.listed(timings.ranks[left].tolist())
    gaps = "too many of its steps are missing"
    classes, counts = np.unique(timings.classes[sorted(compared)], return_counts=True)
    if np.isin(timings.classes[left], classes[counts >= 3]).all():
        return f"{who} cannot be compared with others: {gaps}"
    steps, needed = len(comparable(timings, work)), 2 * config.short
    why = (
        f"{steps} steps of equal work are too few to compare with the past: {needed} are needed"
        if steps < needed
        else gaps
    )
    return f"no two others do the work of {who}, and {why}"


def _suspects(
    timings: Timings, work: Work, rows: Rows, config: StragglerConfig, *, scan: bool
) -> tuple[list[Suspect], Changes, set[int], str]:
    """Everybody who is slow in some window or held up, the changes of those who are compared with their own
    past, the columns of ranks that could be compared with others, and who may be slow behind noise."""
    windows = list(_windows(rows, config.windows, scan=scan))
    sigmas = robust.sigmas_needed(config.false_alarms, len(windows) * len(timings.ranks))
    tables = [table for window in windows if (table := _table(timings, work, window, config)) is not None]
    compared = {column for table in tables for column in table.columns.tolist()}
    alone = _alone(timings, compared)
    suspects = [suspect for table in tables for suspect in find_suspects(table, sigmas, config)]
    hidden = hidden_by_noise(tables, sigmas)
    changes = find_changed(timings, work.whole, alone, sigmas, config)
    return [*suspects, *changes.suspects, *find_held_up(timings, config)], changes, compared, hidden


def _alone(timings: Timings, compared: set[int]) -> Rows:
    """The columns of ranks that were compared with no other."""
    return np.array(sorted(set(range(len(timings.ranks))) - compared), np.int64)


def _matters(suspect: Suspect, processor_wait: float, config: StragglerConfig) -> bool:
    """Whether a slowdown is more than a trifle of the time that ranks wait for processors.

    Where they wait for most of their compute, what is left net of it is small, and so is what it tells.
    """
    if suspect.cause or processor_wait <= STARVED_RATIO:
        return True
    return suspect.ratio * max(0.0, 1 - processor_wait) >= config.starved_floor


def _windows(rows: Rows, lengths: tuple[int, ...], *, scan: bool) -> Iterator[Rows]:
    """Windows of usable rows: of each length the last one, or with `scan` one every half length."""
    seen: set[tuple[int, int]] = set()
    for length in lengths:
        size = min(length, len(rows))
        ends = range(size, len(rows) + 1, max(1, size // 2)) if scan else ()
        for end in (*ends, len(rows)):
            if (end, size) not in seen:
                seen.add((end, size))
                yield rows[end - size : end]


def _table(timings: Timings, work: Work, window: Rows, config: StragglerConfig) -> RankTable | None:
    """The ranks that the window can compare. None: no cohort has three of them."""
    cohorts = [c for c in (measure(work, columns, window) for columns in timings.cohorts) if c is not None]
    return table_of(timings, cohorts, config) if cohorts else None


def _severity(timings: Timings, suspect: Suspect, processor_wait: float, config: StragglerConfig) -> Severity:
    """A slowdown below what all ranks wait for a processor is information, however sure.

    So is one against the rank's own past that stands out little, or that is small and new: other work on the
    host looks the same. What rounds of collectives show is never critical: their work is not known.
    """
    ratio = suspect.ratio
    stands_out = suspect.margin >= SURE_ERRORS and (suspect.lasting or ratio >= config.short_floor)
    if suspect.by_history and not stands_out:
        return "info"
    if (ratio < processor_wait and not suspect.cause) or ratio < config.warning_ratio:
        return "info"
    return "critical" if ratio >= config.critical_ratio and not timings.rounds else "warning"


def _finding(
    timings: Timings,
    work: Floats,
    suspect: Suspect,
    processor_wait: float,
    config: StragglerConfig,
    arrival: Arrival | None,
) -> Finding:
    since, until = _slow_steps(timings, work, suspect)
    waits_least = _waits_least(timings, suspect)
    columns = suspect.columns.tolist()
    node = timings.node_of(columns[0])
    where = f" on {node}" if node and suspect.subject_type == "rank" else ""
    who = f"{suspect.subject_type.capitalize()} {suspect.subject}{where}"
    whose = "its own past" if suspect.by_history else "its cohort"
    how = (
        "is {ratio:.0%} slower in its own work than "
        if timings.rounds
        else "computes {ratio:.0%} slower than "
    )
    slower = _CAUSES.get(suspect.cause, how + whose).format(ratio=suspect.ratio)
    return timings.finding(
        "straggler",
        suspect.subject_type,
        suspect.subject,
        severity=_severity(timings, suspect, processor_wait, config),
        confidence=_confidence(timings, suspect, waits_least=waits_least, arrives_late=agrees(arrival)),
        summary=f"{who} {slower} {_when(timings, since)}.",
        evidence={
            "query": "analysis.operations" if timings.rounds else "analysis.step_parts",
            "ratio": round(1 + suspect.ratio, 4),
            "ranks": timings.ranks[columns].tolist(),
            "nodes": sorted({timings.node_of(c) for c in columns}),
            "stages": sorted(set(timings.stages[columns].tolist())),
            **_extent(timings, since, until, len(suspect.rows)),
            "standard_error": round(suspect.error, 5),
            "margin_in_errors": round(min(suspect.margin, 1e6), 2),
            "noise_of_a_step": round(suspect.noise, 4),
            "waits_for_a_processor": round(processor_wait, 4),
            "waits_least": waits_least,
            "compared_with": "own history" if suspect.by_history else "pipeline stage",
            "cause": suspect.cause,
            "witnesses": ["own time", "arrivals"] if agrees(arrival) else ["own time"],
            "arrives_last_ratio": round(arrival.last_ratio, 3) if arrival else None,
            "arrives_late_ms": round(arrival.lateness_ns / 1e6, 3) if arrival else None,
        },
    )


def _when(timings: Timings, since: int) -> str:
    """Since when, in words."""
    if not timings.rounds:
        return f"since step {since}"
    first = int(np.flatnonzero(timings.steps == since)[0])
    longest = float(np.nanmax(timings.numbers["duration_ns"][first]))
    seconds = (int(timings.round_ends_ns[-1]) - int(timings.round_ends_ns[first]) + longest) / 1e9
    return f"for {seconds:.0f} s, by rounds of its collectives"


def _extent(timings: Timings, first: int, last: int, window: int) -> dict[str, object]:
    """First and last step for the evidence, or rounds that stand for them."""
    if not timings.rounds:
        return {"first_step": first, "last_step": last, "window_steps": window}
    return {"rounds": True, "first_round": first, "last_round": last, "window_rounds": window}


def _same_work(timings: Timings, suspect: Suspect) -> NDArray[np.bool_]:
    """Which ranks are of the suspect's pipeline stages and compute on its GPU models."""
    return np.isin(timings.classes, timings.classes[suspect.columns])


def _waits_least(timings: Timings, suspect: Suspect) -> bool:
    """Whether the suspect waits no longer than the median of its cohort: the rank that comes last waits for
    nobody."""
    wait = timings.parts["wait"][suspect.rows]
    known = np.isfinite(wait)
    means = np.where(known, wait, 0.0).sum(axis=0) / np.maximum(1, known.sum(axis=0))
    others = np.setdiff1d(np.flatnonzero(_same_work(timings, suspect)), suspect.columns)
    others = others[known[:, others].any(axis=0)]
    if not len(others) or not known[:, suspect.columns].any():
        return False
    return bool(means[suspect.columns].mean() <= np.median(means[others]))


def _slow_steps(timings: Timings, work: Floats, suspect: Suspect) -> tuple[int, int]:
    """First and last step of the slowness around the suspect's window."""
    own, others = (
        suspect.columns,
        np.setdiff1d(np.flatnonzero(_same_work(timings, suspect)), suspect.columns),
    )
    series = np.zeros(len(work))
    whole = has_all(work[:, own].T)
    if len(others):
        whole &= np.isfinite(work[:, others]).any(axis=1)
        usual = np.nanmedian(work[np.ix_(whole, others)], axis=1)
        series[whole] = work[np.ix_(whole, own)].mean(axis=1) - usual
    elif whole.any():  # nobody does the same work: against its own past
        level = work[:, own].mean(axis=1)
        past = whole & (np.arange(len(work)) < suspect.rows[0])
        series[whole] = level[whole] - np.median(level[past if past.any() else whole])
    end = int(suspect.rows[-1]) + 1
    first = robust.onset(series[:end], suspect.excess)
    last = len(series) - 1 - robust.onset(series[::-1][: len(series) - first], suspect.excess)
    return int(timings.steps[first]), int(timings.steps[max(first, last)])


def _confidence(timings: Timings, suspect: Suspect, *, waits_least: bool, arrives_late: bool) -> float:
    """Rises with the margin. Higher where something stops the rank, and where the order of arrival agrees.

    Lower where the suspect does not wait least, unless something stops it. Lower where it was compared with
    its own past, and where it is no minority of its cohort, unless the kernel counted what it lost.
    """
    doubt = LITTLE_DOUBT if suspect.cause == OFF else DOUBT
    confidence = 1 - doubt * float(np.exp(-max(0.0, suspect.margin - 4) / 4))
    confidence *= 0.98 if waits_least or suspect.cause == OFF else 0.88
    minority = len(suspect.columns) * 2 < int(_same_work(timings, suspect).sum())
    confidence *= 1.0 if minority or suspect.by_history or suspect.cause else 0.97
    confidence *= 0.85 if suspect.by_history else 1.0
    return round(confidence + AGREEMENT * (1 - confidence) * arrives_late, 3)
