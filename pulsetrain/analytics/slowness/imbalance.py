"""Work that is spread unevenly: over pipeline stages by design, over replicas by sequence lengths."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pulsetrain.analytics.slowness import robust
from pulsetrain.analytics.slowness.newest_steps import RECENT, in_every_window, newest_first
from pulsetrain.analytics.slowness.timings import Timings
from pulsetrain.analytics.verdict import Finding, Healthy, Inconclusive, Verdict, findings

Floats = NDArray[np.float64]

STEPS_NEEDED = 10
WHOLE_RATIO = 2 / 3  # of the steps in which every stage must have a compute time
STAGE_INFO = 1.25  # a stage's compute over that of the others, from which it is reported
STAGE_WARNING = 1.4  # from which it asks for action
AGREEMENT = 0.75  # correlation of what shares its sequences that only the amount of work explains
PLAIN_AGREEMENT = 0.5  # the same of forward with backward where ranks often wait for a processor
LASTING = 0.5  # correlation of a step's excess with the next step's, from which a rank is slow for a while
SPREAD_INFO = 0.05  # how much longer than the usual replica the heaviest of a step computes, as a ratio
STAGES = "stages"
MOSTLY_RUNNING = 0.75  # of its computing a rank runs, where waits for processors explain little
SPREAD_WARNING = 0.3  # from which it asks for action


def stages(timings: Timings) -> list[Verdict]:
    """Findings of kind `stage_imbalance`: a pipeline stage with more work than others in nearly all steps.

    A stage's time is the lower median of its ranks, so that stragglers in half of a stage are no imbalance.
    Nor is a stage that came to be longer: how the work is split does not change while a job runs. Where ranks
    often wait for a processor, the stage must be longer both as measured and net of the waits: where much is
    taken out, what is left depends on how much the stages wait.

    >>> from pulsetrain.analytics.slowness.timings import from_matrices
    >>> compute = np.tile([100.0, 100.0, 160.0, 160.0], (20, 1))
    >>> [finding] = stages(from_matrices({"compute": compute}, stages=np.array([0, 0, 1, 1])))
    >>> finding.summary
    'Pipeline stage 1 computes 1.60 times as long as the others.'
    """
    rows = timings.compared
    numbers = np.unique(timings.stages[timings.stages >= 0])
    if len(numbers) < 2:
        reason = "fewer than two stages are known"
        return [Inconclusive(analyzer="stage_imbalance", reason=reason, blind=not timings.topology_known)]
    if not timings.stages_known:
        reason = "ranks send to each other, and no mesh says that these are the stages of a pipeline"
        return [Inconclusive(analyzer="stage_imbalance", reason=reason)]
    if len(rows) < STEPS_NEEDED:
        return [Inconclusive(analyzer="stage_imbalance", reason=f"{len(rows)} usable steps")]
    newest = newest_first(rows, lambda some: _stages_in(timings, some, numbers))
    if len(rows) < RECENT + STEPS_NEEDED:
        return newest
    before = {finding.subject for finding in findings(_stages_in(timings, rows[:-RECENT], numbers))}
    kept: list[Verdict] = [v for v in newest if not isinstance(v, Finding) or v.subject in before]
    return kept or [_balanced(numbers, rows)]


def _balanced(numbers: NDArray[np.int64], rows: NDArray[np.int64]) -> Healthy:
    return Healthy(analyzer="stage_imbalance", numbers={"stages": len(numbers), "steps": len(rows)})


def _stages_in(timings: Timings, rows: NDArray[np.int64], numbers: NDArray[np.int64]) -> list[Verdict]:
    """The verdict on some steps."""
    parts = (timings.parts["compute"], timings.measured("compute"))
    net, measured = (_levels(part[rows], timings.stages, numbers) for part in parts)
    whole = (net > 0).all(axis=0) & (measured > 0).all(axis=0)
    if whole.mean() < WHOLE_RATIO:
        return [Inconclusive(analyzer="stage_imbalance", reason="no compute spans", blind=True)]
    net, measured, rows = net[:, whole], measured[:, whole], rows[whole]
    verdicts: list[Verdict] = []
    for index, stage in enumerate(numbers.tolist()):
        ratios = np.minimum(_over_others(net, index), _over_others(measured, index))
        ratio = float(np.median(ratios))
        steady = float((ratios > 1 + (ratio - 1) / 2).mean())
        if ratio < STAGE_INFO or steady < 0.8:
            continue
        verdicts.append(
            timings.finding(
                "stage_imbalance",
                "stage",
                str(stage),
                severity="warning" if ratio >= STAGE_WARNING else "info",
                confidence=0.9 + 0.09 * steady * min(1.0, ratio - 1),
                summary=f"Pipeline stage {stage} computes {ratio:.2f} times as long as the others.",
                evidence={
                    "query": "analysis.step_parts",
                    "ratio": round(ratio, 4),
                    "share_of_steps": round(steady, 4),
                    "compute_ns": {str(s): int(np.median(v)) for s, v in zip(numbers, net, strict=True)},
                    "ranks": timings.ranks[timings.stages == stage].tolist()[:64],
                    "first_step": int(timings.steps[rows[0]]),
                    "last_step": int(timings.steps[rows[-1]]),
                },
            )
        )
    return verdicts or [_balanced(numbers, rows)]


def _levels(compute: Floats, stages: NDArray[np.int64], numbers: NDArray[np.int64]) -> Floats:
    """The time of each stage in each step."""
    return np.stack([_lower_median(compute[:, stages == s]) for s in numbers])


def _over_others(levels: Floats, index: int) -> Floats:
    """The time of one stage in each step, over the median of the other stages."""
    return np.asarray(levels[index] / np.median(np.delete(levels, index, axis=0), axis=0))


def _lower_median(block: Floats) -> Floats:
    """Lower median of each row. Missing ranks count as slowest."""
    middle = max(0, (block.shape[1] - 1) // 2)
    filled = np.where(np.isfinite(block), block, np.inf)
    result = np.partition(filled, middle, axis=1)[:, middle]
    return np.where(np.isfinite(result), result, 0.0)


def sequences(timings: Timings, *, scan: bool = False) -> list[Verdict]:
    """Findings of kind `sequence_imbalance` for the job: replicas get sequences of unequal length.

    Then the heaviest replica changes from step to step, and all that works on the same sequences takes longer
    together (arXiv 2505.05713). The stages of a pipeline work on the same sequences. Where no replica has two
    known stages, the forward and backward times of a rank are compared. With `scan`
    any stretch of steps counts.

    >>> from pulsetrain.analytics.slowness.timings import from_matrices
    >>> work = 100.0 * np.exp(0.3 * np.random.default_rng(0).standard_normal((40, 4)))
    >>> parts = {"compute": 3 * work, "forward": work, "backward": 2 * work}
    >>> [finding] = sequences(from_matrices(parts, job="j"))
    >>> finding.subject, finding.evidence["compared"]
    ('j', 'forward and backward')
    """
    rows = np.flatnonzero(timings.usable)
    if len(rows) < 2 * STEPS_NEEDED:
        return [Inconclusive(analyzer="sequence_imbalance", reason=f"{len(rows)} usable steps")]
    look = in_every_window if scan else newest_first
    return look(rows, lambda some: _sequences_in(timings, some))


@dataclass(frozen=True, kw_only=True)
class _Uneven:
    """How unequal the work of a step is."""

    compared: str
    agreement: float  # correlation of what shares its sequences
    spread: float  # how much longer the heaviest of a step takes, as a ratio
    lasting: float  # correlation of a step's excess with that of the next step


def _sequences_in(timings: Timings, rows: NDArray[np.int64]) -> list[Verdict]:
    """The verdict on some steps."""
    uneven = _between_stages(timings, rows) or _between_passes(timings, rows)
    if uneven is None:
        reason = "no two stages of two replicas, and no forward and backward of two ranks with the same work"
        return [Inconclusive(analyzer="sequence_imbalance", reason=reason, blind=True)]
    numbers = {
        "compared": uneven.compared,
        "agreement": round(uneven.agreement, 4),
        "spread": round(uneven.spread, 4),
        "lasting": round(uneven.lasting, 4),
        "steps": len(rows),
    }
    if uneven.agreement < AGREEMENT or uneven.spread < SPREAD_INFO or uneven.lasting >= LASTING:
        return [Healthy(analyzer="sequence_imbalance", numbers=numbers)]
    if _by_processors(timings, uneven):
        reason = "ranks wait for processors, which lengthens forward and backward alike"
        return [Inconclusive(analyzer="sequence_imbalance", reason=reason)]
    return [
        timings.finding(
            "sequence_imbalance",
            "job",
            timings.job,
            severity="warning" if uneven.spread >= SPREAD_WARNING else "info",
            confidence=min(0.97, 0.7 + 0.25 * min(1.0, (uneven.agreement - AGREEMENT) / 0.2)),
            summary=f"Ranks get unequal sequences: a step's heaviest computes {uneven.spread:.0%} longer.",
            evidence={
                "query": "analysis.step_parts",
                **numbers,
                "first_step": int(timings.steps[rows[0]]),
                "last_step": int(timings.steps[rows[-1]]),
            },
        )
    ]


def _by_processors(timings: Timings, uneven: _Uneven) -> bool:
    """Whether ranks that share processors may explain it: the one that gets less is slow in both passes.

    Where they hardly get to run, that may explain any spread.
    """
    if timings.running_ratio is None or uneven.compared == STAGES:
        return False
    return uneven.spread < SPREAD_WARNING or float(np.nanmedian(timings.running_ratio)) < MOSTLY_RUNNING


def _between_stages(timings: Timings, rows: NDArray[np.int64]) -> _Uneven | None:
    """Replicas by their compute in each of their stages. None where fewer than two of each are known.

    A replica's own level is taken out, so that a slow replica is no imbalance of sequences. Its ranks in a
    stage count as their lower median.
    """
    stages, replicas = (np.unique(x[x >= 0]) for x in (timings.stages, timings.replicas))
    if len(stages) < 2 or len(replicas) < 2:
        return None
    members = [
        [np.flatnonzero((timings.stages == s) & (timings.replicas == r)) for r in replicas] for s in stages
    ]
    if any(not len(columns) for row in members for columns in row):
        return None
    compute = timings.parts["compute"][rows]
    work = np.stack([np.stack([_lower_median(compute[:, c]) for c in row], axis=1) for row in members])
    whole = (work > 0).all(axis=(0, 2))
    if whole.sum() < STEPS_NEEDED:
        return None
    excess = np.stack([_excess(np.log(stage[whole])) for stage in work])
    unit = excess / np.maximum(np.sqrt((excess**2).sum(axis=(1, 2), keepdims=True)), 1e-12)
    count = len(stages)
    common = excess.mean(axis=0)
    return _Uneven(
        compared=STAGES,
        agreement=float(((unit.sum(axis=0) ** 2).sum() - (unit**2).sum()) / (count * (count - 1))),
        spread=float(np.median(np.expm1(common.max(axis=1)))),
        lasting=robust.autocorrelation(common),
    )


def _between_passes(timings: Timings, rows: NDArray[np.int64]) -> _Uneven | None:
    """Ranks with the same work by their forward and backward, medians over cohorts. None: not known."""
    known = [u for c in timings.cohorts if (u := _cohort(timings, rows, c)) is not None]
    if not known:
        return None
    agreement, spread, lasting = np.median([(u.agreement, u.spread, u.lasting) for u in known], axis=0)
    return _Uneven(
        compared="forward and backward",
        agreement=float(agreement),
        spread=float(spread),
        lasting=float(lasting),
    )


def _cohort(timings: Timings, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> _Uneven | None:
    """One cohort, of the ranks and steps that are known.

    Where ranks often wait for a processor, waits lengthen each pass by itself and pull their correlation
    down. Where it is plain all the same, the agreement is what the passes have in common over what the step
    net of waits has.
    """
    passes = np.stack([timings.measured(name)[np.ix_(rows, columns)] for name in ("forward", "backward")])
    net = (timings.parts["forward"] + timings.parts["backward"])[np.ix_(rows, columns)]
    present = (passes[0] > 0) & (passes[1] > 0)
    kept = present.mean(axis=0) > 2 / 3
    whole = present[:, kept].all(axis=1)
    if kept.sum() < 2 or whole.sum() < max(STEPS_NEEDED, 0.6 * len(rows)):
        return None
    forward, backward = (_excess(np.log(part[whole][:, kept])) for part in passes)
    excess = _excess(np.log(net[whole][:, kept]))
    shared = (forward * backward).mean(axis=0)
    scale = np.sqrt((forward**2).mean(axis=0) * (backward**2).mean(axis=0))
    agreement = float(np.median(shared / np.maximum(scale, 1e-12)))
    if timings.running_ratio is not None and agreement >= PLAIN_AGREEMENT:
        agreement = min(1.0, float(np.median(shared / np.maximum((excess**2).mean(axis=0), 1e-12))))
    return _Uneven(
        compared="forward and backward",
        agreement=agreement,
        spread=float(np.median(np.expm1(excess.max(axis=1)))),
        lasting=robust.autocorrelation(excess),
    )


def _excess(logs: Floats) -> Floats:
    """By how much each column exceeds the median of its row, beyond its usual excess."""
    relative = logs - np.median(logs, axis=1, keepdims=True)
    result: Floats = relative - np.median(relative, axis=0)
    return result
