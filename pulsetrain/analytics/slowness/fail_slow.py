"""Ranks, and whole jobs, that became slower than they were: fail-slow as verdicts.

Ranks are judged by the time they compute, against their peers. The job has no peers, so it is judged by its
own history: a slowdown of all ranks alike does not show between ranks. `slow_windows` finds the stretches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pulsetrain.analytics.slowness import by_design
from pulsetrain.analytics.slowness.cohort import (
    NO_COMPUTE,
    oversubscribed,
    processor_wait_ratio,
    queues,
    slowness_is_chance,
)
from pulsetrain.analytics.slowness.fail_slow_config import FailSlowConfig
from pulsetrain.analytics.slowness.slow_windows import BEFORE, slow_against_history, slow_against_peers
from pulsetrain.analytics.slowness.step_work import is_same_work
from pulsetrain.analytics.slowness.stretch_check import SlowStretch, overlap
from pulsetrain.analytics.slowness.timings import Timings
from pulsetrain.analytics.slowness.witnesses import load_explains
from pulsetrain.analytics.verdict import Finding, Healthy, Inconclusive, Severity, Verdict

Floats = NDArray[np.float64]
NAME = "fail_slow"
PATIENT_STEPS = 20  # shortest slowdown of a job, or of ranks on an oversubscribed host
SINGLE_LOOK = 1.25  # on noise alone (10 ranks x 300 steps, autocorrelation 0.9): 3 false of 200, not 18
GREW_RATIO = 1.05  # of a part of the step, from which it is named as the cause
NETWORK_SHARE = 0.5  # of what most ranks wait longer, by which the one that waits least must, too
MAJORITY = 3  # ranks that do the same work, from which one of them stands beside a majority
SURE_MARGIN = 2.0  # times what just counts, which is 4.5 to 5 standard errors
SURE_RATIO = 1.2
LONG_STEPS = 100  # five stretches of 20 steps
EACH_OTHER = "ranks wait longer for each other"


@dataclass(frozen=True, kw_only=True)
class _Times:
    """Times and FLOPs of the usable steps, per token where tokens differ. Matrices are [rank, step]."""

    steps: NDArray[np.int64]
    duration: Floats
    compute: Floats | None  # None: there are no compute spans
    wait: Floats
    flops: Floats
    oversubscribed: bool
    queues: bool  # the kernel counted it


def find(
    timings: Timings,
    *,
    config: FailSlowConfig | None = None,
    recovered: bool = True,
    inferred: Callable[[], bool] = lambda: False,
) -> list[Verdict]:
    """Findings of kind `fail_slow`: for ranks by their compute time, for the job by its step time.

    Steps that warm up, checkpoint or evaluate are left out. Without compute spans the ranks' step times are
    used, which a barrier makes alike. `inferred`: nobody counts the FLOPs of each step, so all ranks may just
    have come to compute more. With `recovered`, slowdowns that are over by now are reported too.
    `Inconclusive`, after what is found of the job: no two ranks could be compared, or other work may explain
    who became slower.

    >>> from pulsetrain.analytics.slowness.timings import from_matrices
    >>> compute = np.tile([[100.0], [102.0], [99.0]], (40, 6))
    >>> compute[60:, 2] *= 1.3
    >>> [finding] = find(from_matrices({"compute": compute}))
    >>> finding.summary
    'rank 2 became 1.30x slower (compute time) at step 60 and still is'
    """
    config = config or FailSlowConfig()
    times = _times(timings)
    needed = 3 * config.scales[0].width
    if times.steps.size < needed:
        reason = timings.unusable or f"{times.steps.size} usable steps; {needed} are needed"
        blind = times.steps.size == 0 or bool(timings.unusable)
        return [Inconclusive(analyzer=NAME, reason=reason, blind=blind)]
    ranks = _slow_ranks(timings, times, config)
    shown = [s for s in ranks if recovered or s.ongoing]
    doubts = [_doubt(timings, s, times) for s in shown]
    named = [s for s, doubt in zip(shown, doubts, strict=True) if not doubt]
    stages = [s for s in _slow_stages(timings, times, config) if recovered or s.ongoing]
    verdicts: list[Verdict] = [_rank_finding(timings, s, times) for s in named]
    verdicts += [_stage_finding(timings, s, times) for s in stages]
    doubted = [s for s, doubt in zip(shown, doubts, strict=True) if doubt]
    past = [s for s in ranks if s not in shown]
    whole = _job_findings(timings, times, config, [*named, *stages, *past], doubted, recovered=recovered)
    verdicts += _may_be_more_work(whole) if whole and inferred() else whole
    reason = next(filter(None, doubts), "") or _not_compared(timings, times, config)
    if reason and not named:
        verdicts.append(Inconclusive(analyzer=NAME, reason=reason))
    numbers = {"ranks": int(timings.ranks.size), "steps": int(times.steps.size)}
    return verdicts or [Healthy(analyzer=NAME, numbers=numbers)]


def _not_compared(timings: Timings, times: _Times, config: FailSlowConfig) -> str:
    """Why ranks could not be compared with each other. "" where they could, and for a job of one rank."""
    ranks = len(timings.ranks)
    if ranks == 1:
        return ""
    if times.compute is None:
        barrier = bool(np.isfinite(times.wait).any())
        return timings.unknown or (f"{NO_COMPUTE}: step times tell of the whole job alone" if barrier else "")
    if times.oversubscribed and slowness_is_chance(timings):
        waits = processor_wait_ratio(timings)
        return f"ranks wait for processors for {waits:.0%} of their compute: chance decides who is slow"
    known = int((np.isfinite(times.compute).sum(axis=1) >= 2 * config.scales[0].width).sum())
    return f"the compute time of {known} of {ranks} ranks is known" if known < 2 else ""


def _job_findings(
    timings: Timings,
    times: _Times,
    config: FailSlowConfig,
    named: Sequence[SlowStretch],
    doubted: Sequence[SlowStretch],
    *,
    recovered: bool,
) -> list[Finding]:
    """What slowed the job, where nobody who is named explains it, nor a doubtful rank that rose as much."""

    def is_explained(job: SlowStretch) -> bool:
        return any(overlap(job, s) for s in named) or any(
            overlap(job, s) and s.ratio >= job.ratio for s in doubted
        )

    return [
        _job_finding(timings, stretch, times, measure)
        for measure, whole in _slow_job(times, config)
        if (stretch := _for_equal_flops(whole, times, config)) is not None
        and (recovered or stretch.ongoing)
        and not is_explained(stretch)
    ]


def _slow_stages(timings: Timings, times: _Times, config: FailSlowConfig) -> list[SlowStretch]:
    """Whole stages, each on one node, that became slower than the others. `row` is the stage's first rank.

    Nobody does the same work on another node, so that is told only where steps are counted to be as much work
    as before: longer sequences cost stages unequally.
    """
    several = len(timings.cohorts) > 1 and any(len(cohort) > 1 for cohort in timings.cohorts)
    if times.compute is None or times.oversubscribed or not several:
        return []
    usual = np.full((len(timings.cohorts), times.compute.shape[1]), np.nan)
    for row, cohort in enumerate(timings.cohorts):
        known = np.isfinite(times.compute[cohort]).any(axis=0)
        usual[row, known] = np.nanmedian(times.compute[cohort][:, known], axis=0)
    found = []
    for stretch in slow_against_peers(usual, config):
        cohort = timings.cohorts[stretch.row]
        nodes = {timings.node_of(int(column)) for column in cohort}
        first = max(0, stretch.begin - BEFORE)
        rows = np.flatnonzero(np.isin(timings.steps, times.steps[first : stretch.end]))
        if len(cohort) > 1 and len(nodes) == 1 and "" not in nodes and is_same_work(timings, rows):
            found.append(replace(stretch, row=int(cohort[0])))
    return found


def _stage_finding(timings: Timings, stretch: SlowStretch, times: _Times) -> Finding:
    node = timings.node_of(stretch.row)
    ranks = timings.ranks[np.flatnonzero(timings.classes == timings.classes[stretch.row])].tolist()
    stage = int(timings.stages[stretch.row])
    return timings.finding(
        NAME,
        "node",
        node,
        severity=_severity(stretch),
        confidence=confidence(stretch),
        summary=f"node {node}, with all of stage {stage}, {_sentence(stretch, times.steps, 'compute')}",
        evidence={
            **_evidence(stretch, times.steps),
            "query": "step_parts",
            "measure": "compute",
            "node": node,
            "ranks": ranks,
            "stages": [stage],
        },
    )


def _doubt(timings: Timings, stretch: SlowStretch, times: _Times) -> str:
    """Why a slow rank may just have come to do other work. "" for none."""
    rows, before = (
        np.flatnonzero(np.isin(timings.steps, times.steps[max(0, begin) : end]))
        for begin, end in ((stretch.begin, stretch.end), (stretch.begin - BEFORE, stretch.begin))
    )
    if load_explains(timings, np.array([stretch.row]), rows, stretch.ratio - 1):
        rank = timings.ranks[stretch.row]
        return f"rank {rank} computes {stretch.ratio:.2f}x longer, and gets more of the routed tokens"
    return by_design.change_doubt(timings, stretch.row, rows, before, stretch.ratio)


def patient(config: FailSlowConfig) -> FailSlowConfig:
    """For a host with fewer processors than work: longer windows, and more slow steps in a row."""
    scales = tuple(
        replace(s, step_sigmas=1.5 * s.step_sigmas) for s in config.scales if s.width >= PATIENT_STEPS
    )
    return replace(config, scales=scales, lasting_steps=max(config.lasting_steps, PATIENT_STEPS))


def for_recording(config: FailSlowConfig | None = None) -> FailSlowConfig:
    """For a whole recording that is judged once: more sigmas.

    Chance has had its try at every stretch of every rank, and no second look will confirm what just counts,
    as it does in a running job.
    """
    config = config or FailSlowConfig()
    scales = tuple(replace(s, step_sigmas=SINGLE_LOOK * s.step_sigmas) for s in config.scales)
    return replace(config, scales=scales)


def confidence(stretch: SlowStretch) -> float:
    """0.7 for what just counts, rising towards 0.99 with the margin."""
    return round(0.99 - 0.29 * float(np.exp(1 - stretch.margin)), 3)


def _times(timings: Timings) -> _Times:
    usable = timings.usable if timings.usable.any() else np.ones(timings.steps.size, bool)
    tokens = timings.varying_tokens()
    compute = (timings.parts["compute"] / tokens)[usable].T
    measured = bool(np.isfinite(compute).any())
    return _Times(
        steps=timings.steps[usable],
        duration=(timings.numbers["duration_ns"] / tokens)[usable].T,
        compute=compute if measured else None,
        wait=timings.parts["wait"][usable].T,
        flops=(timings.numbers["flops"] / tokens)[usable].T,
        oversubscribed=measured and oversubscribed(timings),
        queues=measured and queues(timings),
    )


def _slow_ranks(timings: Timings, times: _Times, config: FailSlowConfig) -> list[SlowStretch]:
    cohorts = timings.cohorts
    if times.compute is None:
        return slow_against_peers(times.duration, config, cohorts=cohorts)
    if not times.oversubscribed:
        return slow_against_peers(times.compute, config, cohorts=cohorts)
    if slowness_is_chance(timings):
        return []
    return slow_against_peers(times.compute, patient(config), cohorts=cohorts)


def _slow_job(times: _Times, config: FailSlowConfig) -> list[tuple[str, SlowStretch]]:
    """What slowed all ranks, each with what it was measured by: "compute" or "step".

    Compute comes first, because neither the network nor waits for a processor disturb it. Step time on an
    oversubscribed host must be slow three times as long.
    """
    config = patient(config)
    compute = [] if times.compute is None else slow_against_history(times.compute, config)
    if times.oversubscribed:
        config = replace(config, scales=config.scales[-1:], lasting_steps=3 * PATIENT_STEPS)
    step = slow_against_history(times.duration, config)
    new = [s for s in step if not any(overlap(s, c) for c in compute)]
    return [("compute", s) for s in compute] + [("step", s) for s in new]


def _for_equal_flops(stretch: SlowStretch, times: _Times, config: FailSlowConfig) -> SlowStretch | None:
    """A slowdown of the job without what its ranks have more FLOPs to do. None where that explains it.

    Time need not grow with FLOPs, so a job that has fewer of them is not slower for that.
    """
    before, during = _usual(np.where(times.flops > 0, times.flops, np.nan), stretch)
    ratio = stretch.ratio / max(1.0, during / before) if during > before else stretch.ratio
    return replace(stretch, ratio=ratio) if ratio >= 1 + config.drift_floor else None


def _growth(stretch: SlowStretch, times: _Times) -> dict[str, float]:
    """How many times as long compute and communication took for most ranks, where known."""
    compute = times.duration * np.nan if times.compute is None else times.compute
    grew: dict[str, float] = {}
    for name, part in (("compute", compute), ("communication", times.wait)):
        before, during = _usual(part, stretch)
        if before > 0 and np.isfinite(during):
            grew[name] = round(during / before, 3)
    return grew


def _usual(part: Floats, stretch: SlowStretch) -> tuple[float, float]:
    """The median of times [rank, step] before a stretch and in it. NaN where not known."""
    halves = part[:, : stretch.begin], part[:, stretch.begin : stretch.end]
    before, during = (float(np.nanmedian(h)) if np.isfinite(h).any() else np.nan for h in halves)
    return before, during


def _last_waits_longer(stretch: SlowStretch, times: _Times) -> bool:
    """Whether the rank that waits least waits longer too, by half of what most ranks do.

    It comes last, so it waits for the network alone. The others wait for it as well.
    """
    known = np.isfinite(times.wait).any(axis=0)
    least = np.full((1, times.wait.shape[1]), np.nan)
    least[0, known] = np.nanmin(times.wait[:, known], axis=0)
    (before, during), (least_before, least_during) = (_usual(p, stretch) for p in (times.wait, least))
    rise = least_during - least_before
    return bool(rise >= NETWORK_SHARE * (during - before) and least_during > GREW_RATIO * least_before)


def _cause(grew: dict[str, float], *, last_waits_longer: bool) -> str:
    """Which part of the step grew, in words. Where ranks just wait for each other, that is an effect."""
    worse = tuple(name for name, ratio in grew.items() if ratio > GREW_RATIO)
    if "compute" not in grew or not (worse or "communication" in grew):
        return "unknown"
    network = last_waits_longer
    return {
        (): "neither compute nor communication",
        ("compute",): "compute of all ranks: code, data or a shared host limit",
        ("communication",): "communication: the network" if network else EACH_OTHER,
        ("compute", "communication"): "compute and communication of all ranks"
        if network
        else f"compute of all ranks, and {EACH_OTHER}",
    }[worse]


def _severity(stretch: SlowStretch, peers: int = MAJORITY) -> Severity:
    """With fewer `peers` than make a majority, itself among them, other work on its host looks the same.

    There it is information, unless the rank stands out or was slower for long.
    """
    stands_out = stretch.margin >= SURE_MARGIN and stretch.ratio >= SURE_RATIO
    if peers < MAJORITY and not stands_out and stretch.end - stretch.begin < LONG_STEPS:
        return "info"
    return "critical" if stretch.ongoing and stretch.ratio >= 1.5 else "warning"


def _evidence(stretch: SlowStretch, steps: NDArray[np.int64]) -> dict[str, object]:
    """The numbers of one stretch."""
    return {
        "first_step": int(steps[stretch.begin]),
        "last_step": int(steps[stretch.end - 1]),
        "steps": stretch.end - stretch.begin,
        "share_of_run": [round(stretch.begin / steps.size, 3), round(stretch.end / steps.size, 3)],
        "slow_ratio": round(stretch.ratio, 3),
        "margin": round(stretch.margin, 2),
        "shape": "drift" if stretch.drift else "step",
        "ongoing": stretch.ongoing,
    }


def _rank_finding(timings: Timings, stretch: SlowStretch, times: _Times) -> Finding:
    rank, node = int(timings.ranks[stretch.row]), timings.node_of(stretch.row)
    measure = "step" if times.compute is None else "compute"
    who = f"rank {rank} on {node}" if node else f"rank {rank}"
    numbers = _evidence(stretch, times.steps)
    peers = int((timings.classes == timings.classes[stretch.row]).sum())
    return timings.finding(
        NAME,
        "rank",
        str(rank),
        severity=_severity(stretch, peers),
        confidence=confidence(stretch),
        summary=f"{who} {_sentence(stretch, times.steps, measure)}",
        evidence={**numbers, "query": "step_parts", "measure": measure, "node": node},
    )


def _job_finding(timings: Timings, stretch: SlowStretch, times: _Times, measure: str) -> Finding:
    """On an oversubscribed host it is information: other work there slows the job as much as its own does.

    So it is where steps scatter as they do there.
    """
    grew = _growth(stretch, times)
    cause = _cause(grew, last_waits_longer=_last_waits_longer(stretch, times))
    doubt = "; steps scatter, so chance may have a part in it" if times.oversubscribed else ""
    doubt = "; the host has fewer processors than work" if times.oversubscribed and times.queues else doubt
    evidence = _evidence(stretch, times.steps) | {"grew": grew, "cause": cause}
    return timings.finding(
        NAME,
        "job",
        timings.job,
        severity="info" if times.oversubscribed else _severity(stretch),
        confidence=confidence(stretch) * (0.6 if times.oversubscribed else 1.0),
        summary=f"the whole job {_sentence(stretch, times.steps, measure)}; what grew: {cause}{doubt}",
        evidence=evidence | {"query": "steps", "measure": measure, "oversubscribed": times.queues},
    )


def _may_be_more_work(whole: Sequence[Finding]) -> list[Finding]:
    """The same findings on the job. Information, where compute takes longer.

    Where steps do, and it is not known that compute does not, they are warnings at most.
    """
    return [f if _computes_alike(f) else _doubtful(f) for f in whole]


def _computes_alike(finding: Finding) -> bool:
    """Whether the job's ranks are known to compute for as long as before."""
    compute = finding.evidence["grew"].get("compute")
    return finding.evidence["measure"] == "step" and compute is not None and compute <= GREW_RATIO


def _doubtful(finding: Finding) -> Finding:
    """A finding on steps of which nobody counts the work."""
    of_steps = finding.evidence["measure"] == "step" and finding.severity != "info"
    severity: Severity = "warning" if of_steps else "info"
    summary = f"{finding.summary}; steps may be more work: their FLOPs are not counted"
    return replace(finding, severity=severity, summary=summary)


def _sentence(stretch: SlowStretch, steps: NDArray[np.int64], measure: str) -> str:
    how = "drifted to" if stretch.drift else "became"
    until = "and still is" if stretch.ongoing else f"until step {steps[stretch.end - 1]}"
    return f"{how} {stretch.ratio:.2f}x slower ({measure} time) at step {steps[stretch.begin]} {until}"
