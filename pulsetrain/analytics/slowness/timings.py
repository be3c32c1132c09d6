"""Where the time of every step of every rank went, as matrices that the analyzers of slowness share."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pulsetrain.records.findings import Finding, Severity, SubjectType

Matrix = NDArray[np.float64]

PARTS = (
    "compute",
    "wait",
    "forward",
    "backward",
    "optimizer",
    "data",
    "checkpoint",
    "gc",
    "gc_longest",
    "cpu_wait",
    "off_cpu",
    "other",
)
COMPUTED = ("compute", "forward", "backward", "optimizer")
NUMBERS = ("duration_ns", "tokens", "flops", "loss", "grad_norm")
LOGGED = ("loss", "grad_norm")
WARM_STEPS = 2  # first steps of an attempt: compilation, allocation and connections
NEWEST = 30  # steps in which it is seen which ranks report
REPORTING_RATIO = 2 / 3  # of these steps, from which a rank is waited for
WAITING_RATIO = 0.05  # of compute that the usual rank waits for a processor, from which waits are taken out
LEAST_RATIO = 0.1  # of a rank's compute that is its own, however much the kernel counts as waiting
LOW_QUANTILE = 0.25
FEW_BUSY = 0.03  # of the ranks, up to which a step counts in which they save or evaluate and nobody waits
LONGER_RATIO = 1.05  # of the usual step, from which others waited for them
FEW_USABLE = 0.25  # of the steps, below which it is told why they are not usable
JUDGED = 40  # steps without warm-up, from which that is told


@dataclass(frozen=True, kw_only=True)
class Timings:
    """Matrices [step, rank] by name. NaN where a rank has no row for a step.

    `parts` (see `PARTS`) are nanoseconds. Where the usual rank often waits for a processor, the parts in
    `COMPUTED` are net of that, because it is chance which rank has to wait. `running_ratio` is then the share
    of them that was left, and None otherwise. The kernel tells how long a step waited, but not in which part.

    `numbers` are those in `NUMBERS`. Step times and waits are net of turns on shared devices. `logged` is
    true where a loss or gradient norm was logged, so that a NaN there is a real one. `unknown` says why no
    compute time can be known. `routed_bytes` went through all_to_all, as tokens do to their experts.
    `pieces` is of how many spans compute consists: forward and backward of each micro-batch, and more.
    `nodes`, `stages`, `replicas` (data-parallel), `contexts` (context-parallel) and `experts`
    (expert-parallel) have one entry for each rank, or none at all. An entry is below 0 where the topology
    does not tell it. `models` are the GPU models of the ranks, none at all where they are alike or not known.
    `roles` and `circles` tell who works in which process groups (`work_groups`), none at all where unknown.
    `stages_known`: a mesh named the stages, or transfers show a chain of three or more. Other stages only say
    which ranks may do other work. `shares_devices`: ranks took turns on devices in some of the steps.
    `on_device`: devices timed compute in some of them. `round_ends_ns` (UTC) are set where rounds of
    collectives stand for steps (`rounds`). `skipped` are a step and a rank for each loss that was not finite
    in steps before these, of which no look saw any number.
    """

    job: str
    attempt: int
    now_ns: int
    steps: NDArray[np.int64]
    ranks: NDArray[np.int64]
    nodes: NDArray[np.str_]
    stages: NDArray[np.int64]
    parts: dict[str, Matrix]
    numbers: dict[str, Matrix]
    logged: dict[str, NDArray[np.bool_]] = field(default_factory=dict)
    first_step: int = 0  # of the attempt
    topology_known: bool = False
    replicas: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    contexts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    experts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    roles: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    circles: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    running_ratio: Matrix | None = None
    unknown: str = ""
    routed_bytes: Matrix | None = None
    pieces: Matrix | None = None
    stages_known: bool = True
    shares_devices: bool = False
    on_device: bool = False
    models: NDArray[np.str_] = field(default_factory=lambda: np.zeros(0, np.str_))
    round_ends_ns: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    skipped: tuple[tuple[int, int], ...] = ()

    @property
    def rounds(self) -> bool:
        """Whether rounds of collectives stand for steps. Loading is part of their compute."""
        return bool(len(self.round_ends_ns))

    @cached_property
    def usable(self) -> NDArray[np.bool_]:
        """Steps that are no warm-up and in which no rank checkpoints or evaluates for a tenth of the step.

        In a large job some rank may always do so. Where it is only few ranks and the step takes no longer,
        the step counts.
        """
        if not len(self.steps):
            return np.zeros(0, np.bool_)
        busy, warm_up = self._busy, self.steps < self.first_step + WARM_STEPS
        disturbed = busy.any(axis=1)
        some = disturbed & (busy.mean(axis=1) <= FEW_BUSY) & ~warm_up
        if some.any():
            disturbed &= ~(some & ~self._longer(some, ~warm_up))
        return np.asarray(~warm_up & ~disturbed, np.bool_)

    @cached_property
    def _busy(self) -> NDArray[np.bool_]:
        """Where a rank checkpoints or evaluates for a tenth of a step, and not in most of its steps."""
        with np.errstate(invalid="ignore"):
            busy = (self.parts["checkpoint"] + self.parts["other"]) > 0.1 * self.numbers["duration_ns"]
        usual = busy.mean(axis=0) > 0.5  # a phase that every step has is part of the step
        return np.asarray(busy & ~usual, np.bool_)

    def _longer(self, some: NDArray[np.bool_], every: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which of `some` steps are longer for most ranks than the usual one of `every`, or not known."""
        durations = self.numbers["duration_ns"]
        known = np.isfinite(durations).any(axis=1)
        lengths = np.full(len(durations), np.nan)
        lengths[known] = np.nanmedian(durations[known], axis=1)
        usual = np.median(lengths[every & known]) if (every & known).any() else np.nan
        return np.asarray(some & ~(lengths <= LONGER_RATIO * usual), np.bool_)

    @cached_property
    def unusable(self) -> str:
        """Why less than a quarter of the steps is usable. "" where more is, and of few steps."""
        judged = self.steps >= self.first_step + WARM_STEPS
        if judged.sum() < JUDGED or self.usable[judged].mean() >= FEW_USABLE:
            return ""
        checkpoint, other = (np.nansum(self.parts[name][self._busy]) for name in ("checkpoint", "other"))
        what = "saves a checkpoint" if checkpoint > other else "is in phases of the category other"
        lost = int((judged & ~self.usable).sum())
        return f"in {lost} of {judged.sum()} steps a rank {what} for a tenth of the step or longer"

    @cached_property
    def compared(self) -> NDArray[np.int64]:
        """Rows of the usable steps without the newest ones of which a rank's compute is still missing.

        The rows of some nodes come a second later than those of others. A rank that misses a third of the
        newest steps is not waited for.
        """
        rows = np.flatnonzero(self.usable)
        known = np.isfinite(self.parts["compute"][rows[-NEWEST:]])
        if not known.size:
            return rows
        reporting = known.mean(axis=0) > REPORTING_RATIO
        whole = np.flatnonzero(known[:, reporting].all(axis=1))
        missing = len(known) - 1 - int(whole[-1]) if reporting.any() and whole.size else 0
        return rows[: len(rows) - missing]

    @cached_property
    def classes(self) -> NDArray[np.int64]:
        """A number for each rank, alike for ranks of one pipeline stage and role on the same GPU model."""
        classes = self.stages
        for more in (self.models, self.roles):
            kinds, kind = np.unique(more, return_inverse=True)
            if len(kinds) > 1:
                _, number = np.unique(classes, return_inverse=True)
                classes = np.asarray(number * len(kinds) + kind, np.int64)
        return classes

    @cached_property
    def cohorts(self) -> list[NDArray[np.int64]]:
        """Columns of ranks that do the same work on the same GPU model: one array for each of `classes`."""
        return [np.flatnonzero(self.classes == c) for c in np.unique(self.classes)]

    def measured(self, part: str) -> Matrix:
        """A part in `COMPUTED` as the rank measured it, waits for a processor included."""
        return self.parts[part] if self.running_ratio is None else self.parts[part] / self.running_ratio

    def varying_tokens(self) -> Matrix | float:
        """The tokens of each step and rank where they differ by more than 1 %, else 1.0.

        Times divided by this are comparable. 0 tokens are tokens that nobody counted. Then those of the same
        replica count, which its other stages know. NaN where nobody knows them.
        """
        counted = self.numbers["tokens"]
        tokens = np.where(counted > 0, counted, np.nan)
        known = tokens[np.isfinite(tokens)]
        if not known.size or known.max() <= 1.01 * known.min():
            return 1.0
        for replica in np.unique(self.replicas[self.replicas >= 0]):
            columns = np.flatnonzero(self.replicas == replica)
            block = tokens[:, columns]
            most = np.fmax.reduce(block, axis=1, keepdims=True)
            tokens[:, columns] = np.where(np.isfinite(block), block, most)
        return tokens

    def finding(
        self,
        kind: str,
        subject_type: SubjectType,
        subject: str,
        *,
        severity: Severity,
        confidence: float,
        summary: str,
        evidence: Mapping[str, object],
    ) -> Finding:
        """A finding on this attempt at the time of the analysis."""
        return Finding(
            ts_ns=self.now_ns,
            job=self.job,
            attempt=self.attempt,
            kind=kind,
            subject_type=subject_type,
            subject=subject,
            severity=severity,
            confidence=round(confidence, 3),
            summary=summary,
            evidence=evidence,
        )

    def between(self, first: int, last: int) -> Timings:
        """Return the timings of steps `first`..`last` alone."""
        rows = slice(*np.searchsorted(self.steps, [first, last + 1]))

        def some(matrix: Matrix | None) -> Matrix | None:
            return None if matrix is None else matrix[rows]

        return replace(
            self,
            steps=self.steps[rows],
            parts={name: matrix[rows] for name, matrix in self.parts.items()},
            numbers={name: matrix[rows] for name, matrix in self.numbers.items()},
            logged={name: mask[rows] for name, mask in self.logged.items()},
            running_ratio=some(self.running_ratio),
            routed_bytes=some(self.routed_bytes),
            pieces=some(self.pieces),
        )

    def node_of(self, column: int) -> str:
        """Name of the node of the rank in `column`. Empty where not known."""
        return str(self.nodes[column])


def from_matrices(
    matrices: Mapping[str, Matrix],
    *,
    job: str = "",
    steps: NDArray[np.int64] | None = None,
    ranks: NDArray[np.int64] | None = None,
    stages: NDArray[np.int64] | None = None,
) -> Timings:
    """Timings from matrices [step, rank] of one shape, named as in `PARTS` and `NUMBERS`.

    What is not given is missing. Steps and ranks count from 0 by default, all ranks are of one stage, and no
    step is a warm-up.

    >>> from_matrices({"compute": np.ones((3, 2))}).usable.tolist()
    [True, True, True]
    """
    count, width = next(iter(matrices.values())).shape
    missing = np.full((count, width), np.nan)
    steps = np.arange(count) if steps is None else steps
    return Timings(
        job=job,
        attempt=0,
        now_ns=0,
        steps=steps,
        ranks=np.arange(width) if ranks is None else ranks,
        nodes=np.full(width, "", np.str_),
        stages=np.full(width, -1, np.int64) if stages is None else stages,
        parts={name: matrices.get(name, missing) for name in PARTS},
        numbers={name: matrices.get(name, missing) for name in NUMBERS},
        first_step=int(steps[0]) - WARM_STEPS if count else 0,
    )


def own_time(parts: Mapping[str, Matrix], duration: Matrix, waits_known: Matrix) -> Matrix:
    """What is left of each step without waiting, loading, saving and evaluating: compute without phases.

    It is known where a rank communicated and `waits_known` (1.0) says that all its waits were measured. NaN
    elsewhere.
    """
    elsewhere = sum(np.nan_to_num(parts[name]) for name in ("data", "checkpoint", "other"))
    known = (waits_known == 1.0) & (parts["wait"] > 0)
    return np.where(known, np.maximum(duration - parts["wait"] - elsewhere, 0.0), np.nan)


def without_turns(duration: Matrix, device_wait: Matrix) -> Matrix:
    """Step times as if no rank shared its device, so that turns do not look like a slower job.

    Of K ranks that share a device the first waits for no turn and the last one for K - 1. So twice the mean
    of what ranks waited is what the turns have cost the step, in any order.

    >>> without_turns(np.array([[30.0, 30.0, 30.0]]), np.array([[0.0, 10.0, 20.0]]))
    array([[10., 10., 10.]])
    """
    waited = np.nan_to_num(device_wait)
    turns = 2.0 * waited.mean(axis=1, keepdims=True)
    return np.asarray(np.maximum(duration - turns, LEAST_RATIO * duration))


def running_ratio(parts: Mapping[str, Matrix]) -> Matrix | None:
    """The share of the computed parts that is left net of waits for a processor. None where waits are rare.

    Some of a step's waits fall between its parts, so a step may seem to take less than it can. So no step
    counts for less than the lower quartile of its rank.
    """
    compute, waited = parts["compute"], np.nan_to_num(parts["cpu_wait"])
    with np.errstate(divide="ignore", invalid="ignore"):
        share = waited / compute
    known = share[np.isfinite(share)]
    if not known.size or np.median(known) < WAITING_RATIO:
        return None
    own = np.maximum(compute - waited, LEAST_RATIO * compute)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # ranks without a value
        usual = np.nanquantile(own, LOW_QUANTILE, axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        kept = np.nan_to_num(np.minimum(np.maximum(own, usual) / compute, 1.0), nan=1.0)
    return np.asarray(kept)
